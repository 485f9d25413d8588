"""The probe command: checks a served model by probes, built in and of the project."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.commands.bench import KeptOutcome
from builder.commands.shared import measured
from builder.measuring import measured_server, probing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from builder.workspace import Workspace


def run(workspace: Workspace, text: str, wanted: Sequence[str], image: str = "") -> Iterator[KeptOutcome]:
    """Runs the probes called ``wanted``, or where none is named all of them, and keeps each result as
    evidence; yields it when it is there. A server that runs is used, else one is started for all of them
    and stopped; from the number ``image`` where one is given.

    Raises UsageError for a probe that there is not, MeasuringError where one cannot take place, and what
    `commands.run.run` does.
    """
    project = workspace.project
    chosen = tuple(dict.fromkeys(wanted)) or probing.names(project)
    for name in chosen:
        probing.require(project, name)
    with measured.chosen(workspace, text, image) as server:
        for name in chosen:
            outcome = probing.probe(project, server.model, name, workspace.environment, workspace.report)
            file = measured_server.keep(workspace, server, outcome)
            yield KeptOutcome(server.running.name, server.running.image, outcome, file)
