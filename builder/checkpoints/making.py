"""Making a checkpoint from its plan: into an unfinished folder beside the others, a file at a time, and at the end one
rename. Killed at any moment, the next run goes on with the files that are not whole yet."""

from __future__ import annotations

import hashlib
import shutil
import threading
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from builder.checkpoints import checkpoint_plan, shard_writing, small_files, source_files
from builder.checkpoints.build_journal import BuildJournal
from builder.checkpoints.record import CheckpointRevision, RecordedFile, revision_of
from builder.checkpoints.result_place import UNFINISHED
from builder.errors import ConflictError, SourceError
from builder.events import Message, TransferProgress
from builder.sources.huggingface import hub_models
from builder.storage import atomic_file, file_lock
from builder.storage.named_errors import naming

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from builder.checkpoints.checkpoint_plan import CheckpointPlan
    from builder.checkpoints.planning.layout import PlannedShard
    from builder.checkpoints.planning.tensor_table import SourceFile
    from builder.checkpoints.result_place import ResultPlace
    from builder.checkpoints.source_files import FileState
    from builder.events import Report

# Also where there are fewer processors: some wait for the disk while others take digests.
_WORKERS = 4
_PART = ".part"
LOCK = ".building"
"""The lock file in the folder of the results, which a build holds."""


class _StoppedError(Exception):
    """Another file could not be written: this one is no longer needed."""


def fetch(plan: CheckpointPlan, report: Report) -> None:
    """Fetches the files of the sources that are not here, into the Hugging Face cache. Raises SourceError."""
    for name, source in plan.sources.items():
        missing = {file.path for file in plan.missing if file.source == name}
        if not missing or source.snapshot is None:
            continue
        wanted = replace(source.snapshot, files=tuple(file for file in source.snapshot.files if file.path in missing))
        done = _MovedBytes(report, source.snapshot.model, wanted.size)
        done.add(wanted.size - hub_models.missing_bytes(source.environ, wanted))
        hub_models.fetch(source.environ, wanted, done.add)


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
        work.mkdir(exist_ok=True)
        _forget_lost(journal, work, place)
        _write_small(plan, work, journal)
        _write_shards(plan, work, journal, report)
        files = dict(sorted(journal.finished.items()))
        _require_digests(plan, files)
        _require_recorded(plan, files, recorded)
        revision = revision_of(files)
        _put_in_place(work, place, revision, files)
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


def _work_folder(plan: CheckpointPlan, place: ResultPlace) -> Path:
    return place.root / f"{UNFINISHED}{plan.inputs[:16]}"


def _journal_path(work: Path) -> Path:
    return work.with_name(f"{work.name}.journal")


def _forget_lost(journal: BuildJournal, work: Path, place: ResultPlace) -> None:
    """Takes files out of the journal that are not where they should be, with the size that they had."""
    made = place.folder(revision_of(journal.finished))
    for name, file in list(journal.finished.items()):
        paths = (work / name, made / name, *_blobs(place, file))
        if not any(path.is_file() and path.stat().st_size == file.size for path in paths):
            del journal.finished[name]


def _blobs(place: ResultPlace, file: RecordedFile) -> tuple[Path, ...]:
    digest = (file.digest or "").removeprefix("sha256:")
    return (place.root / "blobs" / digest,) if place.is_cache and digest else ()


def _write_small(plan: CheckpointPlan, work: Path, journal: BuildJournal) -> None:
    for name, content in small_files.contents(plan).items():
        file = RecordedFile(len(content), f"sha256:{hashlib.sha256(content).hexdigest()}")
        if journal.finished.get(name) != file:
            with naming(work / name):
                atomic_file.write(work / name, content)
            journal.add(name, file)


def _write_shards(plan: CheckpointPlan, work: Path, journal: BuildJournal, report: Report) -> None:
    from multiprocessing.pool import ThreadPool

    todo = [shard for shard in plan.shards if shard.name not in journal.finished]
    if not todo:
        return
    paths = {file: plan.sources[file.source].folder / file.path for shard in todo for file in shard.sources}
    states = _states(plan, paths)
    total = sum(shard.size for shard in plan.shards)
    progress = _MovedBytes(report, plan.definition.name, total)
    progress.add(total - sum(shard.size for shard in todo))
    stopped = threading.Event()

    def count(size: int) -> None:
        if stopped.is_set():
            raise _StoppedError
        progress.add(size)

    def write(shard: PlannedShard) -> None:
        part = work / f"{shard.name}{_PART}"
        file = shard_writing.write(shard, part, paths, states, count)
        part.replace(work / shard.name)
        atomic_file.sync_folder(work)
        journal.add(shard.name, file)

    # Threads that do not keep the process alive when the user stops it; the largest files first, so that none is left
    # to be written alone at the end.
    with ThreadPool(_WORKERS) as pool:
        try:
            for _ in pool.imap_unordered(write, sorted(todo, key=lambda shard: -shard.size)):
                pass
        finally:
            stopped.set()
            pool.close()
            pool.join()


def _states(plan: CheckpointPlan, paths: dict[SourceFile, Path]) -> dict[SourceFile, FileState]:
    """The states of the sources' files as they were planned. Raises SourceError for one that is another now."""
    states = {}
    for file, path in paths.items():
        with source_files.open_file(path) as opened:
            states[file] = source_files.state_of(opened)
        if states[file].size != plan.size_of(file):
            raise SourceError(
                f"{path} has {states[file].size:,} bytes, and had {plan.size_of(file):,} when its header was read",
                hint="wait until it is whole, and run this again",
            )
    return states


def _require_digests(plan: CheckpointPlan, files: dict[str, RecordedFile]) -> None:
    wrong = [
        f"{name} has the SHA-256 {(files[name].digest or '').removeprefix('sha256:')}, and not {digest}"
        for name, digest in plan.content.digests.items()
        if files[name].digest != f"sha256:{digest}"
    ]
    if wrong:
        message = f"{plan.definition.file}: what must hold does not: {'; '.join(wrong)}"
        raise ConflictError(message, hint="the files stay until a build succeeds: correct `verify`, or the sources")


def _require_recorded(
    plan: CheckpointPlan, files: dict[str, RecordedFile], recorded: Mapping[str, CheckpointRevision]
) -> None:
    for before in recorded.values():
        others = sorted(name for name in files if files[name].digest != before.files.get(name, files[name]).digest)
        if before.inputs == plan.inputs and others:
            raise ConflictError(
                f"checkpoints.lock records other content for the same inputs: {', '.join(others[:5])} differ",
                hint="a disk or a source is damaged, or the record is: `builder checkpoints verify --full` compares",
            )


def _put_in_place(work: Path, place: ResultPlace, revision: str, files: dict[str, RecordedFile]) -> None:
    """Gives the result its name by one rename; what is there already stays."""
    if place.is_cache:
        links = _link(work, place, files)
        _rename(links, place.folder(revision))
        atomic_file.make_folder(place.root / "refs")
        atomic_file.write(place.root / "refs" / "main", revision.encode())
        shutil.rmtree(work, ignore_errors=True)
    else:
        for extra in work.iterdir():
            if extra.name not in files:
                extra.unlink()
        _rename(work, place.folder(revision))


def _link(work: Path, place: ResultPlace, files: dict[str, RecordedFile]) -> Path:
    """Moves the files to the cache's blobs; returns a folder with links to them, as a snapshot has them."""
    blobs, links = place.root / "blobs", work / ".snapshot"
    for folder in (blobs, place.root / "snapshots"):
        atomic_file.make_folder(folder)
    shutil.rmtree(links, ignore_errors=True)
    links.mkdir()
    for name, file in files.items():
        (blob,) = _blobs(place, file)
        if (work / name).exists():
            (work / name).replace(blob)
        (links / name).symlink_to(f"../../blobs/{blob.name}")
    atomic_file.sync_folder(blobs)
    atomic_file.sync_folder(links)
    return links


def _rename(fresh: Path, target: Path) -> None:
    if target.is_dir():
        shutil.rmtree(fresh, ignore_errors=True)
        return
    fresh.rename(target)
    with suppress(OSError):
        atomic_file.sync_folder(target.parent)


class _MovedBytes:
    """The bytes that several threads have moved, reported as they are counted."""

    def __init__(self, report: Report, what: str, total: int) -> None:
        self._report, self._what, self._total = report, what, total
        self._current = 0
        self._lock = threading.Lock()

    def add(self, size: int) -> None:
        """Counts bytes; a negative number takes some back."""
        with self._lock:
            self._current += size
            self._report(TransferProgress(self._what, self._current, self._total))
