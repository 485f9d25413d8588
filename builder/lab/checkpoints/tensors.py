"""The steps of a definition decide which tensors a checkpoint has, and where their bytes come from.

A wrong count, a missing tensor or a different shape is an error that lists the names. The data of tensors is not read.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from fnmatch import translate
from typing import Any

from builder.base.values import asdict, dataclass, field, replace
from builder.base.words import counted, did_you_mean
from builder.definitions.checkpoint_definition import (
    AddStep,
    CheckpointStep,
    ConfigStep,
    ReplaceStep,
    TakeStep,
    TensorSelection,
    VerifyStep,
)
from builder.sources import safetensors_files

_MOST_NAMES = 5  # in a message
_SINGLE = "model.safetensors"
# Part of every digest of inputs: the same tensors in another layout are another result.
_LAYOUT = 1
# Files beside the weights that `take` skips: weights in other formats, and files that are written for the result.
_LEFT_OUT = re.compile(
    r"(?s).*\.(safetensors|safetensors\.index\.json|bin|bin\.index\.json|pt|pth|ckpt|gguf|onnx|h5|msgpack)|\.git.*|README\.md"
)


class StepError(Exception):
    """The reason, with names, why a step is impossible; ``number`` is its position in the definition, from 0."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self.number = 0


@dataclass(frozen=True, order=True)
class SourceFile:
    """A file of a source; ``source`` is the source's name in the definition."""

    source: str
    path: str


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor of the result: a copy of ``size`` bytes at ``begin`` of ``file``. The tensors of a ``shard`` of a source
    stay together, in the order of ``place``."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: SourceFile
    begin: int
    size: int
    shard: SourceFile
    place: tuple[int, ...]


@dataclass(frozen=True)
class SourceListing:
    """A source for planning: the headers of its weights, the files in its index, and the sizes of all other files."""

    headers: Mapping[str, safetensors_files.Header]
    listed: tuple[str, ...]
    others: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class StepEffect:
    """The effect of a step in one line, and the number of its tensors."""

    text: str
    tensors: int


@dataclass(frozen=True)
class PlannedContent:
    """The result of the steps. ``added`` are files whose tensors were added as a whole, ``patches`` are changes to JSON
    files, and ``digests`` are the required digests of files."""

    tensors: Mapping[str, PlannedTensor] = field(default_factory=dict)
    added: frozenset[SourceFile] = frozenset()
    files: Mapping[str, SourceFile] = field(default_factory=dict)
    patches: Mapping[str, tuple[Mapping[str, Any], ...]] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)
    effects: tuple[StepEffect, ...] = ()

    def after(self, text: str, tensors: Collection[PlannedTensor] = (), **changes: Any) -> PlannedContent:
        """The content after a step with these ``tensors``; ``text`` describes the step."""
        new = {tensor.name: tensor for tensor in tensors}
        effects = (*self.effects, StepEffect(text, len(tensors)))
        return replace(self, tensors={**self.tensors, **new}, effects=effects, **changes)


def apply_step(steps: Iterable[CheckpointStep], sources: Mapping[str, SourceListing]) -> PlannedContent:
    """Applies the steps in their order. Raises StepError."""
    content = PlannedContent()
    for number, step in enumerate(steps):
        try:
            match step:
                case TakeStep():
                    content = _take(content, step, sources[step.source])
                case ReplaceStep():
                    content = _replace(content, step, sources[step.source])
                case AddStep():
                    content = _add(content, step, sources[step.source])
                case ConfigStep():
                    content = _config(content, step)
                case VerifyStep():
                    content = _verify(content, step)
        except StepError as error:
            error.number = number
            raise
    return content


def _take(content: PlannedContent, step: TakeStep, source: SourceListing) -> PlannedContent:
    selected = _stored(source, step.selection)
    taken = [_planned(_renamed(each.name, step.rename), each, SourceFile(step.source, path)) for path, each in selected]
    if not taken:
        raise StepError(f"no tensor of {step.source} is selected")
    _require_count(step.expect, [tensor.name for tensor in taken], "in the selection")
    _require_new(content, taken)
    is_wanted = _matcher(step.files if step.files is not None else () if content.tensors else ("*",))
    files = {
        path: SourceFile(step.source, path)
        for path in source.others
        if is_wanted(path) and (step.files is not None or not _LEFT_OUT.fullmatch(path)) and "/" not in path
    }
    if twice := sorted(files.keys() & content.files.keys()):
        raise StepError(
            f"earlier steps already make files with these names: {listed(twice)}; select other files with `files`"
        )
    beside = f" and {len(files)} other files" if files else ""
    text = f"takes {len(taken)} tensors{beside} of {step.source}"
    return content.after(text, taken, files={**content.files, **files})


def _replace(content: PlannedContent, step: ReplaceStep, source: SourceListing) -> PlannedContent:
    """Replaces tensors with a source's tensors of the same name and shape, and their companions."""
    by_name = {tensor.name: (path, tensor) for path, tensor in _stored(source, TensorSelection())}
    own = (tensor for _, tensor in _stored(source, step.selection))
    selected = {tensor.name: tensor for tensor in own if tensor.name.rpartition(".")[2] not in step.companions}
    matched = {name: content.tensors[name] for name in selected if name in content.tensors}
    unmatched = [name for name in selected if name not in matched]
    shapes = {name: (list(target.shape), list(selected[name].shape)) for name, target in matched.items()}
    if differing := [f"{name} {then} and {now}" for name, (then, now) in shapes.items() if then != now]:
        raise StepError(f"tensors with different shapes: {listed(differing)}")
    _require_count(step.expect, list(matched), "with a counterpart")
    _require_count(step.unmatched, unmatched, "without a counterpart")
    if not matched:
        raise StepError(f"no selected tensor of {step.source} has a counterpart; selected: {len(selected)}")
    changed, missing = [], []
    for name, target in matched.items():
        places = {name: target.place}
        stem = name[: name.rfind(".") + 1]  # companions differ in the last part of the name
        places |= {stem + last: (*target.place, order) for order, last in enumerate(step.companions, 1)}
        missing += [each for each in places if each not in by_name]
        for each in filter(by_name.__contains__, places):
            path, tensor = by_name[each]
            new = _planned(each, tensor, SourceFile(step.source, path))
            changed.append(replace(new, shard=target.shard, place=places[each]))
    if missing:
        raise StepError(f"companions that are missing in {step.source}: {listed(missing)}")
    companions = len(changed) - len(matched)
    also = f", with {companions} companions" if companions else ""
    pairs = {(target.dtype, selected[name].dtype) for name, target in matched.items()}
    changes = ", ".join(sorted(f"{before} → {after}" for before, after in pairs if before != after))
    change = f" ({changes})" if changes else ""
    left = f"; {len(unmatched)} have no counterpart" if unmatched else ""
    return content.after(
        f"replaces {len(matched)} tensors with tensors from {step.source}{change}{also}{left}", changed
    )


def _add(content: PlannedContent, step: AddStep, source: SourceListing) -> PlannedContent:
    """Adds a whole file of a source, unless such tensors already exist."""
    is_excluding = _matcher(step.unless)
    if present := [name for name in content.tensors if is_excluding(name)]:
        return content.after(f"adds nothing from {step.source}: {len(present)} such tensors already exist")
    if step.file not in source.headers:
        suggestion = did_you_mean(step.file, source.headers, code=True)
        raise StepError(f"{step.source} has no file {step.file}" + (f"; {suggestion}" if suggestion else ""))
    file = SourceFile(step.source, step.file)
    added = [_planned(tensor.name, tensor, file) for tensor in source.headers[step.file].tensors]
    _require_count(step.expect, [tensor.name for tensor in added], f"in {step.file}")
    _require_new(content, added)
    if any(other.path == step.file for other in content.added - {file}):
        raise StepError(f"an earlier step already added a file {step.file}")
    text = f"adds {step.file} of {step.source} with {len(added)} tensors"
    return content.after(text, added, added=content.added | {file})


def _config(content: PlannedContent, step: ConfigStep) -> PlannedContent:
    if step.file not in content.files:
        suggestion = did_you_mean(step.file, content.files, code=True)
        raise StepError(f"there is no file {step.file}" + (f"; {suggestion}" if suggestion else ""))
    patches = {**content.patches, step.file: (*content.patches.get(step.file, ()), step.patch)}
    return content.after(f"changes {', '.join(sorted(step.patch)) or 'nothing'} in {step.file}", patches=patches)


def _verify(content: PlannedContent, step: VerifyStep) -> PlannedContent:
    tensors = content.tensors.values()
    size = sum(tensor.size for tensor in tensors)
    wrong = []
    if step.tensors not in (None, len(tensors)):
        wrong.append(f"expected {counted(step.tensors, 'tensor')}, found {len(tensors)}")
    if step.size not in (None, size):
        wrong.append(f"expected {counted(step.size, 'byte')} of tensors, found {size}")
    dtypes = Counter(tensor.dtype for tensor in tensors)
    named = {pattern: sum(map(_matcher((pattern,)), content.tensors)) for pattern in step.counts}
    counts = [(named[pattern], f"with a name like {pattern}", count) for pattern, count in step.counts.items()]
    counts += [(dtypes[dtype], f"of type {dtype}", count) for dtype, count in step.dtypes.items()]
    wrong += [
        f"expected {counted(count, 'tensor')} {what}, found {number}"
        for number, what, count in counts
        if number != count
    ]
    for pattern, shape in step.shapes.items():
        matching = list(filter(_is_in(TensorSelection((pattern,))), tensors))
        if not matching:
            wrong.append(f"no tensor has a name like {pattern}")
        if others := [f"{tensor.name} {list(tensor.shape)}" for tensor in matching if tensor.shape != shape]:
            wrong.append(f"these tensors do not have the shape {list(shape)}: {listed(others)}")
    if wrong:
        raise StepError("; ".join(wrong))
    text = "verifies the result, whose tensors are as required"
    return content.after(text, digests={**content.digests, **step.files})


# Shared functions of the steps.


def _matcher(patterns: Iterable[str]) -> Callable[[str], bool]:
    compiled = [re.compile(translate(pattern)) for pattern in patterns]
    return lambda name: any(pattern.match(name) for pattern in compiled)


def listed(names: Iterable[str]) -> str:
    every = list(names)
    more = f" and {len(every) - _MOST_NAMES} more" if len(every) > _MOST_NAMES else ""
    return f"{', '.join(every[:_MOST_NAMES])}{more}"


def _is_in(selection: TensorSelection) -> Callable[[safetensors_files.StoredTensor | PlannedTensor], bool]:
    is_wanted, is_excepted = _matcher(selection.patterns), _matcher(selection.exceptions)
    return lambda tensor: (
        is_wanted(tensor.name) and not is_excepted(tensor.name) and selection.dtype in (None, tensor.dtype)
    )


def _stored(source: SourceListing, selection: TensorSelection) -> list[tuple[str, safetensors_files.StoredTensor]]:
    """The selected tensors of a source with their files, in the order of their bytes."""
    is_selected = _is_in(selection)
    return [(path, each) for path in source.listed for each in source.headers[path].tensors if is_selected(each)]


def _planned(name: str, tensor: safetensors_files.StoredTensor, file: SourceFile) -> PlannedTensor:
    return PlannedTensor(name, tensor.dtype, tensor.shape, file, tensor.begin, tensor.size, file, (tensor.begin,))


def _renamed(name: str, rename: Mapping[str, str]) -> str:
    """The new name from the first pattern that matches."""
    for old, new in rename.items():
        head, star, tail = old.partition("*")
        if not star and name == old:
            return new
        if star and name.startswith(head) and name.endswith(tail) and len(name) >= len(head) + len(tail):
            return new.replace("*", name[len(head) : len(name) - len(tail)], 1)
    return name


def _require_count(expected: int | None, names: list[str], what: str) -> None:
    if expected is not None and len(names) != expected:
        which = f": {listed(names)}" if names else ""
        raise StepError(f"expected {counted(expected, 'tensor')} {what}, found {len(names)}{which}")


def _require_new(content: PlannedContent, new: Iterable[PlannedTensor]) -> None:
    counts = Counter(tensor.name for tensor in new)
    if twice := [name for name, count in counts.items() if count > 1 or name in content.tensors]:
        raise StepError(f"these tensor names already exist: {listed(twice)}")


# The files of the result: their tensors, the order of the tensors, and the byte ranges to copy.


@dataclass(frozen=True)
class ByteCopy:
    """A copy of ``size`` bytes from ``begin`` in ``file`` to ``at``."""

    file: SourceFile
    begin: int
    size: int
    at: int


@dataclass(frozen=True)
class PlannedShard:
    """A file of weights: its beginning, and the pieces that follow; ``size`` is its length in bytes."""

    name: str
    beginning: bytes
    pieces: tuple[ByteCopy, ...]
    size: int
    names: tuple[str, ...]

    @property
    def copied(self) -> int:
        return sum(piece.size for piece in self.pieces)

    @property
    def sources(self) -> frozenset[SourceFile]:
        return frozenset(piece.file for piece in self.pieces)


def planned_shards(content: PlannedContent, shard_size: int) -> tuple[PlannedShard, ...]:
    """The files of weights. Tensors from one file of a source stay together, with at most ``shard_size`` bytes per
    file. A file that was added keeps its name. Raises HeaderError if a file has more tensors than a header may have."""
    groups: dict[SourceFile, list[PlannedTensor]] = defaultdict(list)
    for tensor in content.tensors.values():
        groups[tensor.shard].append(tensor)
    for group in groups.values():
        group.sort(key=lambda each: each.place)
    added = {file.path: group for file, group in groups.items() if file in content.added}
    parts = [part for file, group in groups.items() if file not in content.added for part in _parts(group, shard_size)]
    names = [f"model-{number:05}-of-{len(parts):05}.safetensors" for number in range(1, len(parts) + 1)]
    if len(parts) == 1 and not added:
        names = [_SINGLE]
    if clash := {_SINGLE, *names} & added.keys():
        raise safetensors_files.HeaderError(f"the added file {min(clash)} has the name of a file that the build makes")
    named = {**dict(zip(names, parts, strict=True)), **added}
    return tuple(_shard(name, tensors) for name, tensors in sorted(named.items()))


def index_of(shards: Iterable[PlannedShard], content: PlannedContent) -> bytes | None:
    """The index of the files of weights; None for a single file, which needs no index."""
    by_tensor = {name: shard.name for shard in shards for name in shard.names}
    if set(by_tensor.values()) == {_SINGLE}:
        return None
    total = sum(tensor.size for tensor in content.tensors.values())
    return safetensors_files.written_index(by_tensor, total)


def inputs_digest(
    shards: Iterable[PlannedShard], content: PlannedContent, sources: Mapping[SourceFile, str], text: str
) -> str:
    """The digest of everything that decides the bytes of the result: the pieces of each file, the identities of their
    source files, the changes to other files, and the ``text`` of the definition that is part of the result."""

    def parts() -> Iterator[object]:
        yield [_LAYOUT, text]
        for shard in shards:
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
    """Divides tensors among files of at most ``most`` bytes. A larger tensor gets its own file."""
    part: list[PlannedTensor] = []
    size = 0
    for tensor in tensors:
        if part and size + tensor.size > most:
            yield part
            part, size = [], 0
        part.append(tensor)
        size += tensor.size
    yield part


def _shard(name: str, tensors: list[PlannedTensor]) -> PlannedShard:
    beginning, begins = safetensors_files.written((tensor.name, tensor.dtype, tensor.shape) for tensor in tensors)
    pieces: list[ByteCopy] = []
    for tensor, at in zip(tensors, begins, strict=True):
        last = pieces[-1] if pieces else None
        if not tensor.size:
            continue
        if last and last.file == tensor.file and last.begin + last.size == tensor.begin:
            pieces[-1] = replace(last, size=last.size + tensor.size)
        else:
            pieces.append(ByteCopy(tensor.file, tensor.begin, tensor.size, at))
    size = len(beginning) + sum(tensor.size for tensor in tensors)
    return PlannedShard(name, beginning, tuple(pieces), size, tuple(tensor.name for tensor in tensors))
