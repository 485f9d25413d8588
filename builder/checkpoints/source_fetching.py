"""Fetching the files of sources on the Hub that are not here."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from builder.checkpoints.moved_bytes import MovedBytes
from builder.sources.huggingface import hub_models

if TYPE_CHECKING:
    from builder.checkpoints.checkpoint_plan import CheckpointPlan
    from builder.events import Report


def fetch(plan: CheckpointPlan, report: Report) -> None:
    """Fetches the files of the sources that are not here, into the Hugging Face cache. Raises SourceError."""
    for name, source in plan.sources.items():
        missing = {file.path for file in plan.missing if file.source == name}
        if not missing or source.snapshot is None:
            continue
        wanted = replace(source.snapshot, files=tuple(file for file in source.snapshot.files if file.path in missing))
        done = MovedBytes(report, source.snapshot.model, wanted.size)
        done.add(wanted.size - hub_models.missing_bytes(source.environ, wanted))
        hub_models.fetch(source.environ, wanted, done.add)
