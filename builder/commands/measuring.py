"""The bench, probe and prove commands: they measure a served model, or prove an image without serving it.

They use a running server, or start one for the measurement. Other commands try candidates in the same way.
"""

from __future__ import annotations

import functools
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.base import words
from builder.base.errors import ConflictError, NothingToDoError, UsageError
from builder.base.events import Message, WaitingStarted
from builder.base.values import dataclass, replace
from builder.building import work_folder
from builder.commands import servers
from builder.definitions import build_target, configuration, recipe
from builder.definitions.container import STOPPING_SECONDS
from builder.engine import containers
from builder.evidence import run_record, standing
from builder.lab.measure import bench, measurement, probes
from builder.lab.prove import judging, prove
from builder.lock import lock_file
from builder.lock.model import ImageName, Lock
from builder.numbers import adopted, status
from builder.serving import preparation, readiness, running, selection, server_log, starting
from builder.serving.preparation import PreparedServer, ServeRequest

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.definitions.configuration import BenchProfile
    from builder.definitions.recipe import Recipe
    from builder.lab.measure.measurement import ComparedNumbers, Outcome
    from builder.numbers.workspace import Workspace


@dataclass(frozen=True)
class KeptOutcome:
    """A measurement of a server, and its file of evidence (None if the image has no number)."""

    server: str
    image: str
    outcome: Outcome
    file: Path | None

    @property
    def figures(self) -> list[dict[str, Any]]:
        """The figures as data for programs, with mean and spread."""
        return list(map(run_record.figure_document, self.outcome.figures))


def run_bench(workspace: Workspace, text: str, profile_name: str, image: str = "") -> KeptOutcome:
    """Measures the server of ``text``, a recipe or a model, and records the result as evidence. If no server runs, or
    if the number ``image`` is given, a server is started and stopped again. Raises UsageError for an unknown profile,
    MeasuringError if nothing could be measured, and the errors of a start."""
    profile = configuration.load_configuration(workspace.project).profile(profile_name)
    with chosen_server(workspace, text, image) as server:
        outcome = measure_server(workspace, server, profile)
        file = measurement.keep_run(workspace, server, outcome)
        return KeptOutcome(server.running.name, server.running.image, outcome, file)


def compare_bench(workspace: Workspace, text: str, pair: tuple[str, str], profile_name: str) -> ComparedNumbers:
    """Serves two numbers in turn until the profile shows a difference, or that there is none. Records every run. Raises
    ConflictError if the model is being served, because the memory may not suffice, and the errors of a start."""
    project = workspace.project
    profile = configuration.load_configuration(project).profile(profile_name)
    first, second = (numbered(workspace, text, name) for name in pair)
    if server := running.pick(project, running.find_all(workspace), text):
        # The memory may not suffice for another server.
        hint = f"`builder stop {server.name}` stops it; start it again afterwards"
        raise ConflictError(f"{server.name} is running, but a comparison measures each number alone", hint=hint)
    chosen: dict[ImageName, Mapping[str, tuple[str, ...]]] = {}

    def measure_number(image: ImageName) -> Outcome:
        with started(workspace, ServeRequest(text, {}, image=image)) as server:
            chosen[image] = readiness.chosen_by(server.running)
            outcome = measure_server(workspace, server, profile)
            measurement.keep_run(workspace, server, outcome)
            return outcome

    compared = measurement.compare_alternating(first, second, measure_number, workspace.report)
    return replace(compared, chosen=server_log.choice_changes(chosen.get(first, {}), chosen.get(second, {})))


def measure_server(workspace: Workspace, server: measurement.MeasuredServer, profile: BenchProfile) -> Outcome:
    """Measures a server by a profile, without recording the result. Raises the errors of `bench.measure_bench`."""
    subject = measurement.subject(workspace, server, "bench")
    if subject is None:
        tried = " and ".join(server.running.tried)
        why = (
            f"{server.running.name} applies {tried} only on trial" if tried else f"{server.running.image} has no number"
        )
        workspace.report(Message(f"{why}: the result is shown, but not recorded"))
    environ, report, revision = workspace.environment, workspace.report, subject.revision if subject else None
    return bench.measure_bench(server.model, profile, environ, report, revision=revision, member=server.running.head)


def run_probes(workspace: Workspace, text: str, wanted: Sequence[str], image: str = "") -> Iterator[KeptOutcome]:
    """Runs the probes ``wanted``, or all probes, and records and yields each result. The server of `chosen_server`
    serves all probes. Raises UsageError for an unknown probe, MeasuringError if a probe cannot run, and the errors of a
    start."""
    project = workspace.project
    chosen = tuple(dict.fromkeys(wanted)) or probes.names(project)
    for name in chosen:
        probes.require(project, name)
    with chosen_server(workspace, text, image) as server:
        for name in chosen:
            outcome = probes.run_probe(project, server.model, name, workspace.environment, workspace.report)
            file = measurement.keep_run(workspace, server, outcome)
            yield KeptOutcome(server.running.name, server.running.image, outcome, file)


# A server for the time of a measurement.


@contextmanager
def chosen_server(workspace: Workspace, text: str, image: str = "") -> Iterator[measurement.MeasuredServer]:
    """Yields the running server of ``text``, a recipe or a model, or starts one and stops it at the end. With
    ``image``, starts a server of that number, even if another number is paired."""
    server = None if image else running.pick(workspace.project, running.find_all(workspace), text)
    if server is not None and server.head.service.is_up:
        yield measurement.find_measured_server(server)
        return
    request = ServeRequest(text, {}, image=numbered(workspace, text, image) if image else None)
    with started(workspace, request) as measured:
        yield measured


def numbered(workspace: Workspace, text: str, image: str) -> ImageName:
    """The numbered image called ``image``, which may be only a number. Raises UsageError."""
    lock = lock_file.read_project_lock(workspace.project)
    repository = selection.select_any(workspace.project, lock, text).recipe.repository
    full = f"{repository}:{image}" if image.isdecimal() else image
    if ":" not in full:
        raise UsageError(f"`{image}` is not a numbered image", hint=f"name a number, such as {repository}:1")
    name, _ = status.named_number(workspace.project, lock, full)
    return name


@contextmanager
def started(workspace: Workspace, request: ServeRequest) -> Iterator[measurement.MeasuredServer]:
    """Starts a server, and stops it at the end unless it was already running."""
    result = servers.run_server(workspace, request, detach=False)
    try:
        yield measurement.find_measured_server(result.server)
    finally:
        if not result.already:
            server = result.server
            workspace.report(Message(f"stopping {server.name}, which was started for this command"))
            if servers.end_server(server).killed:
                workspace.report(Message(f"{server.name} did not end within {STOPPING_SECONDS} s, and was killed"))


# A candidate is an image that serves a recipe beside the model's own server, or in its place. Afterwards the model's
# own server runs again. Every command that tries an image uses these functions.


@contextmanager
def candidate_server(
    workspace: Workspace, request: ServeRequest, image: ImageName | selection.ServedImage
) -> Iterator[running.RunningServer]:
    """Serves ``image``, a number or an image selected with its recipe, during the block: beside the model's own server
    if the memory suffices for both, otherwise in its place. `serve_again` starts the model's own server afterwards.
    Raises ServeFailedError if the candidate does not answer in time, ConflictError if the memory does not suffice."""
    prepared, started, limit = start_candidate(workspace, request, image)
    workspace.report(WaitingStarted())
    seconds = readiness.wait_until_ready(workspace, started, limit=limit)
    try:
        if isinstance(image, ImageName):
            servers.record_answer(workspace, prepared.selection, seconds, started)
        yield started.server
    finally:
        servers.end_server(started.server)


def start_candidate(
    workspace: Workspace, request: ServeRequest, image: ImageName | selection.ServedImage
) -> tuple[PreparedServer, starting.StartedServer, float]:
    """Starts the server of a candidate beside the model's own server, or in its place. Returns the preparation, the
    server, and the time limit of the start in seconds. Raises ConflictError if the memory does not suffice."""
    prepared = preparation.prepare_candidate(workspace, request, image)
    make_room(workspace, request.text, prepared)
    lock = lock_file.read_project_lock(workspace.project)
    limit = readiness.start_limit(workspace.project, lock, prepared.selection.recipe.model)
    return prepared, starting.start_server(prepared, workspace.environment, workspace.report), limit


def server_of(workspace: Workspace, recipe: Recipe | None) -> running.RunningServer | None:
    """The server of the recipe on this engine or on nodes, or None."""
    return running.pick(workspace.project, running.find_all(workspace), recipe.file) if recipe else None


def request_as_before(workspace: Workspace, recipe: Recipe) -> ServeRequest:
    """The request that started the model's server, read from its container, which still exists while a candidate takes
    its place. Without a container, a plain request."""
    server = server_of(workspace, recipe)
    return servers.as_before(server.labels if server else {}, ServeRequest(recipe.file, {}))


def make_room(workspace: Workspace, text: str, prepared: PreparedServer) -> None:
    """Stops the model's own server if the memory does not suffice for both. The engine starts it again if the machine
    restarts."""
    own = running.pick(workspace.project, running.find_all(workspace), text)
    if own is None:
        starting.require_room(workspace, prepared, ())
    elif not starting.fits_beside(workspace, prepared):
        starting.require_room(workspace, prepared, tuple(member.service for member in own.members))
        workspace.report(Message(f"stopping {own.name}: there is not enough memory for both servers"))
        for member in own.members:
            containers.halt_container(member.engine, member.service.id, STOPPING_SECONDS)


def serve_again(workspace: Workspace, recipe: Recipe, *, detach: bool = False) -> None:
    """Starts the model's own server again unless it runs, with the settings of its container or else its recipe."""
    server = server_of(workspace, recipe)
    if server and server.head.service.is_up:
        return
    serving = f"{server.name} again, from {server.image}" if server else f"{recipe.name} again, as {recipe.file} says"
    workspace.report(Message(f"starting {serving}"))
    request = servers.as_before(server.labels if server else {}, ServeRequest(recipe.file, {}))
    try:
        servers.restart_server(workspace, request, detach=detach)
    except KeyboardInterrupt:
        servers.restart_server(workspace, request, detach=True)
        raise


# The prove command checks the templates and parsers of an image without a GPU and without weights.


def prove_image(workspace: Workspace, image: str, models: Sequence[str] = ()) -> tuple[run_record.ProvedImage, ...]:
    """Proves the numbered image called ``image`` for ``models``, or for all models that are paired with it, and records
    the result. Raises UsageError for an unknown image or model, ImageStateError if the engine lacks the recorded image,
    ImageContentsError for an image that cannot be proven, FileProblemsError for a bad recipe or damaged evidence."""
    project = workspace.project
    lock = lock_file.read_project_lock(project)
    name, record = status.named_number(project, lock, image)
    pairings = tuple(_pairings(workspace, lock, name, models))
    adopted.require_present(workspace.engine, name, record)
    run_record.of_image(project, name)
    find = functools.partial(judging.find_reference, project, lock, name.repository, name.number)
    subject = run_record.Subject(str(name), record.fingerprint)
    work_folder.remove_stale(workspace)
    with work_folder.create(workspace, name.repository, {}) as work:
        proofs = prove.prove_models(workspace, str(name), subject, pairings, find, work.labels)
    return tuple(run_record.keep_proof(project, name, proof) for proof in proofs)


def accept_changes(
    project: Project, image: str, models: Sequence[str], note: str
) -> tuple[run_record.ProvedImage, ...]:
    """Accepts the changes that the last proof of each model found: later proofs are compared with them. Raises
    UsageError for a model without a proof or with a failed proof, NothingToDoError if no proof found changes."""
    name, _ = status.named_number(project, lock_file.read_project_lock(project), image)
    runs = run_record.of_image(project, name)
    wanted = tuple(models) or tuple(dict.fromkeys(run.subject.model or "" for run in runs if run.kind == "prove"))
    latest = {model: standing.latest([run for run in runs if run.subject.model == model], "prove") for model in wanted}
    missing = [model for model, run in latest.items() if run is None]
    if missing or not latest:
        which = f" for {', '.join(missing)}" if missing else ""
        proves = f"`builder prove {shlex.join((str(name), *missing))}` proves it"
        raise UsageError(f"{name} was not proven{which}", hint=proves)
    if failed := [model for model, run in latest.items() if run and run.verdict == "fail"]:
        message = f"the proof of {name} failed for {', '.join(failed)}: a failure cannot be accepted"
        raise UsageError(message, hint=f"`builder prove {name} {shlex.join(failed)}` shows what failed")
    changed = [run for run in latest.values() if run and run.verdict == "changed"]
    if not changed:
        raise NothingToDoError(f"the last proof of {name} found no changes")
    accepted = [replace(run, verdict="pass", accepted=note, started=words.now()) for run in changed]
    return tuple(
        run_record.ProvedImage(name, run, project.relative(run_record.add_run(project, name, run))) for run in accepted
    )


def _pairings(workspace: Workspace, lock: Lock, name: ImageName, texts: Sequence[str]) -> Iterator[prove.ProvedPairing]:
    """The models of ``texts``, which name models or recipes, with their recipes. Empty ``texts`` mean all models that
    the image serves. Raises UsageError if there is no model, or a named model has no recipe."""
    project, is_any = workspace.project, False
    for text in texts or lock.models_on(name):
        model = text
        if text in lock.models:
            # The recipe with which this image serves the model, or else the recipe that serves the model now.
            pairing = standing.pairing_of(lock, name, text) or lock.models[text].pairing
            path = recipe.recorded(project, pairing.recipe)
            used = recipe.load_recipe(project, path) if path else None
        elif used := build_target.find_target(project, text, lock.models).recipe:
            model = used.model or used.name
        else:
            raise UsageError(f"`{text}` is an image definition; only a recipe or a model can be proven")
        if used:
            is_any = True
            subject = standing.present_subject(
                project, lock, name, model, "prove", recipe=used, environ=workspace.environment
            )
            yield prove.ProvedPairing(model, subject.revision, used)
        elif texts:
            raise UsageError(f"no recipe says how to serve {text}", hint="name a recipe instead of the model")
        else:
            workspace.report(Message(f"{model} is not proven: no recipe says how {name} serves it"))
    if not is_any:
        hint = f"`builder prove {name} RECIPE` proves it for a recipe; `builder pair MODEL {name}` pairs a model"
        raise UsageError(f"{name} is not paired with a model that has a recipe", hint=hint)
