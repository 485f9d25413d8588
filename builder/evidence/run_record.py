"""A piece of evidence records one run of a numbered image: its verdict, its figures, and their subject.

Files of evidence are untrusted, so the reader checks them against ``evidence.schema.json``. Numbers must be finite, and
keys must be unique.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

from builder.base import files, records, redaction
from builder.base.errors import FileProblemsError, Location, Problem, UnsafePathError
from builder.base.machine_record import Machine  # noqa: TC001 (the type of a record)
from builder.base.project import Project, below_project
from builder.base.values import dataclass, field, replace
from builder.base.words import sha256_of
from builder.lock import checking
from builder.lock.model import ImageName

Kind = Literal["prove", "bench", "probe", "same"]
Verdict = Literal["pass", "changed", "fail", "unclear"]
Better = Literal["higher", "lower", ""]
SAME = "answers"
"""The name of every comparison of an image with another one."""
Settings: TypeAlias = Mapping[str, int | float | str]


@dataclass(frozen=True)
class Subject:
    """The subject of a run: everything that its result depends on. A part is None if it does not exist or was not read.

    ``image`` is the name of the image at that time (``vllm-node-tf5:7``); ``fingerprint`` identifies its content.
    ``revision`` is a commit of the model's repository. ``template`` (``sha256:…``) is the digest of the active chat
    template. ``recipe`` is the recipe's path in the project. ``arguments`` (``sha256:…``) is the digest of the serve
    command, see `standing.of_arguments`; ``overrides`` are the ``--set`` and options of that run alone. ``machine`` is
    the machine that answers, and ``workers`` are the other machines of the same server.
    """

    image: str
    fingerprint: str
    model: str | None = None
    revision: str | None = None
    template: str | None = None
    recipe: str | None = None
    arguments: str | None = None
    overrides: Mapping[str, str] = field(default_factory=dict)
    machine: Machine | None = None
    workers: tuple[Machine, ...] = ()


@dataclass(frozen=True)
class Figure:
    """One measured quantity. ``name`` is ``tg``, ``pp``, ``ttfr``, ``acceptance``, ``memory_floor``, ``kv_tokens``,
    ``startup`` or similar; ``at`` has the conditions (``{"depth": 32768, "concurrency": 1}``), and ``values`` one value
    for each measurement. ``unit`` is ``tokens/s``, ``ms``, ``s``, ``bytes``, ``tokens`` or ``ratio``. ``better`` is
    empty if neither direction is better."""

    name: str
    at: Mapping[str, int | str]
    unit: str
    better: Better
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return math.fsum(self.values) / len(self.values) if self.values else 0.0

    @property
    def std(self) -> float:
        """The standard deviation of a sample; 0 for fewer than two values."""
        if len(self.values) < 2:
            return 0.0
        mean = self.mean
        return math.sqrt(math.fsum((value - mean) ** 2 for value in self.values) / (len(self.values) - 1))


@dataclass(frozen=True)
class Finding:
    """A check that did not pass, its place (a conversation, a step), and the difference. A known limit of a third-party
    template has the verdict ``pass`` (`judging.tell_limits`)."""

    check: str
    at: str
    verdict: Verdict
    text: str


@dataclass(frozen=True)
class Evidence:
    """One run. ``name`` is ``behaviour`` for a proof, `SAME` for a comparison, or the name of the bench profile or
    probe. ``version`` is the tool's version (``llama-benchy 0.4.0``). ``set`` (``sha256:…``) is the digest of the
    conversations, script, profile or texts: compare figures only with figures of the same set. ``started`` is RFC 3339
    in UTC.

    ``goldens`` are the token ids of a proof by conversation, each as the beginning of a SHA-256. ``chosen`` has the
    settings that vLLM chose itself (`server_log.read_choices`). ``raw`` is the digest of the tool's whole output
    (`raw_answers`). ``accepted`` is the note that accepts changes as intended; the verdict is then ``pass``.
    ``sequence`` is the run's place among the runs of its number, independent of clocks; `add_run` sets it. ``file`` is
    the name of the run's file, and not part of the file.
    """

    kind: Kind
    name: str
    version: str
    set: str
    started: str
    seconds: float
    subject: Subject
    verdict: Verdict
    sampling: Settings = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    figures: tuple[Figure, ...] = ()
    findings: tuple[Finding, ...] = ()
    goldens: Mapping[str, str] = field(default_factory=dict)
    chosen: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    raw: str | None = None
    accepted: str = ""
    sequence: int = 0
    file: str = field(default="", compare=False)


def unlike(run: Evidence, other: Evidence) -> Iterator[str]:
    """Yields the differences that make the figures of two runs of one kind incomparable."""
    if run.set != other.set or run.name != other.name:
        sets = {"prove": "different conversations", "bench": "another profile", "same": "different texts"}
        yield sets.get(run.kind, "another probe")
    if run.version != other.version:
        yield f"different tools: {run.version} and {other.version}"
    then, now = run.subject.machine, other.subject.machine
    if then and now:
        is_other = bool(then.cpu and now.cpu) and then.cpu != now.cpu  # earlier runs on arm64 have no processor name
        if is_other or (then.gpu, then.gpus, then.platform) != (now.gpu, now.gpus, now.platform):
            yield "another machine"
    if dict(run.sampling) != dict(other.sampling):
        yield "different sampling"
    if dict(run.subject.overrides) != dict(other.subject.overrides):
        yield "different options in the command"


SCHEMA = Path(__file__).parent / "evidence.schema.json"
FORMAT = 1
HINT = "restore the committed file with git, or delete it: each file is one run, independent of the others"
_ALWAYS = frozenset({*("name", "version", "set", "started", "verdict", "seconds"), *("image", "fingerprint")})
_DERIVED = ("n", "mean", "std")
_TOLD = 3  # problems of one file; more are not listed


def evidence_document(evidence: Evidence) -> dict[str, Any]:
    """The record as JSON data, without empty values. It also contains the derived figures, so that readers need no
    statistics."""
    data = _filled(records.plain(evidence))
    data.pop("file", None)
    data["seconds"] = float(evidence.seconds)
    data["subject"] = subject = _filled(data["subject"])
    if evidence.subject.machine:
        subject["machine"] = _filled(subject["machine"])
    if evidence.subject.workers:
        subject["workers"] = list(map(_filled, subject["workers"]))
    if evidence.figures:
        data["figures"] = list(map(figure_document, evidence.figures))
    return {"format": FORMAT, **data}


def _filled(block: Mapping[str, Any]) -> dict[str, Any]:
    """A block without empty and unknown values. A CMA size of 0 is kept, because it is known."""
    return {name: value for name, value in block.items() if value or name in _ALWAYS or (name == "cma" and value == 0)}


def figure_document(figure: Figure) -> dict[str, Any]:
    derived = {"n": len(figure.values), "mean": figure.mean, "std": figure.std}
    return {**records.plain(figure), **derived, "values": [float(value) for value in figure.values]}


def evidence_text(evidence: Evidence) -> str:
    return json.dumps(evidence_document(evidence), ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def parse_evidence(content: bytes, file: str) -> tuple[Evidence, str]:
    """The evidence in the content of ``file``, and its identity: a SHA-256 in hex digits, equal for all copies. Raises
    FileProblemsError with the faults."""
    try:
        data = _DECODER.decode(content.decode())
        if not (faults := list(_faults(data))):
            return _read(data), _digest(data)
    except json.JSONDecodeError as error:
        problem = Problem(Location(file, error.lineno, error.colno), f"not JSON: {error.msg}")
        raise FileProblemsError((problem,), hint=HINT) from None
    except RecursionError:
        faults = ["not evidence: blocks are nested too deeply"]
    except ValueError as error:  # including UnicodeError and the errors of the functions below
        faults = [f"not evidence: {_short(str(error))}"]
    raise FileProblemsError(tuple(Problem(Location(file), fault) for fault in faults), hint=HINT)


def _read(data: Mapping[str, Any]) -> Evidence:
    """The run in ``data``, without the values that are derived from others."""
    figures = [{key: each[key] for key in each if key not in _DERIVED} for each in data.get("figures", ())]
    kept = {key: value for key, value in data.items() if key != "format"}
    return records.record(Evidence, {**kept, "figures": figures})


def _digest(data: Mapping[str, Any]) -> str:
    """The digest of the data, independent of the layout and of ``sequence``: git and editors change line ends and
    indentation."""
    kept = {name: value for name, value in data.items() if name != "sequence"}
    plain = json.dumps(kept, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(plain.encode()).hexdigest()


def _faults(data: Any) -> Iterator[str]:
    if isinstance(data, dict) and isinstance(data.get("format"), int) and data["format"] > FORMAT:
        yield "a newer version of builder wrote this file: update builder to read it"
        return
    from builder.base.yaml_file import validator

    if validator(SCHEMA).is_valid(data):
        return
    for number, error in enumerate(validator(SCHEMA).iter_errors(data)):
        if number == _TOLD:
            yield "further problems are not listed"
            return
        path = ".".join(map(str, error.instance_path))
        yield _short(f"{path}: {error.message}" if path else str(error.message))


def _short(message: str) -> str:
    return message if len(message) <= 160 else f"{message[:100]} … {message[-50:]}"


def _finite(written: str) -> float:
    value = float(written)
    if not math.isfinite(value):
        raise ValueError(f"{_short(written)} is not a finite number")
    return value


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    block = dict(pairs)
    if len(block) < len(pairs):
        raise ValueError("a key is repeated")
    return block


# One decoder for all files: making a decoder takes as long as reading a small file with it.
_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_finite, object_pairs_hook=_without_repetition)


# Each run has one file, ``evidence/REPOSITORY/N/STARTED-KIND-NAME-XXXXXXXX.json``, which never changes.
#
# The files are committed with images.lock, and come with clones. A file counts only if it is a plain file of at most
# `LARGEST` bytes, matches the schema, and has the digest of its content in its name. The folder decides which number a
# run belongs to, so the runs of a renumbered image move unchanged.

LARGEST = 256 * 1024
LARGEST_RAW = 64 * 1024 * 1024
_LAST_SEQUENCE = 1_000_000_000  # the maximum in the schema; files are untrusted
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
    """The folder of a number's runs, which may not exist. Raises UnsafePathError if a link leads somewhere else."""
    return below_project(
        below_project(project.root, project.evidence), project.evidence / name.repository / str(name.number)
    )


def add_run(project: Project, name: ImageName, evidence: Evidence, raw: bytes | None = None) -> Path:
    """Writes one run of the image ``name`` without secrets, with as many findings as fit, and returns its file.
    ``raw``, the whole output of the tool, stays on this machine. An existing run is unchanged. Raises ValueError if the
    schema rejects the record, OSError, and UnsafePathError if a link leads the folder out of the project."""
    target = evidence_folder(project, name)
    if raw is not None:
        evidence = replace(evidence, raw=_keep_raw(project, raw))
    last = max((run.sequence for run in look_for_runs(project, name).runs), default=0)
    evidence = _fitted(replace(evidence, sequence=min(last + 1, _LAST_SEQUENCE)))
    text = evidence_text(evidence).encode()
    try:
        _, digest = parse_evidence(text, "evidence")
    except FileProblemsError as error:
        raise ValueError(f"evidence of {name}: {error.message}") from None
    for each in _file_names(target):
        if (parts := _NAME.fullmatch(each)) and digest.startswith(parts["digest"]):
            return target / each
    path = target / file_name(evidence, digest)
    files.make_folder(target)
    below_project(project.evidence, target)
    files.write_atomically(path, text)
    return path


def file_name(evidence: Evidence, digest: str) -> str:
    started = evidence.started.replace("-", "").replace(":", "")
    return f"{started}-{evidence.kind}-{evidence.name}-{digest[:8]}.json"


def _fitted(evidence: Evidence) -> Evidence:
    """The run without secrets, because its file is committed, and with as many findings as fit into the file."""
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
        if not kept or len(evidence_text(fitted).encode(errors="replace")) <= LARGEST:
            return fitted
        kept = kept[: len(kept) // 2]


def _cut(text: str, longest: int) -> str:
    text = redaction.redacted(text.encode(errors="replace").decode())  # a tool may print half a character
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def of_image(project: Project, name: ImageName) -> tuple[Evidence, ...]:
    """The runs of a numbered image in order. Raises FileProblemsError for a damaged file, or a folder that is a
    link."""
    kept = look_for_runs(project, name)
    if kept.problems:
        raise FileProblemsError(kept.problems, hint=HINT)
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
            runs.append(read_run(each, files.read_plain_file(f"{place}/{each}", LARGEST), f"{shown}/{each}"))
        except OSError as error:
            problems.append(Problem(Location(f"{shown}/{each}"), error.strerror or str(error)))
        except FileProblemsError as error:
            problems += error.problems
    return KeptEvidence(tuple(sorted(runs, key=lambda run: (run.sequence, run.started, run.file))), tuple(problems))


def _file_names(path: Path) -> list[str]:
    """The names of the files in a folder, without temporary files of killed writers (with a leading dot) and folders
    (of other repositories)."""
    try:
        with os.scandir(path) as entries:
            names = sorted(entry.name for entry in entries if not entry.is_dir(follow_symlinks=False))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [name for name in names if not name.startswith(".")]


def read_run(name: str, content: bytes, shown: str) -> Evidence:
    """The run in the content of a file with this ``name``. Raises FileProblemsError if the content is not a run."""
    fault = f"larger than {LARGEST:,} bytes" if _NAME.fullmatch(name) else "not a valid name of an evidence file"
    if _NAME.fullmatch(name) and len(content) <= LARGEST:
        evidence, digest = parse_evidence(content, shown)
        if name == file_name(evidence, digest):
            return replace(evidence, file=name)
        fault = "its content does not match the digest in its name: it was changed or renamed after it was written"
    raise FileProblemsError((Problem(Location(shown), fault),), hint=HINT)


def evidence_images(project: Project) -> tuple[ImageName, ...]:
    """The numbers that have a folder of evidence, sorted; links are not followed."""
    names = []
    for path, folders, _ in os.walk(project.evidence):
        repository = os.path.relpath(path, project.evidence)
        if checking.is_a("repository", repository):
            names += [ImageName(repository, int(each)) for each in folders if re.fullmatch("[1-9][0-9]{0,17}", each)]
    return tuple(sorted(names))


def move_evidence(project: Project, origin: ImageName, to: ImageName, fingerprint: str) -> None:
    """Moves the runs of the image with this ``fingerprint`` to its new number; other runs and files stay. After a
    crash, the same call finishes the move. Raises OSError, UnsafePathError."""
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
        source.rmdir()  # fails if other files remain


def raw_answers(project: Project, digest: str) -> bytes | None:
    """The whole output of a tool by its digest (``sha256:…``); None if it is not on this machine."""
    try:
        content = files.read_plain_file(_raw_path(project, digest), LARGEST_RAW)
    except OSError:
        return None
    return content if sha256_of(content) == digest else None


def _keep_raw(project: Project, content: bytes) -> str:
    """Stores the output of a tool, if it is not too long, and returns its digest."""
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
    """The evidence of `prove` for one model. ``stand_in`` says why the tokenizer is not the model's own; ``reference``
    names the image that it was compared with."""

    evidence: Evidence
    raw: bytes
    stand_in: str = ""
    reference: str = ""


@dataclass(frozen=True)
class ProvedImage:
    """The result for one model of an image: its run, the run's file, and the other fields of `Proof`."""

    image: ImageName
    evidence: Evidence
    file: str
    stand_in: str = ""
    reference: str = ""


def keep_proof(project: Project, name: ImageName, proof: Proof) -> ProvedImage:
    evidence = replace(proof.evidence, subject=replace(proof.evidence.subject, image=str(name)))
    path = add_run(project, name, evidence, proof.raw)
    return ProvedImage(name, evidence, project.relative(path), proof.stand_in, proof.reference)
