"""The evidence of a candidate, for `upgrade`: its proof, and what is measured of its server where that is required."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from builder.commands import bench, prove, run, stop
from builder.commands.shared import beside as shared
from builder.commands.shared import measured
from builder.definitions import configuration
from builder.definitions.recipes.container import STOPPING_SECONDS
from builder.errors import MeasuringError
from builder.evidence import beside_current, requirements, standing, store
from builder.lock import reading
from builder.measuring import measured_server, probing
from builder.serving import beside

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from builder.definitions.bench_profile import BenchProfile
    from builder.definitions.required_evidence import RequiredFigure
    from builder.evidence.requirements import MissingEvidence
    from builder.lock.model import ImageName
    from builder.measuring.measured_server import MeasuredServer
    from builder.serving.preparation import ServeRequest
    from builder.workspace import Workspace


def proof(workspace: Workspace, name: ImageName, model: str, recipe: str) -> tuple[str, ...]:
    """Proves ``name`` for a model, unless that is done; returns what is broken."""
    latest = standing.latest(
        [each for each in store.of_image(workspace.project, name) if each.subject.model == model and not each.foreign],
        "prove",
    )
    lock = reading.of(workspace.project)
    lacking = requirements.missing(workspace.project, lock, name, model, environ=workspace.environment)
    if latest is None or any(each.kind == "prove" for each in lacking):
        (proved,) = prove.run(workspace, str(name), (recipe,))
        latest = proved.evidence
    if latest.verdict != "fail":
        return ()
    return tuple(f"{finding.check} at {finding.at}: {_first_line(finding.text)}" for finding in latest.findings[:3])


def figures_in_turn(workspace: Workspace, name: ImageName, model: str) -> tuple[RequiredFigure, ...]:
    """The figures of which another round of ``name`` and of the current image tells more."""
    lock = reading.of(workspace.project)
    return requirements.figures_in_turn(workspace.project, lock, name, model, workspace.environment)


def measure_current(workspace: Workspace, model: str, figures: Sequence[RequiredFigure]) -> str:
    """Measures ``figures`` of the image that serves ``model`` now: its server is used, or one is started for that.
    Returns why that failed, and nothing where it did not. A failure is not kept: an upgrade judges its candidate, and
    not the current image."""
    for profile in _profiles(workspace, figures):
        with measured.running_or_started(workspace, model) as server:
            outcome = bench.measure(workspace, server, profile)
            if outcome.verdict == "fail":
                reason = requirements.first_finding(outcome.findings, outcome.verdict)
                return f"{server.running.image}, the current image, failed the bench {profile.name} as well{reason}"
            measured_server.keep(workspace, server, outcome)
    return ""


def probe(workspace: Workspace, name: ImageName, model: str, server: MeasuredServer) -> bool:
    """Runs the probes that ``model`` requires and ``name`` lacks against its server, keeps the results, and tells
    whether all of them passed."""
    lacking = [each.name for each in missing(workspace, name, model) if each.kind == "probe"]
    for each in lacking:
        probing.require(workspace.project, each)
        outcome = probing.probe(workspace.project, server.model, each, workspace.environment, workspace.report)
        measured_server.keep(workspace, server, outcome)
        if outcome.verdict != "pass":
            return False
    return True


def measure(
    workspace: Workspace, name: ImageName, model: str, server: MeasuredServer, also: Sequence[RequiredFigure]
) -> bool:
    """Measures on the server of ``name`` the figures that ``model`` requires and it lacks, and those of ``also``, keeps
    the results, and tells whether the server held out."""
    lacking = {each.name for each in missing(workspace, name, model) if each.kind == "bench"}
    wanted = [each for each in _figures(workspace, name, model) if each in also or each.figure in lacking]
    for profile in _profiles(workspace, wanted):
        outcome = bench.measure(workspace, server, profile)
        measured_server.keep(workspace, server, outcome)
        if outcome.verdict == "fail":
            return False
    return True


@contextmanager
def served(workspace: Workspace, name: ImageName, request: ServeRequest) -> Iterator[MeasuredServer]:
    """The candidate's server for as long as it is measured: beside the model's own where the memory suffices, else in
    its place, under a name and port of its own in either case. The model's own server is not started again here; the
    engine does it if the machine starts anew."""
    prepared = beside.prepare(workspace, request, name)
    shared.make_room(workspace, request.text, prepared)
    limit = shared.start_limit(workspace, prepared)
    result = run.serve(workspace, request, prepared, detach=False, limit=limit)
    try:
        yield measured_server.of(result.server)
    finally:
        stop.end(result.server, STOPPING_SECONDS)


def missing(workspace: Workspace, name: ImageName, model: str) -> tuple[MissingEvidence, ...]:
    """Whatever ``name`` lacks of the evidence that ``model`` requires."""
    lock = reading.of(workspace.project)
    return requirements.missing(workspace.project, lock, name, model, environ=workspace.environment)


def reasons(workspace: Workspace, name: ImageName, models: Sequence[str]) -> tuple[str, ...]:
    """The reasons that keep ``name`` from being paired with ``models``: the evidence that it lacks."""
    return tuple(str(each) for model in models for each in missing(workspace, name, model))


def _figures(workspace: Workspace, name: ImageName, model: str) -> tuple[RequiredFigure, ...]:
    lock = reading.of(workspace.project)
    recipe = requirements.recipe_of(workspace.project, lock, name, model)
    return requirements.required(workspace.project, model, recipe).figures


def _profiles(workspace: Workspace, figures: Sequence[RequiredFigure]) -> tuple[BenchProfile, ...]:
    """The fewest bench profiles that measure all of ``figures``, the shortest that does for each. Raises MeasuringError
    where none measures one of them."""
    chosen: dict[str, BenchProfile] = {}
    every = sorted(configuration.load(workspace.project).bench, key=_length)
    for figure in figures:
        suitable = [profile for profile in every if _measures(profile, figure)]
        if not suitable:
            raise MeasuringError(
                f"no profile of `builder bench` measures {figure.figure}",
                hint="write one with that depth and concurrency under `bench:` into builder.yaml",
            )
        profile = next((profile for profile in suitable if profile.name in chosen), suitable[0])
        chosen[profile.name] = profile
    return tuple(chosen.values())


def _length(profile: BenchProfile) -> tuple[int, int]:
    runs = len(profile.pp) * len(profile.tg) * len(profile.concurrency) * profile.runs
    return runs * len(profile.depth), runs * sum(profile.depth)


def _measures(profile: BenchProfile, figure: RequiredFigure) -> bool:
    depths = figure.depth is None or figure.depth in profile.depth
    return depths and (figure.concurrency or 1) in profile.concurrency and profile.runs >= beside_current.LEAST_SAMPLES


def _first_line(text: str) -> str:
    return text.splitlines()[0] if text else ""
