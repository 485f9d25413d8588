"""The steps of a definition, applied to the headers of its sources: which tensors the result has, and where the bytes
of each come from. A count that is wrong, a tensor that is missing, a shape that differs is an error with the names."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from builder.checkpoints.planning import demands, selection
from builder.checkpoints.planning.tensor_table import PlannedTensor, SourceFile, StepEffect
from builder.definitions.checkpoint_steps import (
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
from builder.suggestions import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from builder.checkpoints.planning.header import StoredTensor
    from builder.checkpoints.planning.tensor_table import Operation, SourceListing

# Files beside the weights: those of other formats, and what is made anew.
_LEFT_OUT = re.compile(
    r"(?s).*\.(safetensors|safetensors\.index\.json|bin|bin\.index\.json|pt|pth|ckpt|gguf|onnx|h5|msgpack)|\.git.*|README\.md"
)


class StepError(Exception):
    """A step that cannot be done, by its place in the definition from 0 on; the text says why, with names."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.number = number
        self.message = message


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


def apply(steps: Iterable[CheckpointStep], sources: Mapping[str, SourceListing]) -> PlannedContent:
    """Applies the steps in their order. Raises StepError."""
    content = PlannedContent()
    for number, step in enumerate(steps):
        try:
            content = _apply(content, step, sources)
        except demands.RefusalError as error:
            raise StepError(number, str(error)) from None
    return content


def _apply(content: PlannedContent, step: CheckpointStep, sources: Mapping[str, SourceListing]) -> PlannedContent:
    match step:
        case TakeStep():
            return _take(content, step, sources[step.source])
        case ReplaceStep():
            return _replace(content, step, sources[step.source])
        case AddStep():
            return _add(content, step, sources[step.source])
        case CastStep():
            return _cast(content, step)
        case QuantizeStep():
            return _quantize(content, step)
        case ConfigStep():
            return _config(content, step)
        case VerifyStep():
            demands.require(step, content.tensors)
            return _with(content, "what must hold does", 0, digests={**content.digests, **step.files})


def _take(content: PlannedContent, step: TakeStep, source: SourceListing) -> PlannedContent:
    taken = [
        _planned(selection.renamed(tensor.name, step.rename), tensor, SourceFile(step.source, path))
        for path, tensor in _stored(source, step.selection)
    ]
    if not taken:
        raise demands.RefusalError(f"no tensor of {step.source} is selected")
    demands.require_count(step.expect, [tensor.name for tensor in taken], "selected")
    demands.require_new(content.tensors, taken)
    patterns = step.files if step.files is not None else () if content.tensors else ("*",)
    is_wanted = selection.matcher(patterns)
    files = {
        path: SourceFile(step.source, path)
        for path in source.others
        if is_wanted(path) and (step.files is not None or not _LEFT_OUT.fullmatch(path)) and "/" not in path
    }
    twice = sorted(files.keys() & content.files.keys())
    if twice:
        message = f"there are files of these names already: {demands.listed(twice)}; `files` selects others"
        raise demands.RefusalError(message)
    beside = f" and {len(files)} other files" if files else ""
    return _with(
        content,
        f"takes {len(taken)} tensors{beside} of {step.source}",
        len(taken),
        tensors={**content.tensors, **{tensor.name: tensor for tensor in taken}},
        files={**content.files, **files},
    )


def _replace(content: PlannedContent, step: ReplaceStep, source: SourceListing) -> PlannedContent:
    by_name = {tensor.name: (path, tensor) for path, tensor in _stored(source, TensorSelection())}
    is_companion = {name for name in by_name if name.rpartition(".")[2] in step.companions}
    selected = [(path, tensor) for path, tensor in _stored(source, step.selection) if tensor.name not in is_companion]
    matched = [(path, tensor) for path, tensor in selected if tensor.name in content.tensors]
    unmatched = [tensor.name for _, tensor in selected if tensor.name not in content.tensors]
    differing = [
        f"{tensor.name} {list(content.tensors[tensor.name].shape)} and {list(tensor.shape)}"
        for _, tensor in matched
        if tensor.shape != content.tensors[tensor.name].shape
    ]
    if differing:
        raise demands.RefusalError(f"{len(differing)} shapes differ: {demands.listed(differing)}")
    demands.require_count(step.expect, [tensor.name for _, tensor in matched], "have a counterpart")
    demands.require_count(step.unmatched, unmatched, "have no counterpart")
    if not matched:
        raise demands.RefusalError(f"none of the {len(selected)} selected tensors of {step.source} has a counterpart")
    tensors, changed, missing = dict(content.tensors), [], []
    for path, tensor in matched:
        target = content.tensors[tensor.name]
        new = replace(
            _planned(tensor.name, tensor, SourceFile(step.source, path)), shard=target.shard, place=target.place
        )
        changed.append(new)
        for order, last in enumerate(step.companions, 1):
            name = selection.sibling(tensor.name, last)
            if name not in by_name:
                missing.append(name)
                continue
            its_path, its_tensor = by_name[name]
            companion = _planned(name, its_tensor, SourceFile(step.source, its_path))
            changed.append(replace(companion, shard=target.shard, place=(*target.place, order)))
    if missing:
        raise demands.RefusalError(f"{len(missing)} companions are missing in {step.source}: {demands.listed(missing)}")
    tensors |= {tensor.name: tensor for tensor in changed}
    companions = len(changed) - len(matched)
    also = f", with {companions} companions" if companions else ""
    change = _dtype_change((content.tensors[tensor.name].dtype, tensor.dtype) for _, tensor in matched)
    left = f"; {len(unmatched)} have no counterpart" if unmatched else ""
    text = f"replaces {len(matched)} tensors by those of {step.source}{change}{also}{left}"
    return _with(content, text, len(changed), tensors=tensors)


def _add(content: PlannedContent, step: AddStep, source: SourceListing) -> PlannedContent:
    if step.file not in source.headers:
        suggestion = did_you_mean(step.file, source.headers, code=True)
        raise demands.RefusalError(f"{step.source} has no file {step.file}" + (f"; {suggestion}" if suggestion else ""))
    file = SourceFile(step.source, step.file)
    added = [_planned(tensor.name, tensor, file) for tensor in source.headers[step.file].tensors]
    demands.require_count(step.expect, [tensor.name for tensor in added], f"are in {step.file}")
    demands.require_new(content.tensors, added)
    if any(other.path == step.file for other in content.added - {file}):
        raise demands.RefusalError(f"there is an added file {step.file} already")
    text = f"adds {step.file} of {step.source} with {len(added)} tensors"
    tensors = {**content.tensors, **{tensor.name: tensor for tensor in added}}
    return _with(content, text, len(added), tensors=tensors, added=content.added | {file})


def _cast(content: PlannedContent, step: CastStep) -> PlannedContent:
    selected = _selected(content, step.selection, step.expect)
    demands.require_dtypes([*selected, *(replace(tensor, dtype=step.dtype) for tensor in selected[:1])], "cast")
    changed = [replace(tensor, dtype=step.dtype, operation="cast") for tensor in selected if tensor.dtype != step.dtype]
    change = _dtype_change((tensor.dtype, step.dtype) for tensor in selected)
    text = f"casts {len(changed)} tensors{change}"
    tensors = {**content.tensors, **{tensor.name: tensor for tensor in changed}}
    return _with(content, text, len(changed), tensors=tensors)


def _quantize(content: PlannedContent, step: QuantizeStep) -> PlannedContent:
    selected = _selected(content, step.selection, step.expect)
    demands.require_dtypes(selected, "quantize")
    vectors = [
        f"{tensor.name} {list(tensor.shape)}" for tensor in selected if len(tensor.shape) < 2 or 0 in tensor.shape
    ]
    if vectors:
        raise demands.RefusalError(f"{len(vectors)} tensors are no matrices: {demands.listed(vectors)}")
    changed, scales = [], []
    is_rows = step.kind == "int8-rows"
    weights: Operation = "int8-rows" if is_rows else "fp8-blocks"
    of_scales: Operation = "int8-rows-scale" if is_rows else "fp8-blocks-scale"
    for tensor in selected:
        *batch, rows, columns = tensor.shape
        blocks = (rows, 1) if is_rows else (-(-rows // step.block[0]), -(-columns // step.block[1]))
        common = replace(tensor, block=step.block, scale_dtype=step.scale_dtype)
        changed.append(replace(common, dtype="I8" if is_rows else "F8_E4M3", operation=weights))
        name, place = selection.sibling(tensor.name, step.scale), (*tensor.place, 1)
        shape = (*batch, *blocks)
        scales.append(replace(common, name=name, dtype=step.scale_dtype, shape=shape, operation=of_scales, place=place))
    demands.require_new(content.tensors, scales)
    text = f"quantizes {len(changed)} tensors to {step.kind}, with {len(scales)} of scales"
    new = {tensor.name: tensor for tensor in (*changed, *scales)}
    return _with(content, text, len(changed), tensors={**content.tensors, **new})


def _config(content: PlannedContent, step: ConfigStep) -> PlannedContent:
    if step.file not in content.files:
        suggestion = did_you_mean(step.file, content.files, code=True)
        raise demands.RefusalError(f"there is no file {step.file}" + (f"; {suggestion}" if suggestion else ""))
    patches = {**content.patches, step.file: (*content.patches.get(step.file, ()), step.patch)}
    keys = ", ".join(sorted(step.patch))
    return _with(content, f"changes {keys or 'nothing'} in {step.file}", 0, patches=patches)


def _with(content: PlannedContent, text: str, count: int, **changes: Any) -> PlannedContent:
    """The content after a step that does ``text`` to so many tensors."""
    return replace(content, effects=(*content.effects, StepEffect(text, count)), **changes)


def _planned(name: str, tensor: StoredTensor, file: SourceFile) -> PlannedTensor:
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


def _stored(source: SourceListing, chosen: TensorSelection) -> list[tuple[str, StoredTensor]]:
    """The selected tensors of a source, in the order of its files and of their bytes."""
    is_selected = selection.name_test(chosen)
    return [
        (path, tensor)
        for path in source.listed
        for tensor in source.headers[path].tensors
        if is_selected(tensor.name) and chosen.dtype in (None, tensor.dtype)
    ]


def _selected(content: PlannedContent, chosen: TensorSelection, expect: int | None) -> list[PlannedTensor]:
    is_selected = selection.name_test(chosen)
    selected = [
        tensor
        for tensor in content.tensors.values()
        if is_selected(tensor.name) and chosen.dtype in (None, tensor.dtype)
    ]
    demands.require_count(expect, [tensor.name for tensor in selected], "selected")
    if not selected:
        raise demands.RefusalError("no tensor is selected")
    changed = [tensor.name for tensor in selected if tensor.operation != "copy"]
    if changed:
        message = f"{len(changed)} tensors are converted by an earlier step: {demands.listed(changed)}"
        raise demands.RefusalError(message)
    return selected


def _dtype_change(pairs: Iterable[tuple[str, str]]) -> str:
    changes = sorted({f"{before} → {after}" for before, after in pairs if before != after})
    return f" ({', '.join(changes)})" if changes else ""
