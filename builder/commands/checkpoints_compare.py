"""The ``checkpoints compare`` command: a made checkpoint against a source of it, on fixed texts."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from builder.commands import stop
from builder.commands.bench import KeptOutcome
from builder.commands.shared import beside as candidates
from builder.commands.shared import measured
from builder.definitions.recipes.container import STOPPING_SECONDS
from builder.errors import ConflictError
from builder.events import Message, WaitingStarted
from builder.lock import reading
from builder.measuring import beside_source, measured_server
from builder.serving import beside, image_selection, lookup, readiness, room, source_weights, starting
from builder.serving.preparation import ServeRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.measuring.measured_server import MeasuredServer
    from builder.serving.image_selection import ServedImage
    from builder.serving.source_weights import SourceWeights
    from builder.workspace import Workspace


def run(workspace: Workspace, text: str, source: str, most_loss: float) -> KeptOutcome:
    """Serves the source of a recipe's or a model's checkpoint, then the checkpoint, each from the image that is paired;
    lets both rate the same texts, and keeps the outcome as evidence of the checkpoint, whose perplexity may be higher
    by the share ``most_loss``. An empty ``source`` is the one that its first step takes over.

    Raises ConflictError where the model is being served, as memory may not suffice for both, MeasuringError where the
    two cannot be compared, and what `source_weights.of` and `commands.run.run` do.
    """
    project = workspace.project
    lock = reading.of(project)
    selection = image_selection.select_any(project, lock, text)
    weights = source_weights.of(project, workspace.environment, lock, selection, source)
    if server := lookup.pick(project, lookup.find_all(workspace), text):
        raise ConflictError(
            f"{server.name} is being served: a checkpoint and its source are served in turn, each by itself",
            hint=f"`builder stop {server.name}` stops it; start it again afterwards",
        )
    workspace.report(Message(f"serving {weights.requested}"))
    with _serving(workspace, text, selection, weights) as of_source:
        by_source = beside_source.rate(of_source.model, "the source", workspace.report)
    workspace.report(Message(f"serving {weights.checkpoint.short}"))
    with measured.started(workspace, ServeRequest(text, {})) as of_made:
        by_made = beside_source.rate(of_made.model, "the checkpoint", workspace.report)
        outcome = beside_source.judged(by_source, by_made, weights.requested, most_loss)
        file = measured_server.keep(workspace, of_made, outcome)
    return KeptOutcome(of_made.running.name, of_made.running.image, outcome, file)


@contextmanager
def _serving(
    workspace: Workspace, text: str, selection: ServedImage, weights: SourceWeights
) -> Iterator[MeasuredServer]:
    """The source's server, for the duration of the block: a candidate's, which nobody takes for the model's own."""
    candidates.stop_left_over(workspace, weights.recipe, "which a comparison that was ended left")
    request = ServeRequest(text, {}, weights.extra)
    prepared = beside.prepare(workspace, request, replace(selection, recipe=weights.recipe))
    room.require(prepared, (), workspace.report)
    started = starting.start(prepared, workspace.environment)
    workspace.report(WaitingStarted())
    readiness.wait(workspace.project, started, workspace.report, limit=candidates.start_limit(workspace, prepared))
    try:
        yield measured_server.of(started.server)
    finally:
        stop.end(started.server, STOPPING_SECONDS)
