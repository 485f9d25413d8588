"""checkpoints.lock records each made checkpoint, its sources and its steps.

The record comes first, then the file, then the folders of sources and results.
The same records always give the same bytes. One process at a time writes the file, whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.base import files, hub_cache
from builder.base.errors import LockError, NewerLockError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.base.project import Project


# The record of checkpoints, in checkpoints.lock: what each was made from, by which steps, and what came of it.

_DIGITS = 40
_FILE = re.compile(r"(?!\.)[^/]{1,200}")
_NAME = r"[a-z0-9][a-z0-9._-]{0,63}@[0-9a-f]{40}"


def is_file_name(name: str) -> bool:
    """True for the name of a file that a record may have: no path, no hidden file, nothing that cannot be printed."""
    return bool(_FILE.fullmatch(name)) and name.isprintable()


@dataclass(frozen=True)
class RecordedFile:
    """A file of a result or a source: its size in bytes, its SHA-256 (of a source as the Hub gives it, with its kind,
    and None where nothing does), and the SHA-256 of its header, where it has one."""

    size: int
    digest: str | None
    header: str | None = None


@dataclass(frozen=True)
class RecordedSource:
    """A source: as the definition asks for it, the commit that this led to, and its files that were used."""

    requested: str
    commit: str | None
    files: Mapping[str, RecordedFile]


@dataclass(frozen=True)
class CheckpointRevision:
    """A checkpoint as it was made. ``inputs`` is the digest over all that decides its bytes, ``steps`` that of the
    definition's steps; ``sequence`` tells which one was made last. ``folder`` is where it was put, as the definition
    writes it, None for the Hugging Face cache; ``mods`` are what an image needs to read it."""

    sequence: int
    model: str
    inputs: str
    steps: str
    tensors: int
    sources: Mapping[str, RecordedSource]
    files: Mapping[str, RecordedFile]
    mods: tuple[str, ...] = ()
    folder: str | None = None

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(file.size for file in self.files.values())


@dataclass(frozen=True)
class CheckpointRecords:
    """The whole of checkpoints.lock: by name and revision."""

    checkpoints: Mapping[str, Mapping[str, CheckpointRevision]] = field(default_factory=dict)

    def current(self, name: str) -> str | None:
        """The revision that was made last; None where there is none."""
        revisions = self.checkpoints.get(name, {})
        return max(revisions, key=lambda revision: (revisions[revision].sequence, revision)) if revisions else None

    def find(self, name: str, revision: str) -> CheckpointRevision | None:
        """The record of a revision, or None."""
        return self.checkpoints.get(name, {}).get(revision)


@dataclass(frozen=True)
class CheckpointName:
    """A checkpoint at a revision, as a pairing names it: ``NAME@REVISION``."""

    name: str
    revision: str

    def __str__(self) -> str:
        return f"{self.name}@{self.revision}"

    @property
    def short(self) -> str:
        """The name with the first digits of the revision, for messages."""
        return f"{self.name}@{self.revision[:12]}"


def parse_name(text: str) -> CheckpointName | None:
    """Reads ``NAME@REVISION``; None for anything else."""
    if not re.fullmatch(_NAME, text):
        return None
    name, _, revision = text.rpartition("@")
    return CheckpointName(name, revision)


def revision_of(files: Mapping[str, RecordedFile]) -> str:
    """The revision of a result: a digest over the names and digests of its files, as long as a commit, since the
    Hugging Face cache names snapshots by commits."""
    content = {name: file.digest for name, file in files.items()}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:_DIGITS]


# Reading and writing checkpoints.lock, which a project commits beside images.lock. It is JSON with sorted keys: the
# same records give the same bytes, and a file that was cut off is no JSON. Only this module writes it, whole or not
# at all, for one process at a time.

SCHEMA = Path(__file__).with_name("checkpoints_lock.schema.json")
VERSION = 1
_LARGEST = 64 << 20


def read_checkpoints_lock(project: Project) -> CheckpointRecords:
    """The records of the project; empty where there are none. Raises LockError for a damaged or newer file."""
    path = project.checkpoints_lock
    try:
        text = files.read_plain_file(path, _LARGEST)
    except FileNotFoundError:
        return CheckpointRecords()
    except OSError as error:
        raise LockError(f"{path.name} cannot be read: {error.strerror or error}") from None
    return parse_checkpoints_lock(text, path.name)


def parse_checkpoints_lock(text: bytes, file: str) -> CheckpointRecords:
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
def checkpoints_transaction(project: Project) -> Iterator[LockedRecords]:
    """Gives the records to change; nothing is written where the block ends with an error, or nothing changed. Waits
    for other processes. Raises LockError for a damaged file."""
    files.make_folder(project.state)
    with files.locked(project.state / "checkpoints.lock"):
        locked = LockedRecords(read_checkpoints_lock(project))
        before = locked.records
        yield locked
        if locked.records != before:
            files.write_alone(project.checkpoints_lock, written(locked.records))


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


# A folder that a definition names, of a source or of the results.


def expanded(project: Project, environ: Mapping[str, str], text: str) -> Path:
    """The folder that a definition names: ``~`` is the user's home, ``./`` the project's folder."""
    if text == "~" or text.startswith("~/"):
        text = (environ.get("HOME") or "/root") + text[1:]
    return Path(os.path.normpath(project.root / text))


# The folders of results: in the Hugging Face cache, whose layout other programs read, or in a folder of the user's.

UNFINISHED = ".unfinished-"
"""Begins the names of what is being made, or was when its process was killed."""


@dataclass(frozen=True)
class ResultPlace:
    """The place of a checkpoint's results. ``root`` is the model's folder in the cache, with snapshots and blobs, or a
    plain folder that has each revision as a folder."""

    name: str
    root: Path
    is_cache: bool

    def folder(self, revision: str) -> Path:
        """The folder of a revision, which holds its files or links to them."""
        return self.root / "snapshots" / revision if self.is_cache else self.root / revision

    def has(self, revision: str) -> bool:
        """True if the revision is here."""
        return self.folder(revision).is_dir()

    def revisions(self) -> tuple[str, ...]:
        """The revisions that are here, sorted."""
        parent = self.folder("0").parent
        if not parent.is_dir():
            return ()
        return tuple(sorted(path.name for path in parent.iterdir() if hub_cache.is_commit(path.name)))


def model_id(name: str) -> str:
    """The name of a checkpoint as that of a model in the cache; the Hub has none of this organisation."""
    return f"checkpoint/{name}"


def result_place(project: Project, environ: Mapping[str, str], name: str, folder: str | None) -> ResultPlace:
    """The place of the results of a checkpoint; ``folder`` is the one that its definition or record names."""
    if folder is None:
        return ResultPlace(name, hub_cache.folder(environ, model_id(name)), is_cache=True)
    return ResultPlace(name, expanded(project, environ, folder) / name, is_cache=False)
