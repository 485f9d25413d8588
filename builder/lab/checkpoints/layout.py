"""The files of a result: which tensors each has, in which order, and the byte ranges that are copied or computed."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from builder.sources import safetensors_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from builder.lab.checkpoints.tensors import PlannedContent, PlannedTensor, SourceFile


SINGLE = "model.safetensors"
README = "README.md"
VERSION = 1
"""Goes into every plan's digest: another layout of the same tensors is another result."""


@dataclass(frozen=True)
class ByteCopy:
    """``size`` bytes at ``begin`` of ``file`` that are copied to ``at``."""

    file: SourceFile
    begin: int
    size: int
    at: int


@dataclass(frozen=True)
class Conversion:
    """The bytes of ``tensor``, which are computed and written at ``at``."""

    tensor: PlannedTensor
    at: int


@dataclass(frozen=True)
class PlannedShard:
    """A file of weights: its beginning, and what follows; ``size`` is its length in bytes."""

    name: str
    beginning: bytes
    pieces: tuple[ByteCopy | Conversion, ...]
    size: int
    names: tuple[str, ...]

    @property
    def copied(self) -> int:
        """The bytes that are copied as they are."""
        return sum(piece.size for piece in self.pieces if isinstance(piece, ByteCopy))

    @property
    def read(self) -> int:
        """The bytes that are read of sources."""
        return sum(piece.size if isinstance(piece, ByteCopy) else piece.tensor.size for piece in self.pieces)

    @property
    def sources(self) -> frozenset[SourceFile]:
        """The files that it is made from."""
        return frozenset(piece.file if isinstance(piece, ByteCopy) else piece.tensor.file for piece in self.pieces)


def shards(content: PlannedContent, shard_size: int) -> tuple[PlannedShard, ...]:
    """The files of weights: the tensors of a file of a source stay together, at most ``shard_size`` bytes in each; a
    file that was added keeps its name. Raises HeaderError for more tensors than a header may have."""
    groups: dict[SourceFile, list[PlannedTensor]] = defaultdict(list)
    for tensor in content.tensors.values():
        groups[tensor.shard].append(tensor)
    ordered = {shard: sorted(group, key=lambda each: each.place) for shard, group in groups.items()}
    added = {shard.path: tensors for shard, tensors in ordered.items() if shard in content.added}
    parts = [
        part for shard, tensors in ordered.items() if shard not in content.added for part in _parts(tensors, shard_size)
    ]
    named = {_name(number, len(parts), is_alone=not added): part for number, part in enumerate(parts, 1)}
    clash = named.keys() & added.keys() | ({SINGLE} & added.keys())
    if clash:
        raise safetensors_files.HeaderError(f"the added file {min(clash)} has the name of one that is made")
    return tuple(_shard(name, tensors) for name, tensors in sorted({**named, **added}.items()))


def index_of(files: Iterable[PlannedShard], content: PlannedContent) -> bytes | None:
    """The index over the files of weights; None where there is one only, which needs none."""
    every = tuple(files)
    if [shard.name for shard in every] == [SINGLE]:
        return None
    total = sum(tensor.bytes for tensor in content.tensors.values())
    return safetensors_files.written_index({name: shard.name for shard in every for name in shard.names}, total)


def digest(files: Iterable[PlannedShard], content: PlannedContent, sources: Mapping[SourceFile, str], text: str) -> str:
    """The digest over all that decides the bytes of the result: the pieces of each file, the identities of the files
    that they come from, the changes to other files, and ``text`` of the definition that goes into it."""
    whole = hashlib.sha256()

    def add(value: object) -> None:
        whole.update(json.dumps(value, sort_keys=True, ensure_ascii=True).encode() + b"\n")

    add([VERSION, text])
    for shard in files:
        add([shard.name, shard.size, hashlib.sha256(shard.beginning).hexdigest()])
        for piece in shard.pieces:
            add(asdict(piece))
    add({name: [file.source, file.path] for name, file in content.files.items()})
    add({name: [dict(patch) for patch in patches] for name, patches in content.patches.items()})
    add([[file.source, file.path, identity] for file, identity in sorted(sources.items())])
    return whole.hexdigest()


def _name(number: int, count: int, *, is_alone: bool) -> str:
    return SINGLE if count == 1 and is_alone else f"model-{number:05}-of-{count:05}.safetensors"


def _parts(tensors: list[PlannedTensor], most: int) -> Iterator[list[PlannedTensor]]:
    """Divides tensors among files of at most ``most`` bytes of data; one that is larger has a file of its own."""
    part: list[PlannedTensor] = []
    size = 0
    for tensor in tensors:
        if part and size + tensor.bytes > most:
            yield part
            part, size = [], 0
        part.append(tensor)
        size += tensor.bytes
    if part:
        yield part


def _shard(name: str, tensors: list[PlannedTensor]) -> PlannedShard:
    beginning, begins = safetensors_files.written((tensor.name, tensor.dtype, tensor.shape) for tensor in tensors)
    pieces: list[ByteCopy | Conversion] = []
    for tensor, at in zip(tensors, begins, strict=True):
        if not tensor.bytes:
            continue
        if tensor.operation != "copy":
            pieces.append(Conversion(tensor, at))
            continue
        last = pieces[-1] if pieces else None
        if isinstance(last, ByteCopy) and last.file == tensor.file and last.begin + last.size == tensor.begin:
            pieces[-1] = replace(last, size=last.size + tensor.size)
        else:
            pieces.append(ByteCopy(tensor.file, tensor.begin, tensor.size, at))
    size = len(beginning) + sum(tensor.bytes for tensor in tensors)
    return PlannedShard(name, beginning, tuple(pieces), size, tuple(tensor.name for tensor in tensors))
