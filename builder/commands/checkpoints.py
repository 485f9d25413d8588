"""The checkpoints commands make, list, compare and verify checkpoints.

The build comes first, then compare, list, plan, show and verify.
The plan reads only the headers of the sources, and writes nothing.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.base import words
from builder.base.errors import BuilderError, ConflictError, SourceError, UsageError
from builder.base.events import Message, TransferProgress, WaitingStarted
from builder.base.words import did_you_mean
from builder.commands import measuring as candidates
from builder.commands import servers
from builder.commands.measuring import KeptOutcome
from builder.definitions import checkpoint_definition
from builder.definitions.container import STOPPING_SECONDS
from builder.lab.checkpoints import conversion, planning
from builder.lab.measure import beside_source, served_model
from builder.lock import checkpoints_lock, lock_file
from builder.lock.checkpoints_lock import CheckpointName
from builder.serving import beside, checkpoint_weights, readiness, running, starting
from builder.serving.preparation import ServeRequest
from builder.serving.selection import select_any
from builder.sources import safetensors_files
from builder.sources.safetensors_files import HeaderError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from builder.definitions.checkpoint_definition import CheckpointDefinition
    from builder.lab.checkpoints.planning import CheckpointPlan
    from builder.lab.measure.served_model import MeasuredServer
    from builder.lock.checkpoints_lock import CheckpointRecords, CheckpointRevision, RecordedFile, ResultPlace
    from builder.numbers.workspace import Workspace
    from builder.serving.checkpoint_weights import SourceWeights
    from builder.serving.selection import ServedImage


# The ``checkpoints build`` command: makes the weights of a definition, and records what came of it.

# Left free: other programs write to this disk meanwhile.
_SPARE = 1_000_000_000


@dataclass(frozen=True)
class BuiltCheckpoint:
    """A checkpoint that was made, or was there already (``seconds`` is None then). ``size`` is in bytes."""

    name: CheckpointName
    folder: Path
    size: int
    tensors: int
    seconds: float | None


def build_checkpoint(workspace: Workspace, name: str, *, update: bool = False) -> BuiltCheckpoint:
    """Makes the checkpoint called ``name``, unless it is there with the same inputs; with ``update`` the revisions of
    its sources are looked up anew. What an earlier run finished is not made again.

    Raises what `checkpoint_plan.make` and `making.make` do, UsageError where a package for its steps is not installed,
    and SourceError where the disk has too little room.
    """
    project, environ = workspace.project, workspace.environment
    definition = checkpoint_definition.load_checkpoint(project, name)
    records = checkpoints_lock.read_checkpoints_lock(project)
    plan = planning.make_checkpoint_plan(project, environ, definition, records, workspace.report, update=update)
    place = checkpoints_lock.result_place(project, environ, definition.name, definition.folder)
    recorded = records.checkpoints.get(definition.name, {})
    for revision, made in recorded.items():
        if made.inputs == plan.inputs and place.has(revision):
            with checkpoints_lock.checkpoints_transaction(project) as transaction:
                transaction.add(definition.name, revision, made)
            conversion.forget_this(plan, place)
            return BuiltCheckpoint(
                CheckpointName(definition.name, revision), place.folder(revision), made.size, made.tensors, None
            )
    conversion.require_packages(plan.content.tensors.values())
    finished = conversion.finished(plan, place)
    _require_room(plan, place, finished)
    conversion.fetch_source(plan, workspace.report)
    began = time.monotonic()
    workspace.report(Message(f"making {definition.name}: {words.size_text(plan.size)} in {len(plan.shards)} files"))
    revision, made = conversion.make_checkpoint(plan, place, recorded, workspace.report)
    seconds = time.monotonic() - began
    # Before the record: with that the next build has nothing to do, and what a kill leaves here would stay.
    conversion.record_speed(project, made.size - finished, seconds)
    with checkpoints_lock.checkpoints_transaction(project) as transaction:
        transaction.add(definition.name, revision, made)
    conversion.forget_result(place)
    return BuiltCheckpoint(
        CheckpointName(definition.name, revision), place.folder(revision), made.size, made.tensors, seconds
    )


def _require_room(plan: CheckpointPlan, place: ResultPlace, finished: int) -> None:
    disk = next(folder for folder in (place.root, *place.root.parents) if folder.exists())
    free = shutil.disk_usage(disk).free
    needed = plan.size + plan.fetched - finished
    if needed + _SPARE > free:
        raise SourceError(
            f"{plan.definition.name} takes {words.size_text(needed)}, and {disk} has {words.size_text(free)} free",
            hint="make room, or name a folder on a larger disk: `output: {folder: PATH}`, or HF_HOME for all models",
        )


# The ``checkpoints compare`` command: a made checkpoint against a source of it, on fixed texts.


def compare_checkpoint(workspace: Workspace, text: str, source: str, most_loss: float) -> KeptOutcome:
    """Serves the source of a recipe's or a model's checkpoint, then the checkpoint, each from the image that is paired;
    lets both rate the same texts, and keeps the outcome as evidence of the checkpoint, whose perplexity may be higher
    by the share ``most_loss``. An empty ``source`` is the one that its first step takes over.

    Raises ConflictError where the model is being served, as memory may not suffice for both, MeasuringError where the
    two cannot be compared, and what `source_weights.of` and `commands.run.run` do.
    """
    project = workspace.project
    lock = lock_file.read_project_lock(project)
    selection = select_any(project, lock, text)
    weights = checkpoint_weights.source_weights_of(project, workspace.environment, lock, selection, source)
    if server := running.pick(project, running.find_all(workspace), text):
        raise ConflictError(
            f"{server.name} is being served: a checkpoint and its source are served in turn, each by itself",
            hint=f"`builder stop {server.name}` stops it; start it again afterwards",
        )
    workspace.report(Message(f"serving {weights.requested}"))
    with _serving(workspace, text, selection, weights) as of_source:
        by_source = beside_source.rate_texts(of_source.model, "the source", workspace.report)
    workspace.report(Message(f"serving {weights.checkpoint.short}"))
    with candidates.started(workspace, ServeRequest(text, {})) as of_made:
        by_made = beside_source.rate_texts(of_made.model, "the checkpoint", workspace.report)
        outcome = beside_source.judged(by_source, by_made, weights.requested, most_loss)
        file = served_model.keep_run(workspace, of_made, outcome)
    return KeptOutcome(of_made.running.name, of_made.running.image, outcome, file)


@contextmanager
def _serving(
    workspace: Workspace, text: str, selection: ServedImage, weights: SourceWeights
) -> Iterator[MeasuredServer]:
    """The source's server, for the duration of the block: a candidate's, which nobody takes for the model's own."""
    candidates.stop_left_over(workspace, weights.recipe, "which a comparison that was ended left")
    request = ServeRequest(text, {}, weights.extra)
    prepared = beside.prepare(workspace, request, replace(selection, recipe=weights.recipe))
    starting.require_room(prepared, (), workspace.report)
    started = starting.start_server(prepared, workspace.environment)
    workspace.report(WaitingStarted())
    readiness.wait_until_ready(
        workspace.project, started, workspace.report, limit=candidates.start_limit(workspace, prepared)
    )
    try:
        yield served_model.find_measured_server(started.server)
    finally:
        servers.end_server(started.server, STOPPING_SECONDS)


# The ``checkpoints list`` and ``show`` commands: what is defined, what was made, and what is here.


@dataclass(frozen=True)
class ListedRevision:
    """A revision that was made; ``folder`` is where it is on this machine, None where it is not."""

    revision: str
    record: CheckpointRevision
    folder: Path | None


@dataclass(frozen=True)
class ListedCheckpoint:
    """A checkpoint that is defined or was made, with its revisions, the latest first. ``problem`` says what is wrong
    with the definition."""

    name: str
    definition: CheckpointDefinition | None
    revisions: tuple[ListedRevision, ...]
    problem: str = ""

    @property
    def size_here(self) -> int:
        """The bytes of the revisions on this machine; what they share is counted for each."""
        return sum(each.record.size for each in self.revisions if each.folder)


def list_checkpoints(workspace: Workspace) -> tuple[ListedCheckpoint, ...]:
    """All checkpoints, by name. Raises LockError for a damaged checkpoints.lock."""
    records = checkpoints_lock.read_checkpoints_lock(workspace.project)
    names = sorted({*checkpoint_definition.checkpoint_names(workspace.project), *records.checkpoints})
    return tuple(_listed(workspace, name) for name in names)


def _listed(workspace: Workspace, name: str) -> ListedCheckpoint:
    definition, problem = None, ""
    if name in checkpoint_definition.checkpoint_names(workspace.project):
        try:
            definition = checkpoint_definition.load_checkpoint(workspace.project, name)
        except BuilderError as error:
            problem = error.message
    revisions = []
    made = checkpoints_lock.read_checkpoints_lock(workspace.project).checkpoints.get(name, {})
    for revision, record in sorted(made.items(), key=lambda item: -item[1].sequence):
        place = checkpoints_lock.result_place(workspace.project, workspace.environment, name, record.folder)
        folder = place.folder(revision) if place.has(revision) else None
        revisions.append(ListedRevision(revision, record, folder))
    return ListedCheckpoint(name, definition, tuple(revisions), problem)


# The ``checkpoints plan`` command: tells what a build would do, from the headers of the sources alone.


@dataclass(frozen=True)
class CheckpointOutlook:
    """The outlook of a build: its plan, the ``folder`` that the result gets, the bytes that are ``free`` and that are
    ``needed`` there, the ``seconds`` that it takes without fetching, and ``made``, the revision if it is there
    already."""

    plan: CheckpointPlan
    folder: str
    free: int
    needed: int
    seconds: float
    made: str | None


def plan_checkpoint(workspace: Workspace, name: str, *, update: bool = False) -> CheckpointOutlook:
    """Plans the checkpoint called ``name``; with ``update`` the revisions of its sources are looked up anew. Changes
    nothing. Raises what `checkpoint.load` and `checkpoint_plan.make` do."""
    definition = checkpoint_definition.load_checkpoint(workspace.project, name)
    records = checkpoints_lock.read_checkpoints_lock(workspace.project)
    plan = planning.make_checkpoint_plan(
        workspace.project, workspace.environment, definition, records, workspace.report, update=update
    )
    try:
        conversion.require_packages(plan.content.tensors.values())
    except UsageError as error:  # the plan holds all the same
        workspace.report(Message(f"{error.message}; {error.hint}"))
    place = checkpoints_lock.result_place(workspace.project, workspace.environment, definition.name, definition.folder)
    revisions = records.checkpoints.get(definition.name, {})
    made = next((each for each, made in revisions.items() if made.inputs == plan.inputs and place.has(each)), None)
    disk = next(folder for folder in (place.root, *place.root.parents) if folder.exists())
    needed = 0 if made else plan.size + plan.fetched
    seconds = 0.0 if made else plan.size / conversion.expected_speed(workspace.project)
    return CheckpointOutlook(plan, str(place.root), shutil.disk_usage(disk).free, needed, seconds, made)


# The ``checkpoints show`` command: everything about one checkpoint.


def show_checkpoint(workspace: Workspace, name: str) -> ListedCheckpoint:
    """The checkpoint called ``name``. Raises UsageError where it is neither defined nor recorded."""
    for listed in list_checkpoints(workspace):
        if listed.name == name:
            return listed
    checkpoint_definition.load_checkpoint(workspace.project, name)
    raise UsageError(f"no checkpoint is called `{name}`")


# The ``checkpoints verify`` command: compares what is on the disk with checkpoints.lock.

_CHUNK = 8 << 20


@dataclass(frozen=True)
class VerifiedCheckpoint:
    """A revision as it was compared: what is wrong, a line for each file; ``is_here`` is False where it is not on this
    machine."""

    name: str
    revision: str
    folder: Path
    files: int
    is_here: bool
    problems: tuple[str, ...]


def verify_checkpoints(workspace: Workspace, name: str | None, *, full: bool) -> tuple[VerifiedCheckpoint, ...]:
    """Compares the latest revision of a checkpoint, or of all, with the record: sizes, the headers of weights, the
    other files whole and the index; with ``full`` every byte. Raises UsageError for one that is not recorded."""
    records = checkpoints_lock.read_checkpoints_lock(workspace.project)
    results = []
    for each in recorded_names(records, name):
        revision = records.current(each) or ""
        record = records.checkpoints[each][revision]
        place = checkpoints_lock.result_place(workspace.project, workspace.environment, each, record.folder)
        folder, is_here = place.folder(revision), place.has(revision)
        total = record.size if full else 0
        done = 0

        def count(size: int, each: str = each, total: int = total) -> None:
            nonlocal done
            done += size
            if total:
                workspace.report(TransferProgress(each, done, total))

        problems = tuple(_problems(folder, record, count, full=full)) if is_here else ()
        results.append(VerifiedCheckpoint(each, revision, folder, len(record.files), is_here, problems))
    return tuple(results)


def recorded_names(records: CheckpointRecords, name: str | None) -> tuple[str, ...]:
    """The checkpoints that were made: all of them, or the one called ``name``. Raises UsageError where it was not."""
    if name is None:
        return tuple(sorted(records.checkpoints))
    if name not in records.checkpoints:
        suggestion = did_you_mean(name, records.checkpoints, code=True)
        raise UsageError(
            f"checkpoints.lock has no `{name}`" + (f"; {suggestion}" if suggestion else ""),
            hint=f"`builder checkpoints build {name}` makes it",
        )
    return (name,)


def _problems(folder: Path, record: CheckpointRevision, count: Callable[[int], None], *, full: bool) -> Iterator[str]:
    names: dict[str, str] = {}
    for name, file in record.files.items():
        try:
            problem = _problem(folder / name, name, file, names, count, full=full)
        except OSError as error:
            problem = error.strerror or str(error)
        except HeaderError as error:
            problem = str(error)
        if problem:
            yield f"{name}: {problem}"
    if further := sorted({path.name for path in folder.iterdir()} - record.files.keys()):
        yield f"there are other files: {', '.join(further)}"
    yield from _index_problems(folder, names)


def _problem(
    path: Path,
    name: str,
    file: RecordedFile,
    names: dict[str, str],
    count: Callable[[int], None],
    *,
    full: bool,
) -> str:
    """The difference between a file and its record, empty where there is none; ``names`` gets the tensors in it."""
    with planning.open_file(path) as opened:
        size = planning.state_of(opened).size
        if size != file.size:
            return f"it has {size:,} bytes, and {file.size:,} are recorded"
        if file.header:
            text = opened.read(safetensors_files.length(opened.read(safetensors_files.PREFIX), size))
            if f"sha256:{hashlib.sha256(text).hexdigest()}" != file.header:
                return "its header is another one"
            names.update({tensor.name: name for tensor in safetensors_files.parse_header(text, size).tensors})
        if full or not file.header:
            opened.seek(0)
            digest = hashlib.sha256()
            while content := opened.read(_CHUNK):
                digest.update(content)
                count(len(content))
            if f"sha256:{digest.hexdigest()}" != file.digest:
                return "its content is another one"
    return ""


def _index_problems(folder: Path, names: Mapping[str, str]) -> Iterator[str]:
    """Differences between the index and the headers, which a loader would trip over."""
    path = folder / safetensors_files.NAME
    if not path.is_file():
        return
    try:
        listed = safetensors_files.parse_index(path.read_bytes())
    except HeaderError as error:
        yield f"{safetensors_files.NAME}: {error}"
        return
    if different := sorted(name for name in listed.keys() | names.keys() if listed.get(name) != names.get(name)):
        more = len(different) - 1
        yield f"{safetensors_files.NAME}: {json.dumps(different[0])} and {more} more are not where it says"
