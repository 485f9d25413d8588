"""Making a checkpoint from its plan: into an unfinished folder beside the others, a file at a time, and at the end one
rename. Killed at any moment, the next run goes on with the files that are not whole yet."""

from __future__ import annotations

import hashlib
import shutil
from typing import TYPE_CHECKING

from builder.checkpoints import checkpoint_plan, digest_checks, result_naming, small_files, weights_writing
from builder.checkpoints.build_journal import BuildJournal
from builder.checkpoints.record import CheckpointRevision, RecordedFile, revision_of
from builder.checkpoints.result_place import UNFINISHED
from builder.events import Message
from builder.storage import atomic_file, file_lock
from builder.storage.named_errors import naming

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from builder.checkpoints.checkpoint_plan import CheckpointPlan
    from builder.checkpoints.result_place import ResultPlace
    from builder.events import Report

LOCK = ".building"
"""The lock file in the folder of the results, which a build holds."""


def make(
    plan: CheckpointPlan, place: ResultPlace, recorded: Mapping[str, CheckpointRevision], report: Report
) -> tuple[str, CheckpointRevision]:
    """Makes the checkpoint and puts it in its place; returns its revision and the record of it, without a sequence.

    Raises SourceError for a source that changes meanwhile; ConflictError for a file whose digest is not the one that
    the definition demands, or that was ``recorded`` for the same inputs; OSError. What is whole stays for the next try.
    """
    atomic_file.make_folder(place.root)
    work = _work_folder(plan, place)
    on_wait = Message(f"waiting for another process that makes {plan.definition.name}")
    with file_lock.locked(place.root / LOCK, on_wait=lambda: report(on_wait)):
        journal = BuildJournal(_journal_path(work))
        if work.is_symlink():  # a folder of the project may have come with it
            work.unlink()
        work.mkdir(exist_ok=True)
        _forget_lost(journal, work, place)
        _write_small(plan, work, journal)
        weights_writing.write(plan, work, journal, report)
        files = dict(sorted(journal.finished.items()))
        digest_checks.require_demanded(plan, files)
        digest_checks.require_recorded(plan, files, recorded)
        revision = revision_of(files)
        result_naming.put_in_place(work, place, revision, files)
        made = CheckpointRevision(
            sequence=0,
            model=plan.definition.model,
            inputs=plan.inputs,
            steps=checkpoint_plan.steps_digest(plan.definition),
            tensors=len(plan.content.tensors),
            sources=checkpoint_plan.recorded_sources(plan),
            files=files,
            mods=plan.definition.mods,
            folder=plan.definition.folder,
        )
        return revision, made


def finished(plan: CheckpointPlan, place: ResultPlace) -> int:
    """The bytes of the files that an earlier try finished, which take no further room."""
    journal = BuildJournal(_journal_path(_work_folder(plan, place)))
    return sum(file.size for file in journal.finished.values())


def forget(place: ResultPlace) -> None:
    """Removes the journal of a build whose result is recorded, and what is left of others that nobody is making."""
    with file_lock.locked(place.root / LOCK):
        for path in place.root.glob(f"{UNFINISHED}*"):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def forget_this(plan: CheckpointPlan, place: ResultPlace) -> None:
    """Removes what is left of a build of these inputs that was killed after its result was recorded."""
    work = _work_folder(plan, place)
    if not work.exists() and not _journal_path(work).exists():
        return
    with file_lock.locked(place.root / LOCK):
        shutil.rmtree(work, ignore_errors=True)
        _journal_path(work).unlink(missing_ok=True)


def _work_folder(plan: CheckpointPlan, place: ResultPlace) -> Path:
    return place.root / f"{UNFINISHED}{plan.inputs[:16]}"


def _journal_path(work: Path) -> Path:
    return work.with_name(f"{work.name}.journal")


def _forget_lost(journal: BuildJournal, work: Path, place: ResultPlace) -> None:
    """Takes files out of the journal that are not where they should be, with the size that they had."""
    made = place.folder(revision_of(journal.finished))
    for name, file in list(journal.finished.items()):
        paths = (work / name, made / name, *result_naming.blobs(place, file))
        if not any(path.is_file() and path.stat().st_size == file.size for path in paths):
            del journal.finished[name]


def _write_small(plan: CheckpointPlan, work: Path, journal: BuildJournal) -> None:
    for name, content in small_files.contents(plan).items():
        file = RecordedFile(len(content), f"sha256:{hashlib.sha256(content).hexdigest()}")
        if journal.finished.get(name) != file:
            with naming(work / name):
                atomic_file.write(work / name, content)
            journal.add(name, file)
