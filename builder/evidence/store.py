"""Evidence lies in files ``evidence/REPOSITORY/N/STARTED-KIND-NAME-XXXXXXXX.json``, one for each run, never changed.

They are committed with images.lock, and come with clones. So a file counts only where it is a plain one of no more than
`LARGEST` bytes, holds what the schema says, and has the digest of its content in its name. The folder says which number
a run belongs to, so that a number that is renumbered takes its runs along as they are.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from builder.base import files, redaction
from builder.base.errors import FileProblemsError, Location, Problem, UnsafePathError
from builder.base.project import below_project
from builder.base.words import sha256_of
from builder.evidence import run_record
from builder.lock import checking
from builder.lock.model import ImageName

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.evidence.run_record import Evidence

LARGEST = 256 * 1024
LARGEST_RAW = 64 * 1024 * 1024
_LAST_SEQUENCE = 1_000_000_000  # what the schema takes: others may have written any
_MOST_FINDINGS = 200
_NAME = re.compile(
    r"(?P<started>[0-9]{8}T[0-9]{6}Z)-(?P<kind>prove|bench|probe|same)-"
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]{0,63})-(?P<digest>[0-9a-f]{8})[.]json"
)


@dataclass(frozen=True)
class KeptEvidence:
    """The runs of a numbered image, in the order in which they were added, and the problems of its other files."""

    runs: tuple[Evidence, ...] = ()
    problems: tuple[Problem, ...] = ()


def evidence_folder(project: Project, name: ImageName) -> Path:
    """The folder of a number's runs, which may not exist. Raises UnsafePathError where a link leads it elsewhere."""
    return below_project(
        below_project(project.root, project.evidence), project.evidence / name.repository / str(name.number)
    )


def add_run(project: Project, name: ImageName, evidence: Evidence, raw: bytes | None = None) -> Path:
    """Writes one run of the image ``name``, without secrets and with as many findings as fit, and returns its file.
    ``raw``, the whole output of its tool, stays on this machine. An existing run stays unchanged. Raises
    ValueError for a record that the schema does not take, OSError, UnsafePathError where the folder is a link that
    leads out of the project."""
    target = evidence_folder(project, name)
    if raw is not None:
        evidence = replace(evidence, raw=_keep_raw(project, raw))
    last = max((run.sequence for run in look_for_runs(project, name).runs), default=0)
    evidence = _fitted(replace(evidence, sequence=min(last + 1, _LAST_SEQUENCE)))
    text = run_record.evidence_text(evidence).encode()
    try:
        run_record.parse_evidence(text, "evidence")
    except FileProblemsError as error:
        raise ValueError(f"evidence of {name}: {error.message}") from None
    digest = run_record.evidence_identity(evidence)
    for each in _file_names(target):
        if (parts := _NAME.fullmatch(each)) and digest.startswith(parts["digest"]):
            return target / each
    path = target / file_name(evidence, digest)
    files.make_folder(target)
    below_project(project.evidence, target)
    files.write_atomically(path, text)
    return path


def file_name(evidence: Evidence, digest: str = "") -> str:
    """The name of a run's file; ``digest`` is its identity, if known already."""
    started = evidence.started.replace("-", "").replace(":", "")
    digest = digest or run_record.evidence_identity(evidence)
    return f"{started}-{evidence.kind}-{evidence.name}-{digest[:8]}.json"


def _fitted(evidence: Evidence) -> Evidence:
    """The run with as many findings, each as long, as its file has room for, and without secrets: it is committed."""
    findings = [replace(each, at=_cut(each.at, 500), text=_cut(each.text, 4000)) for each in evidence.findings]
    overrides = {
        name: "***" if redaction.looks_secret(name, value) else redaction.redacted(value)
        for name, value in evidence.subject.overrides.items()
    }
    accepted = redaction.redacted(evidence.accepted)
    evidence = replace(evidence, subject=replace(evidence.subject, overrides=overrides), accepted=accepted)
    kept, count = findings[:_MOST_FINDINGS], len(findings)
    while True:
        left_out = {"findings_left_out": count - len(kept)} if len(kept) < count else {}
        fitted = replace(evidence, findings=tuple(kept), counts={**evidence.counts, **left_out})
        if not kept or len(run_record.evidence_text(fitted).encode(errors="replace")) <= LARGEST:
            return fitted
        kept = kept[: len(kept) // 2]


def _cut(text: str, longest: int) -> str:
    text = redaction.redacted(text.encode(errors="replace").decode())  # a tool may print halves of characters
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def of_image(project: Project, name: ImageName) -> tuple[Evidence, ...]:
    """The runs of a numbered image in order. Raises FileProblemsError for a damaged file, UnsafePathError for a folder
    that is a link."""
    kept = look_for_runs(project, name)
    if kept.problems:
        raise FileProblemsError(kept.problems, hint=run_record.HINT)
    return kept.runs


def look_for_runs(project: Project, name: ImageName) -> KeptEvidence:
    if not project.evidence.exists():
        return KeptEvidence()
    shown = f"evidence/{name.repository}/{name.number}"
    try:
        place = evidence_folder(project, name)
        names = _file_names(place)
    except (OSError, UnsafePathError) as error:
        message = error.message if isinstance(error, UnsafePathError) else error.strerror or str(error)
        return KeptEvidence(problems=(Problem(Location(shown), message),))
    runs: list[Evidence] = []
    problems: list[Problem] = []
    for each in names:
        try:
            run = read_run(each, files.read_plain_file(f"{place}/{each}", LARGEST), f"{shown}/{each}")
            runs += [] if run.foreign else [run]
        except OSError as error:
            problems.append(Problem(Location(f"{shown}/{each}"), error.strerror or str(error)))
        except FileProblemsError as error:
            problems += error.problems
    return KeptEvidence(tuple(sorted(runs, key=lambda run: (run.sequence, run.started, run.file))), tuple(problems))


def _file_names(path: Path) -> list[str]:
    """The names of the files in a folder; a killed writer's begin with a dot, and a folder is of another repository."""
    try:
        with os.scandir(path) as entries:
            names = sorted(entry.name for entry in entries if not entry.is_dir(follow_symlinks=False))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [name for name in names if not name.startswith(".")]


def read_run(name: str, content: bytes, shown: str) -> Evidence:
    """The run in the content of a file of this name. Raises FileProblemsError if the content is not a run."""
    fault = f"larger than {LARGEST:,} bytes" if _NAME.fullmatch(name) else "not the name of a file of evidence"
    if _NAME.fullmatch(name) and len(content) <= LARGEST:
        evidence, digest = run_record.parse_evidence(content, shown)
        if name == file_name(evidence, digest):
            return replace(evidence, file=name)
        fault = "its content does not match the digest in its name: it was changed after it was written"
    raise FileProblemsError((Problem(Location(shown), fault),), hint=run_record.HINT)


def evidence_images(project: Project) -> tuple[ImageName, ...]:
    """The numbers that have a folder of evidence, sorted; links are not followed."""
    names = []
    for path, folders, _ in os.walk(project.evidence):
        repository = os.path.relpath(path, project.evidence)
        if checking.is_a("repository", repository):
            names += [ImageName(repository, int(each)) for each in folders if re.fullmatch("[1-9][0-9]{0,17}", each)]
    return tuple(sorted(names))


def move_evidence(project: Project, origin: ImageName, to: ImageName, fingerprint: str) -> None:
    """Gives the runs of an image with this content its new number; other runs and files stay. Killed in between, the
    same call finishes it. Raises OSError, UnsafePathError."""
    if not project.evidence.is_dir():
        return
    source, target = evidence_folder(project, origin), evidence_folder(project, to)
    kept = look_for_runs(project, origin)
    moving = [run.file for run in kept.runs if run.subject.fingerprint == fingerprint]
    if not moving:
        return
    files.make_folder(target)
    for file in moving:
        (source / file).rename(target / file)
    files.sync_folder(target)
    files.sync_folder(source)
    with contextlib.suppress(OSError):
        source.rmdir()  # only where nothing is left in it


def raw_answers(project: Project, digest: str) -> bytes | None:
    """The whole output of a tool, by its digest (``sha256:…``); None if this machine does not have it."""
    try:
        content = files.read_plain_file(_raw_path(project, digest), LARGEST_RAW)
    except OSError:
        return None
    return content if sha256_of(content) == digest else None


def _keep_raw(project: Project, content: bytes) -> str:
    """Keeps the output of a tool where it is not too long, and returns its digest."""
    content = redaction.redacted(content.decode(errors="surrogateescape")).encode(errors="surrogateescape")
    digest = sha256_of(content)
    if len(content) <= LARGEST_RAW:
        files.write_state(_raw_path(project, digest), content)
    return digest


def _raw_path(project: Project, digest: str) -> Path:
    if not re.fullmatch("sha256:[0-9a-f]{64}", digest):
        raise ValueError(f"`{digest}` is not a digest")
    return project.raw_evidence / digest.removeprefix("sha256:")


@dataclass(frozen=True)
class Proof:
    """The evidence of `prove` for one model; ``stand_in`` says why the tokenizer is not the model's own, ``reference``
    names the image that it was compared with."""

    evidence: Evidence
    raw: bytes
    stand_in: str = ""
    reference: str = ""


@dataclass(frozen=True)
class ProvedImage:
    """The result for one model of an image: its run, the file that keeps it, and the rest of a `Proof`."""

    image: ImageName
    evidence: Evidence
    file: str
    stand_in: str = ""
    reference: str = ""


def keep_proof(project: Project, name: ImageName, proof: Proof) -> ProvedImage:
    evidence = replace(proof.evidence, subject=replace(proof.evidence.subject, image=str(name)))
    path = add_run(project, name, evidence, proof.raw)
    return ProvedImage(name, evidence, project.relative(path), proof.stand_in, proof.reference)
