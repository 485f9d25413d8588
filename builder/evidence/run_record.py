"""A piece of evidence records one run of a numbered image: its verdict, its figures, and what they belong to.

A file of evidence may come from anyone, so the reader checks it against ``evidence.schema.json``; numbers are finite,
and no key stands twice.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from builder.base import records
from builder.base.errors import FileProblemsError, Location, Problem
from builder.base.machine_record import Machine  # noqa: TC001 (the type of a record)

if TYPE_CHECKING:
    from collections.abc import Iterator

Kind = Literal["prove", "bench", "probe", "same"]
Verdict = Literal["pass", "changed", "fail", "unclear"]
Better = Literal["higher", "lower", ""]
SAME = "answers"
"""The name of every comparison of an image with another one."""
Settings: TypeAlias = Mapping[str, int | float | str]


@dataclass(frozen=True)
class Subject:
    """A run's subject: all that its result belongs to. A part is None if it does not exist or was not looked at.

    ``image`` is the name that the image had then (``vllm-node-tf5:7``); ``fingerprint`` says which one it is.
    ``revision`` is a commit of the model's repository. ``template`` (``sha256:…``) is the chat template that was in
    effect. ``recipe`` is its path in the project. ``arguments`` (``sha256:…``) covers the serve command, see
    `standing.of_arguments`; ``overrides`` are the ``--set`` and options of that run alone. ``machine`` is the one that
    answers, and ``workers`` are those that serve together with it.
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
    """One measured quantity: ``name`` (``tg``, ``pp``, ``ttfr``, ``acceptance``, ``memory_floor``, ``kv_tokens``,
    ``startup`` …) under the conditions ``at`` (``{"depth": 32768, "concurrency": 1}``), once for each of its
    ``values``. ``unit`` is ``tokens/s``, ``ms``, ``s``, ``bytes``, ``tokens`` or ``ratio``; ``better`` is empty where
    neither more nor less is."""

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
        """The standard deviation of a sample; 0 of less than two values."""
        if len(self.values) < 2:
            return 0.0
        mean = self.mean
        return math.sqrt(math.fsum((value - mean) ** 2 for value in self.values) / (len(self.values) - 1))


@dataclass(frozen=True)
class Finding:
    """One check that did not pass, the place (a conversation, a step), and the difference. A limit of a template that
    others publish has the verdict ``pass`` (`judging.tell_limits`)."""

    check: str
    at: str
    verdict: Verdict
    text: str


@dataclass(frozen=True)
class Evidence:
    """One run. ``name`` is ``behaviour`` for a proof, `SAME` for a comparison, else the bench profile or the probe;
    ``version`` that of the tool (``llama-benchy 0.4.0``), and ``set`` (``sha256:…``) the conversations, script, profile
    or texts: with another one, it is another figure. ``started`` is RFC 3339 in UTC.

    ``goldens`` are the token ids of a proof, by conversation, each as the beginning of a SHA-256. ``chosen`` is what
    vLLM chose by itself (`server_log.read_choices`). ``raw`` is the digest
    of the tool's whole output (`store.raw_answers`). ``accepted`` is the note with which changes were accepted as
    meant; the verdict then is ``pass``. ``foreign`` says where a run from elsewhere came from, and is empty for the
    project's own. ``sequence`` is its place among the runs of its number, which clocks have no part in; `store.add_run`
    gives it. ``file`` is the name of the file that it was read from, and no part of it.
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
    foreign: str = ""
    sequence: int = 0
    file: str = field(default="", compare=False)


def unlike(run: Evidence, other: Evidence) -> Iterator[str]:
    """Yields all that makes the figures of two runs of one kind incomparable."""
    if run.set != other.set or run.name != other.name:
        sets = {"prove": "other conversations", "bench": "another profile", "same": "other texts"}
        yield sets.get(run.kind, "another probe")
    if run.version != other.version:
        yield f"{run.version} and {other.version}"
    then, now = run.subject.machine, other.subject.machine
    if then and now:
        is_other = bool(then.cpu and now.cpu) and then.cpu != now.cpu  # earlier runs on arm64 do not name the processor
        if is_other or (then.gpu, then.gpus, then.platform) != (now.gpu, now.gpus, now.platform):
            yield "another machine"
    if dict(run.sampling) != dict(other.sampling):
        yield "other sampling"
    if dict(run.subject.overrides) != dict(other.subject.overrides):
        yield "different options in the command"


SCHEMA = Path(__file__).parent / "evidence.schema.json"
FORMAT = 1
HINT = "restore the committed file with git, or delete it: each file is one run, independent of the others"
_ALWAYS = frozenset({*("name", "version", "set", "started", "verdict", "seconds"), *("image", "fingerprint")})
_FIRST_FACTS = frozenset({"gpu", "gpus", "driver", "platform", "cpu", "memory"})
_DERIVED = ("n", "mean", "std")
_TOLD = 3  # problems of one file: the first say enough
# What may be otherwise in another copy of the same run: where it came from, and its place among the runs there.
_OF_THE_COPY = frozenset({"foreign", "sequence"})


def evidence_document(evidence: Evidence) -> dict[str, Any]:
    """The record as JSON data, without what is empty. The derived figures are in it as well, so that a reader needs no
    statistics."""
    data = {name: value for name, value in records.plain(evidence).items() if value or name in _ALWAYS}
    data.pop("file", None)
    data["seconds"] = float(evidence.seconds)
    subject = {name: value for name, value in data["subject"].items() if value or name in _ALWAYS}
    if evidence.subject.machine:
        subject["machine"] = _known(subject["machine"])
    if evidence.subject.workers:
        subject["workers"] = list(map(_known, subject["workers"]))
    data["subject"] = subject
    if evidence.figures:
        data["figures"] = list(map(figure_document, evidence.figures))
    return {"format": FORMAT, **data}


def _known(machine: Mapping[str, Any]) -> dict[str, Any]:
    """A machine without what is not known. The first facts of it that were recorded are always there, so that the
    identity of an earlier run stays."""
    facts = machine.items()
    return {name: value for name, value in facts if value or name in _FIRST_FACTS or (name == "cma" and value == 0)}


def figure_document(figure: Figure) -> dict[str, Any]:
    derived = {"n": len(figure.values), "mean": figure.mean, "std": figure.std}
    return {**records.plain(figure), **derived, "values": [float(value) for value in figure.values]}


def evidence_text(evidence: Evidence) -> str:
    return json.dumps(evidence_document(evidence), ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def evidence_identity(evidence: Evidence) -> str:
    """The SHA-256 of a run, in hex digits: the same for each copy of it, wherever it came from."""
    return _digest(evidence_document(evidence))


def parse_evidence(content: bytes, file: str) -> tuple[Evidence, str]:
    """The evidence in the content of ``file``, and its identity. Raises FileProblemsError with the faults."""
    try:
        data = _decoder().decode(content.decode())
        if not (faults := list(_faults(data))):
            return _read(data), _digest(data)
    except json.JSONDecodeError as error:
        problem = Problem(Location(file, error.lineno, error.colno), f"not JSON: {error.msg}")
        raise FileProblemsError((problem,), hint=HINT) from None
    except RecursionError:
        faults = ["not evidence: blocks are nested too deeply"]
    except ValueError as error:  # UnicodeError and the refusals below among them
        faults = [f"not evidence: {_short(str(error))}"]
    raise FileProblemsError(tuple(Problem(Location(file), fault) for fault in faults), hint=HINT)


def _read(data: Mapping[str, Any]) -> Evidence:
    """The run in ``data``, but for what is derived from its values."""
    figures = [{key: each[key] for key in each if key not in _DERIVED} for each in data.get("figures", ())]
    kept = {key: value for key, value in data.items() if key != "format"}
    return records.record(Evidence, {**kept, "figures": figures})


@functools.cache
def _decoder() -> json.JSONDecoder:
    """One for all files: to make one takes as long as to read a small file with it."""
    return json.JSONDecoder(parse_float=_finite, parse_constant=_finite, object_pairs_hook=_without_repetition)


def _digest(data: Mapping[str, Any]) -> str:
    """The digest of the data whatever its layout is: git and editors change line ends and indentation."""
    kept = {name: value for name, value in data.items() if name not in _OF_THE_COPY}
    plain = json.dumps(kept, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(plain.encode()).hexdigest()


def _faults(data: Any) -> Iterator[str]:
    if isinstance(data, dict) and isinstance(data.get("format"), int) and data["format"] > FORMAT:
        yield "written by a newer version of this program"
        return
    from builder.base.yaml_file import validator

    if validator(SCHEMA).is_valid(data):
        return
    for number, error in enumerate(validator(SCHEMA).iter_errors(data)):
        if number == _TOLD:
            yield "and more"
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
