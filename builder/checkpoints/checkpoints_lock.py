"""Reading and writing checkpoints.lock, which a project commits beside images.lock.

It is JSON with sorted keys: the same records give the same bytes, and a file that was cut off is no JSON. Only this
module writes it, whole or not at all, for one process at a time.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.checkpoints.record import CheckpointRecords, CheckpointRevision, RecordedFile, RecordedSource
from builder.errors import LockError, NewerLockError
from builder.storage import atomic_file, file_lock, regular_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from builder.project import Project

SCHEMA = Path(__file__).with_name("checkpoints_lock.schema.json")
VERSION = 1
_LARGEST = 64 << 20


def read(project: Project) -> CheckpointRecords:
    """The records of the project; empty where there are none. Raises LockError for a damaged or newer file."""
    path = project.checkpoints_lock
    try:
        text = regular_file.read(path, _LARGEST)
    except FileNotFoundError:
        return CheckpointRecords()
    except OSError as error:
        raise LockError(f"{path.name} cannot be read: {error.strerror or error}") from None
    return parse(text, path.name)


def parse(text: bytes, file: str) -> CheckpointRecords:
    """Reads the records in ``text``, which errors call ``file``. Raises LockError."""
    hint = f"git has the version before: `git log -p {file}`"
    try:
        data = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        place = f":{error.lineno}:{error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        raise LockError(f"{file}{place}: it is damaged: no JSON", hint=hint) from None
    version = data.get("version") if isinstance(data, dict) else None
    if type(version) is int and version > VERSION:
        raise NewerLockError(f"{file} is of version {version}, which this program does not know", hint="update builder")
    if problem := next(iter(_validator().iter_errors(data)), None):
        place = ".".join(map(str, problem.instance_path)) or "the file"
        raise LockError(f"{file}: it is damaged: {place}: {problem.message[:200]}", hint=hint)
    return CheckpointRecords(
        {
            name: {revision: _revision(fields) for revision, fields in revisions.items()}
            for name, revisions in data["checkpoints"].items()
        }
    )


def written(records: CheckpointRecords) -> bytes:
    """The file's content for these records."""
    content = {
        "version": VERSION,
        "checkpoints": {
            name: {revision: _fields(each) for revision, each in revisions.items()}
            for name, revisions in records.checkpoints.items()
            if revisions
        },
    }
    return (json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


@dataclass
class LockedRecords:
    """The records while this process alone may write them; what they are at the end of the block is written."""

    records: CheckpointRecords

    def add(self, name: str, revision: str, made: CheckpointRevision) -> None:
        """Records a revision as the one that was made last."""
        revisions = dict(self.records.checkpoints.get(name, {}))
        current = self.records.current(name)
        highest = revisions[current].sequence if current else 0
        revisions[revision] = replace(made, sequence=highest if current == revision else highest + 1)
        self.records = CheckpointRecords({**self.records.checkpoints, name: revisions})


@contextmanager
def transaction(project: Project) -> Iterator[LockedRecords]:
    """Gives the records to change; nothing is written where the block ends with an error, or nothing changed. Waits
    for other processes. Raises LockError for a damaged file."""
    atomic_file.make_folder(project.state)
    with file_lock.locked(project.state / "checkpoints.lock"):
        locked = LockedRecords(read(project))
        before = locked.records
        yield locked
        if locked.records != before:
            atomic_file.write_alone(project.checkpoints_lock, written(locked.records))


@cache
def _validator() -> Any:
    import jsonschema_rs

    return jsonschema_rs.Draft202012Validator(json.loads(SCHEMA.read_bytes()))


def _file(fields: Mapping[str, Any]) -> RecordedFile:
    return RecordedFile(fields["size"], fields.get("digest"), fields.get("header"))


def _revision(fields: Mapping[str, Any]) -> CheckpointRevision:
    sources = {
        name: RecordedSource(
            source["asked"], source.get("commit"), {path: _file(file) for path, file in source["files"].items()}
        )
        for name, source in fields["sources"].items()
    }
    return CheckpointRevision(
        sequence=fields["sequence"],
        model=fields["model"],
        inputs=fields["inputs"],
        steps=fields["steps"],
        tensors=fields["tensors"],
        sources=sources,
        files={path: _file(file) for path, file in fields["files"].items()},
        mods=tuple(fields.get("mods", ())),
        folder=fields.get("folder"),
    )


def _fields(revision: CheckpointRevision) -> dict[str, Any]:
    def of_file(file: RecordedFile) -> dict[str, Any]:
        return _present({"size": file.size, "digest": file.digest, "header": file.header})

    def of_source(source: RecordedSource) -> dict[str, Any]:
        files = {path: of_file(file) for path, file in source.files.items()}
        return {**_present({"asked": source.requested, "commit": source.commit}), "files": files}

    return {
        **_present(
            {
                "sequence": revision.sequence,
                "model": revision.model,
                "inputs": revision.inputs,
                "steps": revision.steps,
                "tensors": revision.tensors,
                "mods": list(revision.mods) or None,
                "folder": revision.folder,
            }
        ),
        "sources": {name: of_source(source) for name, source in revision.sources.items()},
        "files": {path: of_file(file) for path, file in revision.files.items()},
    }


def _present(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
