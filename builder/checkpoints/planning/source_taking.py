"""The steps that take over tensors: those selected of a source with its other files, or a file as a whole."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from builder.checkpoints.planning import demands, selection
from builder.checkpoints.planning.planned_content import after
from builder.checkpoints.planning.stored_tensors import planned, stored
from builder.checkpoints.planning.tensor_table import SourceFile
from builder.suggestions import did_you_mean

if TYPE_CHECKING:
    from builder.checkpoints.planning.planned_content import PlannedContent
    from builder.checkpoints.planning.tensor_table import SourceListing
    from builder.definitions.checkpoint_steps import AddStep, TakeStep

# Files beside the weights: those of other formats, and what is made anew.
_LEFT_OUT = re.compile(
    r"(?s).*\.(safetensors|safetensors\.index\.json|bin|bin\.index\.json|pt|pth|ckpt|gguf|onnx|h5|msgpack)|\.git.*|README\.md"
)


def take(content: PlannedContent, step: TakeStep, source: SourceListing) -> PlannedContent:
    """Takes over the selected tensors of a source, and other files of it. Raises RefusalError."""
    taken = [
        planned(selection.renamed(tensor.name, step.rename), tensor, SourceFile(step.source, path))
        for path, tensor in stored(source, step.selection)
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
    return after(
        content,
        f"takes {len(taken)} tensors{beside} of {step.source}",
        len(taken),
        tensors={**content.tensors, **{tensor.name: tensor for tensor in taken}},
        files={**content.files, **files},
    )


def add(content: PlannedContent, step: AddStep, source: SourceListing) -> PlannedContent:
    """Takes over a whole file of a source, with the names in its own header, unless the result already has such
    tensors. Raises RefusalError."""
    is_excluding = selection.matcher(step.unless)
    if present := [name for name in content.tensors if is_excluding(name)]:
        return after(content, f"adds nothing of {step.source}: {len(present)} such tensors are already there", 0)
    if step.file not in source.headers:
        suggestion = did_you_mean(step.file, source.headers, code=True)
        raise demands.RefusalError(f"{step.source} has no file {step.file}" + (f"; {suggestion}" if suggestion else ""))
    file = SourceFile(step.source, step.file)
    added = [planned(tensor.name, tensor, file) for tensor in source.headers[step.file].tensors]
    demands.require_count(step.expect, [tensor.name for tensor in added], f"are in {step.file}")
    demands.require_new(content.tensors, added)
    if any(other.path == step.file for other in content.added - {file}):
        raise demands.RefusalError(f"there is an added file {step.file} already")
    text = f"adds {step.file} of {step.source} with {len(added)} tensors"
    tensors = {**content.tensors, **{tensor.name: tensor for tensor in added}}
    return after(content, text, len(added), tensors=tensors, added=content.added | {file})
