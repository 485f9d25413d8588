"""Writing the files of weights of a plan, several at a time, each into the journal when it is whole."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from builder.checkpoints import shard_writing, source_files
from builder.checkpoints.moved_bytes import MovedBytes
from builder.errors import SourceError
from builder.storage import atomic_file

if TYPE_CHECKING:
    from pathlib import Path

    from builder.checkpoints.build_journal import BuildJournal
    from builder.checkpoints.checkpoint_plan import CheckpointPlan
    from builder.checkpoints.planning.layout import PlannedShard
    from builder.checkpoints.planning.tensor_table import SourceFile
    from builder.checkpoints.source_files import FileState
    from builder.events import Report

# Also where there are fewer processors: some wait for the disk while others take digests.
_WORKERS = 4
_PART = ".part"


class _StoppedError(Exception):
    """Another file could not be written: this one is no longer needed."""


def write(plan: CheckpointPlan, work: Path, journal: BuildJournal, report: Report) -> None:
    """Writes the files that the journal does not have into the folder ``work``. Raises what `shard_writing.write`
    does."""
    from multiprocessing.pool import ThreadPool

    todo = [shard for shard in plan.shards if shard.name not in journal.finished]
    if not todo:
        return
    paths = {file: plan.sources[file.source].folder / file.path for shard in todo for file in shard.sources}
    states = _states(plan, paths)
    total = sum(shard.size for shard in plan.shards)
    progress = MovedBytes(report, plan.definition.name, total)
    progress.add(total - sum(shard.size for shard in todo))
    stopped = threading.Event()

    def count(size: int) -> None:
        if stopped.is_set():
            raise _StoppedError
        progress.add(size)

    def write_one(shard: PlannedShard) -> None:
        part = work / f"{shard.name}{_PART}"
        file = shard_writing.write(shard, part, paths, states, count)
        part.replace(work / shard.name)
        atomic_file.sync_folder(work)
        journal.add(shard.name, file)

    # Threads that do not keep the process alive when the user stops it; the largest files first, so that none is left
    # to be written alone at the end.
    with ThreadPool(_WORKERS) as pool:
        try:
            for _ in pool.imap_unordered(write_one, sorted(todo, key=lambda shard: -shard.size)):
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
