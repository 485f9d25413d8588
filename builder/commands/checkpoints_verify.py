"""The ``checkpoints verify`` command: compares what is on the disk with checkpoints.lock."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.checkpoints import checkpoints_lock, result_place, source_files
from builder.checkpoints.planning import header, index
from builder.checkpoints.planning.header import HeaderError
from builder.errors import UsageError
from builder.events import TransferProgress
from builder.suggestions import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from builder.checkpoints.record import CheckpointRecords, CheckpointRevision, RecordedFile
    from builder.workspace import Workspace

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


def run(workspace: Workspace, name: str | None, *, full: bool) -> tuple[VerifiedCheckpoint, ...]:
    """Compares the latest revision of a checkpoint, or of all, with the record: sizes, the headers of weights, the
    other files whole and the index; with ``full`` every byte. Raises UsageError for one that is not recorded."""
    records = checkpoints_lock.read(workspace.project)
    results = []
    for each in recorded_names(records, name):
        revision = records.current(each) or ""
        record = records.checkpoints[each][revision]
        place = result_place.of(workspace.project, workspace.environment, each, record.folder)
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
    with source_files.open_file(path) as opened:
        size = source_files.state_of(opened).size
        if size != file.size:
            return f"it has {size:,} bytes, and {file.size:,} are recorded"
        if file.header:
            text = opened.read(header.length(opened.read(header.PREFIX), size))
            if f"sha256:{hashlib.sha256(text).hexdigest()}" != file.header:
                return "its header is another one"
            names.update({tensor.name: name for tensor in header.parse(text, size).tensors})
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
    path = folder / index.NAME
    if not path.is_file():
        return
    try:
        listed = index.parse(path.read_bytes())
    except HeaderError as error:
        yield f"{index.NAME}: {error}"
        return
    if different := sorted(name for name in listed.keys() | names.keys() if listed.get(name) != names.get(name)):
        yield f"{index.NAME}: {json.dumps(different[0])} and {len(different) - 1} more are not where it says"
