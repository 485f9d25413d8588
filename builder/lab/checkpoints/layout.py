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
        return self.copied + sum(piece.tensor.size for piece in self.pieces if isinstance(piece, Conversion))

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
    for group in groups.values():
        group.sort(key=lambda each: each.place)
    added = {file.path: group for file, group in groups.items() if file in content.added}
    parts = [part for file, group in groups.items() if file not in content.added for part in _parts(group, shard_size)]
    names = [f"model-{number:05}-of-{len(parts):05}.safetensors" for number in range(1, len(parts) + 1)]
    if len(parts) == 1 and not added:
        names = [SINGLE]
    if clash := {SINGLE, *names} & added.keys():
        raise safetensors_files.HeaderError(f"the added file {min(clash)} has the name of a file that the build makes")
    named = {**dict(zip(names, parts, strict=True)), **added}
    return tuple(_shard(name, tensors) for name, tensors in sorted(named.items()))


def index_of(files: Iterable[PlannedShard], content: PlannedContent) -> bytes | None:
    """The index over the files of weights; None where there is one only, which needs none."""
    by_tensor = {name: shard.name for shard in files for name in shard.names}
    if set(by_tensor.values()) == {SINGLE}:
        return None
    total = sum(tensor.bytes for tensor in content.tensors.values())
    return safetensors_files.written_index(by_tensor, total)


def digest(files: Iterable[PlannedShard], content: PlannedContent, sources: Mapping[SourceFile, str], text: str) -> str:
    """The digest over all that decides the bytes of the result: the pieces of each file, the identities of the files
    that they come from, the changes to other files, and ``text`` of the definition that goes into it."""

    def parts() -> Iterator[object]:
        yield [VERSION, text]
        for shard in files:
            yield [shard.name, shard.size, hashlib.sha256(shard.beginning).hexdigest()]
            yield from map(asdict, shard.pieces)
        yield {name: [file.source, file.path] for name, file in content.files.items()}
        yield {name: [dict(patch) for patch in patches] for name, patches in content.patches.items()}
        yield [[file.source, file.path, identity] for file, identity in sorted(sources.items())]

    whole = hashlib.sha256()
    for part in parts():
        whole.update(json.dumps(part, sort_keys=True).encode() + b"\n")
    return whole.hexdigest()


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
    yield part


def _shard(name: str, tensors: list[PlannedTensor]) -> PlannedShard:
    beginning, begins = safetensors_files.written((tensor.name, tensor.dtype, tensor.shape) for tensor in tensors)
    pieces: list[ByteCopy | Conversion] = []
    for tensor, at in zip(tensors, begins, strict=True):
        last = pieces[-1] if pieces else None
        if not tensor.bytes:
            continue
        if tensor.operation != "copy":
            pieces.append(Conversion(tensor, at))
        elif isinstance(last, ByteCopy) and last.file == tensor.file and last.begin + last.size == tensor.begin:
            pieces[-1] = replace(last, size=last.size + tensor.size)
        else:
            pieces.append(ByteCopy(tensor.file, tensor.begin, tensor.size, at))
    size = len(beginning) + sum(tensor.bytes for tensor in tensors)
    return PlannedShard(name, beginning, tuple(pieces), size, tuple(tensor.name for tensor in tensors))
