"""The digests of what was made, against those that a definition demands and those on record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.errors import ConflictError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.checkpoints.checkpoint_plan import CheckpointPlan
    from builder.checkpoints.record import CheckpointRevision, RecordedFile


def require_demanded(plan: CheckpointPlan, files: Mapping[str, RecordedFile]) -> None:
    """Raises ConflictError for files that have other digests than `verify` of the definition demands."""
    wrong = [
        f"SHA-256 of {name} is {(files[name].digest or '').removeprefix('sha256:')}, and not {digest}"
        for name, digest in plan.content.digests.items()
        if files[name].digest != f"sha256:{digest}"
    ]
    if wrong:
        message = f"{plan.definition.file}: the files are not those that `verify` demands: {'; '.join(wrong)}"
        raise ConflictError(message, hint="the files stay until a build succeeds: correct `verify`, or the sources")


def require_recorded(
    plan: CheckpointPlan, files: Mapping[str, RecordedFile], recorded: Mapping[str, CheckpointRevision]
) -> None:
    """Raises ConflictError where the same inputs are recorded with other content."""
    for before in recorded.values():
        others = sorted(name for name in files if files[name].digest != before.files.get(name, files[name]).digest)
        if before.inputs == plan.inputs and others:
            raise ConflictError(
                f"checkpoints.lock records other content for the same inputs: {', '.join(others[:5])} differ",
                hint="a disk or a source is damaged, or the record is: `builder checkpoints verify --full` compares",
            )
