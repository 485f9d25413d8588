"""The checkpoints commands make, list and verify checkpoints."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from builder.base import files, words
from builder.base.errors import BuilderError, SourceError, UsageError
from builder.base.events import Message
from builder.base.values import dataclass
from builder.definitions import checkpoint_definition
from builder.lab.checkpoints import conversion, planning
from builder.lock import checkpoints_lock
from builder.sources.safetensors_files import PREFIX, HeaderError, length

if TYPE_CHECKING:
    from builder.lock.checkpoints_lock import CheckpointRevision, RecordedFile, ResultPlace
    from builder.numbers.workspace import Workspace

_SPARE = 1_000_000_000  # Kept free, because other programs also write to this disk.
_CHUNK = 8 << 20


@dataclass(frozen=True)
class CheckpointOutlook:
    """The plan of a build, the ``folder`` of its result, and the bytes ``free`` and ``needed`` there. ``seconds`` is
    the time without downloads. ``made`` is the revision if it already exists."""

    plan: planning.CheckpointPlan
    folder: str
    free: int
    needed: int
    seconds: float
    made: str | None


def plan_checkpoint(workspace: Workspace, name: str, *, update: bool = False) -> CheckpointOutlook:
    """Plans the checkpoint called ``name`` from the headers of its sources, and changes nothing. With ``update``, it
    looks up their revisions again. Raises the errors of `load_checkpoint` and `make_checkpoint_plan`."""
    plan, place, _, made = _plan(workspace, name, update=update)
    needed = 0 if made else plan.size + plan.fetched
    seconds = 0.0 if made else plan.size / conversion.BYTES_PER_SECOND
    free = shutil.disk_usage(files.nearest_existing(place.root)).free
    return CheckpointOutlook(plan, str(place.root), free, needed, seconds, made)


@dataclass(frozen=True)
class BuiltCheckpoint:
    """A checkpoint that was made or already existed. ``seconds`` is None if it existed. ``size`` is in bytes."""

    name: checkpoints_lock.CheckpointName
    folder: Path
    size: int
    tensors: int
    seconds: float | None


def build_checkpoint(workspace: Workspace, name: str, *, update: bool = False) -> BuiltCheckpoint:
    """Makes the checkpoint called ``name``, unless it already exists with the same inputs, and records it. Reuses the
    files that an earlier run finished. Raises the errors of `make_checkpoint_plan` and `make_checkpoint`, and
    SourceError if the disk has too little space."""
    plan, place, recorded, revision = _plan(workspace, name, update=update)
    checkpoint, seconds = plan.definition.name, None
    if revision:
        made = recorded[revision]
    else:
        finished = conversion.finished_size(plan, place)
        needed, disk = plan.size + plan.fetched - finished, files.nearest_existing(place.root)
        if needed + _SPARE > (free := shutil.disk_usage(disk).free):
            message = f"{checkpoint} needs {words.size_text(needed)}, but {disk} has only {words.size_text(free)} free"
            hint = "free some space, or use a larger disk: `output: {folder: PATH}` in checkpoint.yaml, or HF_HOME"
            raise SourceError(message, hint=hint)
        conversion.fetch_source(plan, workspace.report)
        began = time.monotonic()
        workspace.report(Message(f"making {checkpoint}: {words.size_text(plan.size)} in {len(plan.shards)} files"))
        revision, made = conversion.make_checkpoint(plan, place, recorded, workspace.report)
        seconds = time.monotonic() - began
    checkpoints_lock.record_checkpoint(workspace.project, checkpoint, revision, made)
    conversion.forget_unfinished(place, plan.inputs if seconds is None else "")
    checkpoint_name = checkpoints_lock.CheckpointName(checkpoint, revision)
    return BuiltCheckpoint(checkpoint_name, place.folder(revision), made.size, made.tensors, seconds)


def _plan(
    workspace: Workspace, name: str, *, update: bool
) -> tuple[planning.CheckpointPlan, ResultPlace, Mapping[str, CheckpointRevision], str | None]:
    """The plan, the place of its result, the recorded revisions, and the revision with the same inputs if it exists and
    is not damaged."""
    project, environ = workspace.project, workspace.environment
    definition = checkpoint_definition.load_checkpoint(project, name)
    records = checkpoints_lock.read_checkpoints_lock(project)
    plan = planning.make_checkpoint_plan(project, environ, definition, records, workspace.report, update=update)
    place = checkpoints_lock.result_place(project, environ, definition.name, definition.folder)
    recorded = records.checkpoints.get(definition.name, {})
    alike = [(each, made.files) for each, made in recorded.items() if made.inputs == plan.inputs]
    whole = next((each for each, made in alike if conversion.is_whole(place.folder(each), made)), None)
    return plan, place, recorded, whole


# The ``list`` and ``show`` commands: checkpoints that are defined, were made, or are on this machine.


@dataclass(frozen=True)
class ListedRevision:
    """A recorded revision; ``folder`` is its place on this machine, or None."""

    revision: str
    record: CheckpointRevision
    folder: Path | None


@dataclass(frozen=True)
class ListedCheckpoint:
    """A checkpoint that is defined or recorded, its latest revision first. ``problem`` is an error in its
    definition."""

    name: str
    definition: checkpoint_definition.CheckpointDefinition | None
    revisions: tuple[ListedRevision, ...]
    problem: str = ""

    @property
    def size_here(self) -> int:
        """The bytes of the revisions on this machine. Files that revisions share are counted for each revision."""
        return sum(each.record.size for each in self.revisions if each.folder)


def list_checkpoints(workspace: Workspace) -> tuple[ListedCheckpoint, ...]:
    """All checkpoints, by name. Raises LockError for a damaged checkpoints.lock."""
    project, records = workspace.project, checkpoints_lock.read_checkpoints_lock(workspace.project)
    defined, listed = checkpoint_definition.checkpoint_names(project), []
    for name in sorted({*defined, *records.checkpoints}):
        definition, problem = None, ""
        try:
            definition = checkpoint_definition.load_checkpoint(project, name) if name in defined else None
        except BuilderError as error:
            problem = error.message
        revisions = []
        for revision, record in sorted(records.checkpoints.get(name, {}).items(), key=lambda item: -item[1].sequence):
            place = checkpoints_lock.result_place(project, workspace.environment, name, record.folder)
            folder = place.folder(revision) if place.has(revision) else None
            revisions.append(ListedRevision(revision, record, folder))
        listed.append(ListedCheckpoint(name, definition, tuple(revisions), problem))
    return tuple(listed)


def show_checkpoint(workspace: Workspace, name: str) -> ListedCheckpoint:
    """The checkpoint called ``name``. Raises UsageError if it is neither defined nor recorded."""
    listed = {each.name: each for each in list_checkpoints(workspace)}
    return listed.get(name) or listed[checkpoint_definition.load_checkpoint(workspace.project, name).name]


# The ``verify`` command: compares the files on the disk with checkpoints.lock.


@dataclass(frozen=True)
class VerifiedCheckpoint:
    """The ``problems`` of a revision, one line for each file; ``is_here`` is False if this machine lacks the
    revision."""

    name: str
    revision: str
    folder: Path
    files: int
    is_here: bool
    problems: tuple[str, ...]


def verify_checkpoints(workspace: Workspace, name: str | None, *, full: bool) -> tuple[VerifiedCheckpoint, ...]:
    """Compares the latest revision of one checkpoint, or of all, with the record: sizes, headers and small files; with
    ``full``, every byte. Raises UsageError if the checkpoint is not recorded."""
    records = checkpoints_lock.read_checkpoints_lock(workspace.project)
    results = []
    if name is not None and name not in records.checkpoints:
        suggestion = words.did_you_mean(name, records.checkpoints, code=True)
        is_defined = name in checkpoint_definition.checkpoint_names(workspace.project)
        makes = f"`builder checkpoints build {name}` makes it"
        hint = makes if is_defined else "`builder checkpoints list` shows all checkpoints"
        raise UsageError(f"checkpoints.lock has no `{name}`" + (f"; {suggestion}" if suggestion else ""), hint=hint)
    for each in sorted(records.checkpoints) if name is None else (name,):
        revision = records.current(each) or ""
        record = records.checkpoints[each][revision]
        place = checkpoints_lock.result_place(workspace.project, workspace.environment, each, record.folder)
        folder, is_here = place.folder(revision), place.has(revision)
        progress = conversion.MovedBytes(workspace.report, each, record.size)
        count = progress.add if full else lambda _: None
        problems = tuple(_problems(folder, record, count, full=full)) if is_here else ()
        results.append(VerifiedCheckpoint(each, revision, folder, len(record.files), is_here, problems))
    return tuple(results)


def _problems(folder: Path, record: CheckpointRevision, count: Callable[[int], None], *, full: bool) -> Iterator[str]:
    for name, file in record.files.items():
        try:
            problem = _problem(folder / name, file, count, full=full)
        except (OSError, HeaderError) as error:
            problem = getattr(error, "strerror", None) or str(error)
        if problem:
            yield f"{name}: {problem}"
    if further := sorted({path.name for path in folder.iterdir()} - record.files.keys()):
        yield f"these files are not recorded: {', '.join(further)}"


def _problem(path: Path, file: RecordedFile, count: Callable[[int], None], *, full: bool) -> str:
    """The difference between a file and its record; empty if there is none."""
    with planning.open_file(path) as opened:
        size = os.fstat(opened.fileno()).st_size
        if size != file.size:
            return f"it has {size:,} bytes instead of the recorded {file.size:,}"
        if file.header and words.sha256_of(opened.read(length(opened.read(PREFIX), size))) != file.header:
            return "its header differs from the record"
        if full or not file.header:
            opened.seek(0)
            digest = hashlib.sha256()
            while content := opened.read(_CHUNK):
                digest.update(content)
                count(len(content))
            if f"sha256:{digest.hexdigest()}" != file.digest:
                return "its content differs from the record"
    return ""
