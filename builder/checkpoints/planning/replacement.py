"""The step that puts tensors of a source in the place of those with the same name and shape."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from builder.checkpoints.planning import demands, selection
from builder.checkpoints.planning.planned_content import after, dtype_change
from builder.checkpoints.planning.stored_tensors import planned, stored
from builder.checkpoints.planning.tensor_table import SourceFile
from builder.definitions.checkpoint_steps import TensorSelection

if TYPE_CHECKING:
    from builder.checkpoints.planning.planned_content import PlannedContent
    from builder.checkpoints.planning.tensor_table import SourceListing
    from builder.definitions.checkpoint_steps import ReplaceStep


def replace(content: PlannedContent, step: ReplaceStep, source: SourceListing) -> PlannedContent:
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
        raise demands.RefusalError(f"{len(differing)} shapes differ: {demands.listed(differing)}")
    demands.require_count(step.expect, [tensor.name for _, tensor in matched], "have a counterpart")
    demands.require_count(step.unmatched, unmatched, "have no counterpart")
    if not matched:
        raise demands.RefusalError(f"none of the {len(selected)} selected tensors of {step.source} has a counterpart")
    tensors, changed, missing = dict(content.tensors), [], []
    for path, tensor in matched:
        target = content.tensors[tensor.name]
        new = dataclasses.replace(
            planned(tensor.name, tensor, SourceFile(step.source, path)), shard=target.shard, place=target.place
        )
        changed.append(new)
        for order, last in enumerate(step.companions, 1):
            name = selection.sibling(tensor.name, last)
            if name not in by_name:
                missing.append(name)
                continue
            its_path, its_tensor = by_name[name]
            companion = planned(name, its_tensor, SourceFile(step.source, its_path))
            changed.append(dataclasses.replace(companion, shard=target.shard, place=(*target.place, order)))
    if missing:
        raise demands.RefusalError(f"{len(missing)} companions are missing in {step.source}: {demands.listed(missing)}")
    tensors |= {tensor.name: tensor for tensor in changed}
    companions = len(changed) - len(matched)
    also = f", with {companions} companions" if companions else ""
    change = dtype_change((content.tensors[tensor.name].dtype, tensor.dtype) for _, tensor in matched)
    left = f"; {len(unmatched)} have no counterpart" if unmatched else ""
    text = f"replaces {len(matched)} tensors by those of {step.source}{change}{also}{left}"
    return after(content, text, len(changed), tensors=tensors)
