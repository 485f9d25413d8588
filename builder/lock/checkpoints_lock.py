"""checkpoints.lock records each finished checkpoint, its sources and its steps.

The record comes first, then the file, then the folders of sources and results.
A project commits the file beside images.lock. It is JSON with sorted keys: the same records give the same bytes, and a
truncated file is not valid JSON. Only this module writes the file, whole or not at all, one process at a time.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from builder.base import files, hub_cache, records
from builder.base.errors import LockError, NewerLockError
from builder.base.values import dataclass, field, replace

if TYPE_CHECKING:
    from builder.base.project import Project

VERSION = 1
UNFINISHED = ".unfinished-"
"""The prefix for the folder of an unfinished result, which a process is making or a killed process left."""

_LARGEST = 64 << 20
_NAME, _COMMIT, _HEX = "[a-z0-9][a-z0-9._-]{0,63}", "[0-9a-f]{40}", "[0-9a-f]{64}"

NameText: TypeAlias = Annotated[str, _NAME]
CommitText: TypeAlias = Annotated[str, _COMMIT]
HexText: TypeAlias = Annotated[str, _HEX]
DigestText: TypeAlias = Annotated[str, f"sha256:{_HEX}|git:{_COMMIT}"]
FileText: TypeAlias = Annotated[str, r"(?!\.)[^/\x00-\x1f\x7f]{1,200}"]
SourceText: TypeAlias = Annotated[str, "[A-Za-z0-9][A-Za-z0-9_-]{0,31}"]
HubModelText: TypeAlias = Annotated[str, "[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*"]
ModText: TypeAlias = Annotated[str, "[A-Za-z0-9][A-Za-z0-9._+-]*"]
FolderText: TypeAlias = Annotated[str, r"(?:/|~/|\./)[^\n\x00:]*"]


def is_file_name(name: str) -> bool:
    """True if a record may contain a file of this name: no path, not hidden, only printable characters."""
    return bool(re.fullmatch(r"(?!\.)[^/]{1,200}", name)) and name.isprintable()


@dataclass(frozen=True)
class RecordedFile:
    """A file of a result or a source: its size in bytes, its SHA-256, and the SHA-256 of its header, if it has one. For
    a source, the Hub gives the digest and its kind; None if it gives none."""

    size: int
    digest: DigestText | None = None
    header: DigestText | None = None


@dataclass(frozen=True)
class RecordedSource:
    """A source: the definition's request, the files that were used, and the commit of the request."""

    requested: str
    files: Mapping[FileText, RecordedFile]
    commit: CommitText | None = None


@dataclass(frozen=True)
class CheckpointRevision:
    """A finished checkpoint. ``inputs`` is a digest of everything that determines its bytes, ``steps`` a digest of the
    definition's steps. The highest ``sequence`` was made last. ``folder`` is the folder of the result as the definition
    writes it, None for the Hugging Face cache. An image needs ``mods`` to read the checkpoint."""

    sequence: int
    model: HubModelText
    inputs: HexText
    steps: HexText
    tensors: int
    sources: Mapping[SourceText, RecordedSource]
    files: Mapping[FileText, RecordedFile]
    mods: tuple[ModText, ...] = ()
    folder: FolderText | None = None

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files.values())


@dataclass(frozen=True)
class CheckpointRecords:
    """The content of checkpoints.lock, by name and revision."""

    checkpoints: Mapping[NameText, Mapping[CommitText, CheckpointRevision]] = field(default_factory=dict)

    def current(self, name: str) -> str | None:
        revisions = self.checkpoints.get(name, {})
        return max(revisions, key=lambda revision: (revisions[revision].sequence, revision)) if revisions else None

    def find(self, name: str, revision: str) -> CheckpointRevision | None:
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
    return CheckpointName(*text.split("@")) if re.fullmatch(f"{_NAME}@{_COMMIT}", text) else None


def revision_of(files: Mapping[str, RecordedFile]) -> str:
    """The revision of a result: a digest of the names and digests of its files. It is as long as a commit, because the
    Hugging Face cache names snapshots by commits."""
    content = {name: file.digest for name, file in files.items()}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:40]


# The file.


def read_checkpoints_lock(project: Project) -> CheckpointRecords:
    """The records of the project; empty if there are none. Raises LockError for a damaged or newer file."""
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
    try:
        data = records.parse_json(text.decode().replace('"asked":', '"requested":'))  # the key of earlier versions
        version = data.pop("version", None) if isinstance(data, dict) else None
        if version == VERSION:
            return records.record(CheckpointRecords, data)
        damage, place = f'it has no `"version": {VERSION}`', ""
    except ValueError as error:
        version, damage = None, f"{error!s:.200}"
        place = f":{error.lineno}:{error.colno}" if isinstance(error, json.JSONDecodeError) else ""
    if type(version) is int and version > VERSION:
        message = f"{file} has version {version}, which this version of builder cannot read"
        raise NewerLockError(message, hint="update builder")
    hint = f"restore the committed file: `git checkout HEAD -- {file}`; older versions: `git log -p {file}`"
    raise LockError(f"{file}{place}: the file is damaged: {damage}", hint=hint)


def written(made: CheckpointRecords) -> bytes:
    checkpoints = {name: _filled(records.plain(revisions)) for name, revisions in made.checkpoints.items() if revisions}
    content = {"version": VERSION, "checkpoints": checkpoints}
    return (json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _filled(data: Any) -> Any:
    """The data without None and without empty lists."""
    if not isinstance(data, dict):
        return data
    return {key: _filled(each) for key, each in data.items() if each is not None and each != []}


def record_checkpoint(project: Project, name: str, revision: str, made: CheckpointRevision) -> None:
    """Records a revision as the latest one; writes nothing if the file already says so. Waits for other processes.
    Raises LockError for a damaged file."""
    files.make_folder(project.state)
    with files.locked(project.state / "checkpoints.lock"):
        before = read_checkpoints_lock(project)
        revisions, current = before.checkpoints.get(name, {}), before.current(name)
        highest = revisions[current].sequence if current else 0
        made = replace(made, sequence=highest if current == revision else highest + 1)
        after = CheckpointRecords({**before.checkpoints, name: {**revisions, revision: made}})
        if after != before:
            files.write_atomically(project.checkpoints_lock, written(after))


# The folders of sources and results. They are in the Hugging Face cache, whose layout other programs read, or belong to
# the user.


def expanded(project: Project, environ: Mapping[str, str], text: str) -> Path:
    """The folder that a definition names: ``~`` is the user's home, ``./`` the project's folder."""
    if text == "~" or text.startswith("~/"):
        text = (environ.get("HOME") or "/root") + text[1:]
    return Path(os.path.normpath(project.root / text))


@dataclass(frozen=True)
class ResultPlace:
    """The place of a checkpoint's results. ``root`` is the model's folder in the cache, with snapshots and blobs, or a
    plain folder with one folder for each revision."""

    root: Path
    is_cache: bool

    def folder(self, revision: str) -> Path:
        return self.root / "snapshots" / revision if self.is_cache else self.root / revision

    def has(self, revision: str) -> bool:
        return self.folder(revision).is_dir()

    def revisions(self) -> tuple[str, ...]:
        return tuple(sorted(path.name for path in self.folder("").glob("*") if hub_cache.is_commit(path.name)))


def model_id(name: str) -> str:
    return f"checkpoint/{name}"


def result_place(project: Project, environ: Mapping[str, str], name: str, folder: str | None) -> ResultPlace:
    """The place of a checkpoint's results; ``folder`` is the one that its definition or record names."""
    if folder is None:
        return ResultPlace(hub_cache.folder(environ, model_id(name)), is_cache=True)
    return ResultPlace(expanded(project, environ, folder) / name, is_cache=False)
