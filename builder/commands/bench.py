"""The bench command: measures a served model by a profile, and two numbers of it against each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.commands.shared import measured
from builder.definitions import configuration
from builder.errors import ConflictError
from builder.events import Message
from builder.measuring import alternation, bench, measured_server
from builder.serving import lookup

if TYPE_CHECKING:
    from pathlib import Path

    from builder.definitions.bench_profile import BenchProfile
    from builder.lock.model import ImageName
    from builder.measuring.alternation import ComparedNumbers
    from builder.measuring.outcome import Outcome
    from builder.workspace import Workspace


@dataclass(frozen=True)
class KeptOutcome:
    """A measurement of a server, and the file of evidence that keeps it; None where its image has no number."""

    server: str
    image: str
    outcome: Outcome
    file: Path | None


def run(workspace: Workspace, text: str, profile_name: str, image: str = "") -> KeptOutcome:
    """Measures the server called ``text``, a recipe or a model, and keeps the result as evidence. A server that runs is
    used, else one is started for it and stopped; from the number ``image`` where one is given.

    Raises UsageError for a profile that there is not, MeasuringError where nothing could be measured, and what
    `commands.run.run` does.
    """
    profile = configuration.load(workspace.project).profile(profile_name)
    with measured.chosen(workspace, text, image) as server:
        outcome = measure(workspace, server, profile)
        file = measured_server.keep(workspace, server, outcome)
        return KeptOutcome(server.running.name, server.running.image, outcome, file)


def compare(workspace: Workspace, text: str, pair: tuple[str, str], profile_name: str) -> ComparedNumbers:
    """Serves two numbers of a recipe or a model in turn until the profile tells them apart, or that they do not differ;
    keeps what was measured of each.

    Raises ConflictError where the model is being served, as memory may not suffice for both, and what `run` does.
    """
    project = workspace.project
    profile = configuration.load(project).profile(profile_name)
    first, second = (measured.numbered(workspace, text, name) for name in pair)
    if server := lookup.pick(project, lookup.find_all(workspace), text):
        raise ConflictError(
            f"{server.name} is being served: two numbers are measured in turn, each by itself",
            hint=f"`builder stop {server.name}` stops it; start it again afterwards",
        )

    def measure_number(image: ImageName) -> Outcome:
        with measured.of_number(workspace, text, image) as server:
            outcome = measure(workspace, server, profile)
            measured_server.keep(workspace, server, outcome)
            return outcome

    return alternation.compare(first, second, measure_number, workspace.report)


def measure(workspace: Workspace, server: measured_server.MeasuredServer, profile: BenchProfile) -> Outcome:
    """Measures a server by a profile; keeps nothing. Raises what `bench.bench` does."""
    subject = measured_server.subject(workspace, server, "bench")
    if subject is None:
        workspace.report(Message(f"{server.running.image} has no number: what is measured is shown, and not kept"))
    return bench.bench(
        server.model,
        profile,
        workspace.environment,
        workspace.report,
        revision=subject.revision if subject else None,
        member=server.running.head,
    )
