"""The files of evidence: ``evidence/REPOSITORY/N/STARTED-KIND-NAME-XXXXXXXX.json``, one for each run, never changed.

They are committed with images.lock, and come with clones, archives and registries: so a file counts only where it is a
plain one of no more than ``LARGEST`` bytes, holds what the schema says, and has the digest of its content in its name.
The folder says which number a run belongs to, so that one that is renumbered takes its runs along as they are.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from builder import redaction
from builder.errors import FileProblemsError, Location, Problem, UnsafePathError
from builder.evidence import document
from builder.lock import name_kinds
from builder.lock.model import ImageName
from builder.project import below
from builder.storage import atomic_file, regular_file, state_file

if TYPE_CHECKING:
    from builder.evidence.record import Evidence
    from builder.project import Project

LARGEST = 256 * 1024
LARGEST_RAW = 64 * 1024 * 1024
_DIGITS = 8
_LAST_SEQUENCE = 1_000_000_000  # what the schema takes: others may have written any
_MOST_FINDINGS = 200
_LONGEST_TEXT = 4000
_LEFT_OUT = "findings_left_out"
_NAME = re.compile(
    r"(?P<started>[0-9]{8}T[0-9]{6}Z)-(?P<kind>prove|bench|probe)-"
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]{0,63})-(?P<digest>[0-9a-f]{8})[.]json"
)
_HINT = "restore the committed file with git, or delete it: each file is one run, and the others do without it"


@dataclass(frozen=True)
class KeptEvidence:
    """The runs of a numbered image, in the order in which they were added, and the problems of files that are none.
    ``files`` are the names of the runs' files, in the same order."""

    runs: tuple[Evidence, ...] = ()
    problems: tuple[Problem, ...] = ()
    files: tuple[str, ...] = ()


def folder(project: Project, name: ImageName) -> Path:
    """The folder of a number's runs, which may not exist. Raises UnsafePathError where a link leads it elsewhere."""
    return below(below(project.root, project.evidence), project.evidence / name.repository / str(name.number))


def add(project: Project, name: ImageName, evidence: Evidence, raw: bytes | None = None) -> Path:
    """Writes one run of the image ``name``, and returns its file; ``raw`` is the whole output of its tool, which stays
    on this machine, and of neither a secret. A run that is there already stays as it is. Findings that no file has the
    room for are left out and counted.

    Raises ValueError for a record that the schema does not take, OSError where it cannot be written, UnsafePathError
    where the folder is a link that leads out of the project.
    """
    target = folder(project, name)
    if raw is not None:
        evidence = replace(evidence, raw=_keep_raw(project, raw))
    evidence = _fitted(replace(evidence, sequence=_next_sequence(project, name)))
    if fault := document.problem(evidence):
        raise ValueError(f"evidence of {name}: {fault}")
    digest = document.identity(evidence)
    if copy := _with_digest(target, digest):
        return copy
    path = target / _file_name(evidence, digest)
    atomic_file.make_folder(target)
    below(project.evidence, target)
    atomic_file.write(path, document.text(evidence).encode())
    return path


def of_image(project: Project, name: ImageName) -> tuple[Evidence, ...]:
    """The runs of a numbered image in the order in which they were added, those of others among them. Raises
    FileProblemsError for a file that is no evidence, UnsafePathError for a folder that is a link."""
    kept = look(project, name)
    if kept.problems:
        raise FileProblemsError(kept.problems, hint=_HINT)
    return kept.runs


def look(project: Project, name: ImageName) -> KeptEvidence:
    """The runs of a numbered image, with the problems of files that are no evidence."""
    if not project.evidence.exists():
        return KeptEvidence()
    shown = f"evidence/{name.repository}/{name.number}"
    try:
        place = folder(project, name)
        names = _file_names(place)
    except (OSError, UnsafePathError) as error:
        message = error.message if isinstance(error, UnsafePathError) else error.strerror or str(error)
        return KeptEvidence(problems=(Problem(Location(shown), message),))
    runs: list[tuple[int, str, str, Evidence]] = []
    problems: list[Problem] = []
    for each in names:
        try:
            evidence = _read_file(f"{place}/{each}", each, f"{shown}/{each}")
        except FileProblemsError as error:
            problems += error.problems
        else:
            runs.append((evidence.sequence, evidence.started, each, evidence))
    ordered = sorted(runs, key=lambda run: run[:-1])
    return KeptEvidence(tuple(run[-1] for run in ordered), tuple(problems), tuple(run[-2] for run in ordered))


def last_runs(kept: KeptEvidence) -> tuple[tuple[Evidence, str], ...]:
    """The last run of each kind, name and model, those of others apart, with the names of their files."""
    pairs = zip(kept.runs, kept.files, strict=True)
    return tuple(
        {(run.kind, run.name, run.subject.model, bool(run.foreign)): (run, file) for run, file in pairs}.values()
    )


def of_project(project: Project) -> dict[ImageName, KeptEvidence]:
    """The runs of every number that has some, by image."""
    return {name: look(project, name) for name in images(project)}


def images(project: Project) -> tuple[ImageName, ...]:
    """The numbers that have a folder of evidence, sorted; links are not followed."""
    names = []
    for path, folders, _ in os.walk(project.evidence):
        repository = os.path.relpath(path, project.evidence)
        numbers = [int(each) for each in folders if re.fullmatch("[1-9][0-9]{0,17}", each)]
        if numbers and name_kinds.is_a(name_kinds.REPOSITORY, repository):
            names += [ImageName(repository, number) for number in numbers]
    return tuple(sorted(names))


def read_file(path: Path, shown: str) -> Evidence:
    """The run in a file, called ``shown`` in messages. Raises FileProblemsError where it is none."""
    return _read_file(str(path), path.name, shown)


def read(name: str, content: bytes, shown: str) -> Evidence:
    """The run in the content of a file of this name. Raises FileProblemsError where it is none."""
    parts = _NAME.fullmatch(name)
    if parts is None:
        raise FileProblemsError((Problem(Location(shown), "not the name of a file of evidence"),), hint=_HINT)
    if len(content) > LARGEST:
        raise FileProblemsError((Problem(Location(shown), f"larger than {LARGEST:,} bytes"),), hint=_HINT)
    try:
        evidence, digest = document.parse(content, shown)
    except document.UnreadableError as error:
        raise FileProblemsError(error.problems, hint=_HINT) from None
    if not digest.startswith(parts["digest"]) or name != _file_name(evidence, parts["digest"]):
        message = "its content does not match the digest in its name: it was changed after it was written"
        raise FileProblemsError((Problem(Location(shown), message),), hint=_HINT)
    return evidence


def file_name(evidence: Evidence) -> str:
    """The name of a run's file."""
    return _file_name(evidence, document.identity(evidence))


def raw(project: Project, digest: str) -> bytes | None:
    """The whole output of a tool, by its digest (``sha256:…``); None where this machine does not have it."""
    try:
        content = regular_file.read(_raw_path(project, digest), LARGEST_RAW)
    except OSError:
        return None
    return content if f"sha256:{hashlib.sha256(content).hexdigest()}" == digest else None


def move(project: Project, origin: ImageName, to: ImageName, fingerprint: str) -> None:
    """Gives the runs of an image with this content its new number. After a merge the folder holds those of two images:
    the others stay, and so do files that are no evidence. Killed in between, the same call finishes it. Raises OSError,
    UnsafePathError."""
    if not project.evidence.is_dir():
        return
    source, target = folder(project, origin), folder(project, to)
    moved = False
    for path in files(source):
        try:
            evidence = read_file(path, str(path))
        except FileProblemsError:
            continue
        if evidence.subject.fingerprint == fingerprint:
            atomic_file.make_folder(target)
            path.rename(target / path.name)
            moved = True
    if moved:
        atomic_file.sync_folder(target)
        atomic_file.sync_folder(source)
        with contextlib.suppress(OSError):
            source.rmdir()  # only where nothing is left in it


def files(path: Path) -> list[Path]:
    """The files in a folder of evidence, sorted; what a killed writer left is none of them, and a folder there belongs
    to a repository whose name begins with this one's."""
    return [path / name for name in _file_names(path)]


def _file_names(path: Path) -> list[str]:
    try:
        with os.scandir(path) as entries:
            names = sorted(entry.name for entry in entries if not entry.is_dir(follow_symlinks=False))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [name for name in names if not name.startswith(".")]


def _read_file(path: str, name: str, shown: str) -> Evidence:
    try:
        content = regular_file.read(path, LARGEST)
    except OSError as error:
        raise FileProblemsError((Problem(Location(shown), error.strerror or str(error)),), hint=_HINT) from None
    return read(name, content, shown)


def _next_sequence(project: Project, name: ImageName) -> int:
    return min(1 + max((run.sequence for run in look(project, name).runs), default=0), _LAST_SEQUENCE)


def _with_digest(path: Path, digest: str) -> Path | None:
    """The file of a run that is there already."""
    for each in files(path):
        parts = _NAME.fullmatch(each.name)
        if parts and digest.startswith(parts["digest"]):
            return each
    return None


def _file_name(evidence: Evidence, digest: str) -> str:
    started = evidence.started.replace("-", "").replace(":", "")
    return f"{started}-{evidence.kind}-{evidence.name}-{digest[:_DIGITS]}.json"


def _fitted(evidence: Evidence) -> Evidence:
    """The run with as many findings, each as long, as its file has room for, and without secrets: it is committed."""
    findings = [replace(each, at=_cut(each.at, 500), text=_cut(each.text, _LONGEST_TEXT)) for each in evidence.findings]
    subject = evidence.subject
    overrides = {
        name: "***" if redaction.looks_secret(name, value) else redaction.redacted(value)
        for name, value in subject.overrides.items()
    }
    accepted = redaction.redacted(evidence.accepted)
    evidence = replace(evidence, subject=replace(subject, overrides=overrides), accepted=accepted)
    kept, count = findings[:_MOST_FINDINGS], len(findings)
    while True:
        left_out = {_LEFT_OUT: count - len(kept)} if len(kept) < count else {}
        fitted = replace(evidence, findings=tuple(kept), counts={**evidence.counts, **left_out})
        if not kept or len(document.text(fitted).encode(errors="replace")) <= LARGEST:
            return fitted
        kept = kept[: len(kept) // 2]


def _cut(text: str, longest: int) -> str:
    text = redaction.redacted(
        text.encode(errors="replace").decode()
    )  # what a tool printed may hold halves of characters
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _keep_raw(project: Project, content: bytes) -> str | None:
    """Keeps the output of a tool, and returns its digest."""
    content = redaction.redacted(content.decode(errors="surrogateescape")).encode(errors="surrogateescape")
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    if len(content) <= LARGEST_RAW:
        state_file.write(_raw_path(project, digest), content)
    return digest


def _raw_path(project: Project, digest: str) -> Path:
    if not re.fullmatch("sha256:[0-9a-f]{64}", digest):
        raise ValueError(f"`{digest}` is no digest")
    return project.raw_evidence / digest.removeprefix("sha256:")
