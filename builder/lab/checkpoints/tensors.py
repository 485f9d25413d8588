"""The steps of a definition decide which tensors a checkpoint has and where their bytes come from.

The selection of tensors comes first, then the demands of steps, the table of tensors, and the planned content.
Conversions, stored tensors, replacements and copies of tensors follow, then the steps as a whole.
A wrong count, a missing tensor or a different shape is an error with the names. No data of a tensor is read.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from fnmatch import translate
from typing import TYPE_CHECKING, Any, Literal

from builder.base.words import did_you_mean
from builder.definitions.checkpoint_definition import (
    AddStep,
    CastStep,
    CheckpointStep,
    ConfigStep,
    QuantizeStep,
    ReplaceStep,
    TakeStep,
    TensorSelection,
    VerifyStep,
)
from builder.sources.safetensors_files import DTYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from builder.sources.safetensors_files import Header, StoredTensor


# Tensors selected by patterns of their names, and names that are made of others.


def name_test(selection: TensorSelection) -> Callable[[str], bool]:
    """A test of names for a selection; its dtype is not looked at."""
    is_wanted, is_excepted = matcher(selection.patterns), matcher(selection.exceptions)
    return lambda name: is_wanted(name) and not is_excepted(name)


def matcher(patterns: Iterable[str]) -> Callable[[str], bool]:
    """A test of names that is true for those that have one of the patterns."""
    compiled = [re.compile(translate(pattern)) for pattern in patterns]
    return lambda name: any(pattern.match(name) for pattern in compiled)


def renamed(name: str, rename: Mapping[str, str]) -> str:
    """The new name by the first pattern that fits."""
    for old, new in rename.items():
        head, star, tail = old.partition("*")
        if not star and name == old:
            return new
        if star and name.startswith(head) and name.endswith(tail) and len(name) >= len(head) + len(tail):
            return new.replace("*", name[len(head) : len(name) - len(tail)], 1)
    return name


def sibling(name: str, last: str) -> str:
    """The tensor beside ``name`` whose last part is ``last``."""
    head, dot, _ = name.rpartition(".")
    return f"{head}{dot}{last}"


# Demands that a step makes, and the refusal, with the names, where they are not met.

FLOATS = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")
"""The dtypes that `cast` converts between and `quantize` takes."""

_MOST_NAMES = 5


class RefusalError(Exception):
    """The reason why a step cannot be done."""


def require_count(expected: int | None, names: list[str], what: str) -> None:
    """Raises RefusalError where another number of tensors is expected."""
    if expected is not None and len(names) != expected:
        which = f": {listed(names)}" if names else ""
        raise RefusalError(f"{len(names)} tensors {what}, and {expected} are expected{which}")


def require_new(tensors: Mapping[str, PlannedTensor], new: Iterable[PlannedTensor]) -> None:
    """Raises RefusalError where names are there already, or twice."""
    counts = Counter(tensor.name for tensor in new)
    twice = [name for name, count in counts.items() if count > 1 or name in tensors]
    if twice:
        raise RefusalError(f"{len(twice)} names are there already: {listed(twice)}")


def require_dtypes(tensors: Iterable[PlannedTensor], what: str) -> None:
    """Raises RefusalError for tensors of numbers that no step converts."""
    others = [f"{tensor.name} ({tensor.dtype})" for tensor in tensors if tensor.dtype not in FLOATS]
    if others:
        raise RefusalError(f"`{what}` takes {', '.join(FLOATS)}; {len(others)} are none of these: {listed(others)}")


def listed(names: Iterable[str]) -> str:
    """The first of some names, for messages."""
    every = list(names)
    more = f" and {len(every) - _MOST_NAMES} more" if len(every) > _MOST_NAMES else ""
    return f"{', '.join(every[:_MOST_NAMES])}{more}"


def require(step: VerifyStep, by_name: Mapping[str, PlannedTensor]) -> None:
    """Raises RefusalError with everything that a `verify` step demands of the tensors and that does not hold."""
    tensors = by_name.values()
    wrong = []
    if step.tensors not in (None, len(tensors)):
        wrong.append(f"there are {len(tensors)} tensors, and not {step.tensors}")
    size = sum(tensor.bytes for tensor in tensors)
    if step.size not in (None, size):
        wrong.append(f"they have {size} bytes, and not {step.size}")
    for pattern, count in step.counts.items():
        number = sum(map(matcher((pattern,)), by_name))
        if number != count:
            wrong.append(f"{number} have a name like {pattern}, and not {count}")
    for dtype, count in step.dtypes.items():
        number = sum(tensor.dtype == dtype for tensor in tensors)
        if number != count:
            wrong.append(f"{number} are {dtype}, and not {count}")
    for pattern, shape in step.shapes.items():
        matching = [tensor for name, tensor in by_name.items() if matcher((pattern,))(name)]
        others = [f"{tensor.name} {list(tensor.shape)}" for tensor in matching if tensor.shape != shape]
        if not matching or others:
            what = f"these are not {list(shape)}: {listed(others)}" if others else f"none has a name like {pattern}"
            wrong.append(what)
    if wrong:
        raise RefusalError("; ".join(wrong))


# The tensors of a checkpoint while its steps are planned: by name, each with where its bytes come from.

Operation = Literal["copy", "cast", "int8-rows", "int8-rows-scale", "fp8-blocks", "fp8-blocks-scale"]


@dataclass(frozen=True, order=True)
class SourceFile:
    """A file of one of the sources, by the source's name in the definition."""

    source: str
    path: str


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor of the result. Its bytes come from ``size`` bytes at ``begin`` of ``file``, which hold numbers of
    ``stored_dtype`` and the shape ``stored_shape``, by ``operation``. The tensors of a ``shard`` of a source stay
    together, in the order of ``place``."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: SourceFile
    begin: int
    size: int
    stored_dtype: str
    stored_shape: tuple[int, ...]
    shard: SourceFile
    place: tuple[int, ...]
    operation: Operation = "copy"
    block: tuple[int, int] = (0, 0)
    scale_dtype: str = ""

    @property
    def bytes(self) -> int:
        """The bytes that it takes in the result."""
        count = DTYPES[self.dtype]
        for extent in self.shape:
            count *= extent
        return count


@dataclass(frozen=True)
class StepEffect:
    """The effect of a step, for the user: what it does in a line, and how many tensors it is about."""

    text: str
    tensors: int


@dataclass(frozen=True)
class SourceListing:
    """A source as far as planning needs it: the headers of its files of weights, by path, the files that its index
    lists (all where it has none), and by path the size of every other file."""

    headers: Mapping[str, Header]
    listed: tuple[str, ...]
    others: Mapping[str, int] = field(default_factory=dict)


# All that the steps of a definition give, as it is after each of them.


@dataclass(frozen=True)
class PlannedContent:
    """All that the steps give: tensors by name, the files whose tensors were added as a whole, other files and where
    they come from, the changes to JSON files, digests that files must have, and what each step does."""

    tensors: Mapping[str, PlannedTensor] = field(default_factory=dict)
    added: frozenset[SourceFile] = frozenset()
    files: Mapping[str, SourceFile] = field(default_factory=dict)
    patches: Mapping[str, tuple[Mapping[str, Any], ...]] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)
    effects: tuple[StepEffect, ...] = ()


def after(content: PlannedContent, text: str, count: int, **changes: Any) -> PlannedContent:
    """The content after a step that does ``text`` to so many tensors."""
    return replace(content, effects=(*content.effects, StepEffect(text, count)), **changes)


def dtype_change(pairs: Iterable[tuple[str, str]]) -> str:
    """The dtypes that change, before and after, for the text of a step; empty where none does."""
    changes = sorted({f"{before} → {after}" for before, after in pairs if before != after})
    return f" ({', '.join(changes)})" if changes else ""


# The steps that compute tensors from those that are there: casts and quantizations.


def cast(content: PlannedContent, step: CastStep) -> PlannedContent:
    """Converts the selected tensors to another dtype. Raises RefusalError."""
    selected = _selected(content, step.selection, step.expect)
    require_dtypes([*selected, *(replace(tensor, dtype=step.dtype) for tensor in selected[:1])], "cast")
    changed = [replace(tensor, dtype=step.dtype, operation="cast") for tensor in selected if tensor.dtype != step.dtype]
    change = dtype_change((tensor.dtype, step.dtype) for tensor in selected)
    text = f"casts {len(changed)} tensors{change}"
    tensors = {**content.tensors, **{tensor.name: tensor for tensor in changed}}
    return after(content, text, len(changed), tensors=tensors)


def quantize(content: PlannedContent, step: QuantizeStep) -> PlannedContent:
    """Quantizes the selected matrices, with a tensor of scales beside each. Raises RefusalError."""
    selected = _selected(content, step.selection, step.expect)
    require_dtypes(selected, "quantize")
    vectors = [
        f"{tensor.name} {list(tensor.shape)}" for tensor in selected if len(tensor.shape) < 2 or 0 in tensor.shape
    ]
    if vectors:
        raise RefusalError(f"{len(vectors)} tensors are no matrices: {listed(vectors)}")
    changed, scales = [], []
    is_rows = step.kind == "int8-rows"
    weights: Operation = "int8-rows" if is_rows else "fp8-blocks"
    of_scales: Operation = "int8-rows-scale" if is_rows else "fp8-blocks-scale"
    for tensor in selected:
        *batch, rows, columns = tensor.shape
        blocks = (rows, 1) if is_rows else (-(-rows // step.block[0]), -(-columns // step.block[1]))
        common = replace(tensor, block=step.block, scale_dtype=step.scale_dtype)
        changed.append(replace(common, dtype="I8" if is_rows else "F8_E4M3", operation=weights))
        name, place = sibling(tensor.name, step.scale), (*tensor.place, 1)
        shape = (*batch, *blocks)
        scales.append(replace(common, name=name, dtype=step.scale_dtype, shape=shape, operation=of_scales, place=place))
    require_new(content.tensors, scales)
    text = f"quantizes {len(changed)} tensors to {step.kind}, with {len(scales)} of scales"
    new = {tensor.name: tensor for tensor in (*changed, *scales)}
    return after(content, text, len(changed), tensors={**content.tensors, **new})


def _selected(content: PlannedContent, chosen: TensorSelection, expect: int | None) -> list[PlannedTensor]:
    is_selected = name_test(chosen)
    selected = [
        tensor
        for tensor in content.tensors.values()
        if is_selected(tensor.name) and chosen.dtype in (None, tensor.dtype)
    ]
    require_count(expect, [tensor.name for tensor in selected], "selected")
    if not selected:
        raise RefusalError("no tensor is selected")
    changed = [tensor.name for tensor in selected if tensor.operation != "copy"]
    if changed:
        message = f"{len(changed)} tensors are converted by an earlier step: {listed(changed)}"
        raise RefusalError(message)
    return selected


# The tensors of a source, as they are stored, chosen and turned into tensors of the result.


def stored(source: SourceListing, chosen: TensorSelection) -> list[tuple[str, StoredTensor]]:
    """The selected tensors of a source, in the order of its files and of their bytes."""
    is_selected = name_test(chosen)
    return [
        (path, tensor)
        for path in source.listed
        for tensor in source.headers[path].tensors
        if is_selected(tensor.name) and chosen.dtype in (None, tensor.dtype)
    ]


def planned(name: str, tensor: StoredTensor, file: SourceFile) -> PlannedTensor:
    """A tensor of the result that is a stored one as it is, called ``name``."""
    return PlannedTensor(
        name=name,
        dtype=tensor.dtype,
        shape=tensor.shape,
        file=file,
        begin=tensor.begin,
        size=tensor.size,
        stored_dtype=tensor.dtype,
        stored_shape=tensor.shape,
        shard=file,
        place=(tensor.begin,),
    )


# The step that puts tensors of a source in the place of those with the same name and shape.


def replace_tensors(content: PlannedContent, step: ReplaceStep, source: SourceListing) -> PlannedContent:
    """Replaces tensors, with their companions, at the places that they have. Raises RefusalError."""
    by_name = {tensor.name: (path, tensor) for path, tensor in stored(source, TensorSelection())}
    is_companion = {name for name in by_name if name.rpartition(".")[2] in step.companions}
    selected = [(path, tensor) for path, tensor in stored(source, step.selection) if tensor.name not in is_companion]
    matched = [(path, tensor) for path, tensor in selected if tensor.name in content.tensors]
    unmatched = [tensor.name for _, tensor in selected if tensor.name not in content.tensors]
    differing = [
        f"{tensor.name} {list(content.tensors[tensor.name].shape)} and {list(tensor.shape)}"
        for _, tensor in matched
        if tensor.shape != content.tensors[tensor.name].shape
    ]
    if differing:
        raise RefusalError(f"{len(differing)} shapes differ: {listed(differing)}")
    require_count(step.expect, [tensor.name for _, tensor in matched], "have a counterpart")
    require_count(step.unmatched, unmatched, "have no counterpart")
    if not matched:
        raise RefusalError(f"none of the {len(selected)} selected tensors of {step.source} has a counterpart")
    tensors, changed, missing = dict(content.tensors), [], []
    for path, tensor in matched:
        target = content.tensors[tensor.name]
        new = dataclasses.replace(
            planned(tensor.name, tensor, SourceFile(step.source, path)), shard=target.shard, place=target.place
        )
        changed.append(new)
        for order, last in enumerate(step.companions, 1):
            name = sibling(tensor.name, last)
            if name not in by_name:
                missing.append(name)
                continue
            its_path, its_tensor = by_name[name]
            companion = planned(name, its_tensor, SourceFile(step.source, its_path))
            changed.append(dataclasses.replace(companion, shard=target.shard, place=(*target.place, order)))
    if missing:
        raise RefusalError(f"{len(missing)} companions are missing in {step.source}: {listed(missing)}")
    tensors |= {tensor.name: tensor for tensor in changed}
    companions = len(changed) - len(matched)
    also = f", with {companions} companions" if companions else ""
    change = dtype_change((content.tensors[tensor.name].dtype, tensor.dtype) for _, tensor in matched)
    left = f"; {len(unmatched)} have no counterpart" if unmatched else ""
    text = f"replaces {len(matched)} tensors by those of {step.source}{change}{also}{left}"
    return after(content, text, len(changed), tensors=tensors)


# The steps that take over tensors: those selected of a source with its other files, or a file as a whole.

# Files beside the weights: those of other formats, and what is made anew.
_LEFT_OUT = re.compile(
    r"(?s).*\.(safetensors|safetensors\.index\.json|bin|bin\.index\.json|pt|pth|ckpt|gguf|onnx|h5|msgpack)|\.git.*|README\.md"
)


def take_tensors(content: PlannedContent, step: TakeStep, source: SourceListing) -> PlannedContent:
    """Takes over the selected tensors of a source, and other files of it. Raises RefusalError."""
    taken = [
        planned(renamed(tensor.name, step.rename), tensor, SourceFile(step.source, path))
        for path, tensor in stored(source, step.selection)
    ]
    if not taken:
        raise RefusalError(f"no tensor of {step.source} is selected")
    require_count(step.expect, [tensor.name for tensor in taken], "selected")
    require_new(content.tensors, taken)
    patterns = step.files if step.files is not None else () if content.tensors else ("*",)
    is_wanted = matcher(patterns)
    files = {
        path: SourceFile(step.source, path)
        for path in source.others
        if is_wanted(path) and (step.files is not None or not _LEFT_OUT.fullmatch(path)) and "/" not in path
    }
    twice = sorted(files.keys() & content.files.keys())
    if twice:
        message = f"there are files of these names already: {listed(twice)}; `files` selects others"
        raise RefusalError(message)
    beside = f" and {len(files)} other files" if files else ""
    return after(
        content,
        f"takes {len(taken)} tensors{beside} of {step.source}",
        len(taken),
        tensors={**content.tensors, **{tensor.name: tensor for tensor in taken}},
        files={**content.files, **files},
    )


def add_tensors(content: PlannedContent, step: AddStep, source: SourceListing) -> PlannedContent:
    """Takes over a whole file of a source, with the names in its own header, unless the result already has such
    tensors. Raises RefusalError."""
    is_excluding = matcher(step.unless)
    if present := [name for name in content.tensors if is_excluding(name)]:
        return after(content, f"adds nothing of {step.source}: {len(present)} such tensors are already there", 0)
    if step.file not in source.headers:
        suggestion = did_you_mean(step.file, source.headers, code=True)
        raise RefusalError(f"{step.source} has no file {step.file}" + (f"; {suggestion}" if suggestion else ""))
    file = SourceFile(step.source, step.file)
    added = [planned(tensor.name, tensor, file) for tensor in source.headers[step.file].tensors]
    require_count(step.expect, [tensor.name for tensor in added], f"are in {step.file}")
    require_new(content.tensors, added)
    if any(other.path == step.file for other in content.added - {file}):
        raise RefusalError(f"there is an added file {step.file} already")
    text = f"adds {step.file} of {step.source} with {len(added)} tensors"
    tensors = {**content.tensors, **{tensor.name: tensor for tensor in added}}
    return after(content, text, len(added), tensors=tensors, added=content.added | {file})


# The steps of a definition, applied to the headers of its sources: which tensors the result has, and where the bytes
# of each come from. A count that is wrong, a tensor that is missing, a shape that differs is an error with the names.


class StepError(Exception):
    """A step that cannot be done, by its place in the definition from 0 on; the text says why, with names."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.number = number
        self.message = message


def apply_step(steps: Iterable[CheckpointStep], sources: Mapping[str, SourceListing]) -> PlannedContent:
    """Applies the steps in their order. Raises StepError."""
    content = PlannedContent()
    for number, step in enumerate(steps):
        try:
            content = _apply(content, step, sources)
        except RefusalError as error:
            raise StepError(number, str(error)) from None
    return content


def _apply(content: PlannedContent, step: CheckpointStep, sources: Mapping[str, SourceListing]) -> PlannedContent:
    match step:
        case TakeStep():
            return take_tensors(content, step, sources[step.source])
        case ReplaceStep():
            return replace_tensors(content, step, sources[step.source])
        case AddStep():
            return add_tensors(content, step, sources[step.source])
        case CastStep():
            return cast(content, step)
        case QuantizeStep():
            return quantize(content, step)
        case ConfigStep():
            return _config(content, step)
        case VerifyStep():
            require(step, content.tensors)
            text = "verifies the result, whose tensors are as required"
            return after(content, text, 0, digests={**content.digests, **step.files})


def _config(content: PlannedContent, step: ConfigStep) -> PlannedContent:
    if step.file not in content.files:
        suggestion = did_you_mean(step.file, content.files, code=True)
        raise RefusalError(f"there is no file {step.file}" + (f"; {suggestion}" if suggestion else ""))
    patches = {**content.patches, step.file: (*content.patches.get(step.file, ()), step.patch)}
    keys = ", ".join(sorted(step.patch))
    return after(content, f"changes {keys or 'nothing'} in {step.file}", 0, patches=patches)
