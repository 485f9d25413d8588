"""The steps of a definition, applied to the headers of its sources: which tensors the result has, and where the bytes
of each come from. A count that is wrong, a tensor that is missing, a shape that differs is an error with the names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.checkpoints.planning import conversion_steps, demands, replacement, source_taking
from builder.checkpoints.planning.planned_content import PlannedContent, after
from builder.definitions.checkpoint_steps import (
    AddStep,
    CastStep,
    CheckpointStep,
    ConfigStep,
    QuantizeStep,
    ReplaceStep,
    TakeStep,
    VerifyStep,
)
from builder.suggestions import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from builder.checkpoints.planning.tensor_table import SourceListing


class StepError(Exception):
    """A step that cannot be done, by its place in the definition from 0 on; the text says why, with names."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.number = number
        self.message = message


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
            return source_taking.take(content, step, sources[step.source])
        case ReplaceStep():
            return replacement.replace(content, step, sources[step.source])
        case AddStep():
            return source_taking.add(content, step, sources[step.source])
        case CastStep():
            return conversion_steps.cast(content, step)
        case QuantizeStep():
            return conversion_steps.quantize(content, step)
        case ConfigStep():
            return _config(content, step)
        case VerifyStep():
            demands.require(step, content.tensors)
            text = "verifies the result, whose tensors are as required"
            return after(content, text, 0, digests={**content.digests, **step.files})


def _config(content: PlannedContent, step: ConfigStep) -> PlannedContent:
    if step.file not in content.files:
        suggestion = did_you_mean(step.file, content.files, code=True)
        raise demands.RefusalError(f"there is no file {step.file}" + (f"; {suggestion}" if suggestion else ""))
    patches = {**content.patches, step.file: (*content.patches.get(step.file, ()), step.patch)}
    keys = ", ".join(sorted(step.patch))
    return after(content, f"changes {keys or 'nothing'} in {step.file}", 0, patches=patches)
