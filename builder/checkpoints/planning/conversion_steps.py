"""The steps that compute tensors from those that are there: casts and quantizations."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from builder.checkpoints.planning import demands, selection
from builder.checkpoints.planning.planned_content import after, dtype_change

if TYPE_CHECKING:
    from builder.checkpoints.planning.planned_content import PlannedContent
    from builder.checkpoints.planning.tensor_table import Operation, PlannedTensor
    from builder.definitions.checkpoint_steps import CastStep, QuantizeStep, TensorSelection


def cast(content: PlannedContent, step: CastStep) -> PlannedContent:
    """Converts the selected tensors to another dtype. Raises RefusalError."""
    selected = _selected(content, step.selection, step.expect)
    demands.require_dtypes([*selected, *(replace(tensor, dtype=step.dtype) for tensor in selected[:1])], "cast")
    changed = [replace(tensor, dtype=step.dtype, operation="cast") for tensor in selected if tensor.dtype != step.dtype]
    change = dtype_change((tensor.dtype, step.dtype) for tensor in selected)
    text = f"casts {len(changed)} tensors{change}"
    tensors = {**content.tensors, **{tensor.name: tensor for tensor in changed}}
    return after(content, text, len(changed), tensors=tensors)


def quantize(content: PlannedContent, step: QuantizeStep) -> PlannedContent:
    """Quantizes the selected matrices, with a tensor of scales beside each. Raises RefusalError."""
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
    return after(content, text, len(changed), tensors={**content.tensors, **new})


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
