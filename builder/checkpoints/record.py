"""The record of checkpoints, in checkpoints.lock: what each was made from, by which steps, and what came of it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

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
