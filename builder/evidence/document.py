"""The JSON of a piece of evidence: made of the record, and read back from a file that anyone may have written.

The schema in ``evidence.schema.json`` says which files are valid; numbers are finite, and no key stands twice.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from builder.errors import Location, Problem
from builder.evidence.record import Evidence, Figure, Finding, Machine, Subject

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SCHEMA = Path(__file__).parent / "evidence.schema.json"
FORMAT = 1
_TOLD = 3  # problems of one file: the first say enough
# What may be otherwise in another copy of the same run: where it came from, and its place among the runs there.
_OF_THE_COPY = frozenset({"foreign", "sequence"})


class UnreadableError(Exception):
    """Text that is no evidence; ``problems`` are its faults with their places."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__(problems)
        self.problems = problems


def of(evidence: Evidence) -> dict[str, Any]:
    """The record as JSON data. The derived figures are in it as well, so that a reader needs no statistics."""
    return {
        **of_outline(evidence),
        **_filled({"sampling": dict(evidence.sampling), "counts": dict(evidence.counts)}),
        **_filled({"figures": [_of_figure(figure) for figure in evidence.figures]}),
        **_filled({"findings": [vars(finding) for finding in evidence.findings]}),
        **_filled({"goldens": dict(evidence.goldens), "raw": evidence.raw}),
    }


def of_outline(evidence: Evidence) -> dict[str, Any]:
    """The part of the JSON data that tells how an image stands: all but the results in full."""
    subject = evidence.subject
    return {
        "format": FORMAT,
        "kind": evidence.kind,
        "name": evidence.name,
        "version": evidence.version,
        "set": evidence.set,
        "started": evidence.started,
        "seconds": float(evidence.seconds),
        "verdict": evidence.verdict,
        **_filled({"accepted": evidence.accepted, "foreign": evidence.foreign, "sequence": evidence.sequence}),
        "subject": {
            "image": subject.image,
            "fingerprint": subject.fingerprint,
            **_filled({name: getattr(subject, name) for name in ("model", "revision", "template", "recipe")}),
            **_filled({"arguments": subject.arguments, "overrides": dict(subject.overrides)}),
            **({"machine": vars(subject.machine)} if subject.machine else {}),
        },
    }


def text(evidence: Evidence) -> str:
    """The record as the text of its file."""
    return json.dumps(of(evidence), ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def identity(evidence: Evidence) -> str:
    """The SHA-256 of a run, in hex digits: the same for each copy of it, wherever it came from."""
    return _digest(of(evidence))


def parse(content: bytes, file: str) -> tuple[Evidence, str]:
    """Returns the evidence in the content of ``file``, and the identity of what it holds. Raises UnreadableError."""
    try:
        written = content.decode()
        data = _decoder().decode(written)
        digest = _digest(data) if isinstance(data, dict) else ""
    except json.JSONDecodeError as error:
        raise _unreadable(file, f"not JSON: {error.msg}", error.lineno, error.colno) from None
    except RecursionError:
        raise _unreadable(file, "not evidence: blocks within blocks, too deep") from None
    except ValueError as error:  # UnicodeError and the refusals below among them
        raise _unreadable(file, f"not evidence: {_short(str(error))}") from None
    if isinstance(data, dict) and isinstance(data.get("format"), int) and data["format"] > FORMAT:
        raise _unreadable(file, "written by a newer version of this program")
    faults = tuple(_faults(data))
    if faults:
        raise UnreadableError(tuple(Problem(Location(file), fault) for fault in faults))
    return _read(data), digest


def read_outline(data: Mapping[str, Any]) -> Evidence:
    """The run of an outline that this program wrote, without its results. Raises KeyError or TypeError for others."""
    return _read(data)


def problem(evidence: Evidence) -> str:
    """The first reason why a record cannot be kept, which is a mistake of this program; empty where there is none."""
    try:
        parse(text(evidence).encode(), "evidence")
    except UnreadableError as error:
        return error.problems[0].message
    except ValueError as error:
        return str(error)
    return ""


def _filled(parts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in parts.items() if value not in (None, "", 0) and value != {} and value != []}


def _of_figure(figure: Figure) -> dict[str, Any]:
    return {
        "name": figure.name,
        "at": dict(figure.at),
        "unit": figure.unit,
        "better": figure.better,
        "n": len(figure.values),
        "mean": figure.mean,
        "std": figure.std,
        "values": [float(value) for value in figure.values],
    }


def _read(data: Mapping[str, Any]) -> Evidence:
    subject = data["subject"]
    machine = subject.get("machine")
    parts = {
        **data,
        "subject": Subject(**{**subject, "machine": Machine(**machine) if machine else None}),
        "figures": tuple(_read_figure(figure) for figure in data.get("figures", ())),
        "findings": tuple(Finding(**finding) for finding in data.get("findings", ())),
    }
    del parts["format"]
    return Evidence(**parts)


def _read_figure(data: Mapping[str, Any]) -> Figure:
    values = tuple(float(value) for value in data["values"])
    return Figure(data["name"], data["at"], data["unit"], data["better"], values)


@functools.cache
def _decoder() -> json.JSONDecoder:
    """One for all files: to make one takes as long as to read a small file with it."""
    return json.JSONDecoder(parse_float=_finite, parse_constant=_refuse_constant, object_pairs_hook=_without_repetition)


@functools.cache
def _encoder() -> json.JSONEncoder:
    return json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _digest(data: Mapping[str, Any]) -> str:
    """The digest of the data whatever its layout is: git and editors change line ends and indentation."""
    kept = {name: value for name, value in data.items() if name not in _OF_THE_COPY}
    plain = _encoder().encode(kept)
    return hashlib.sha256(plain.encode()).hexdigest()


@functools.cache
def _validator() -> Any:
    import jsonschema_rs

    return jsonschema_rs.Draft202012Validator(json.loads(SCHEMA.read_bytes()))


def _faults(data: Any) -> Iterator[str]:
    if _validator().is_valid(data):
        return
    for number, error in enumerate(_validator().iter_errors(data)):
        if number == _TOLD:
            yield "and more"
            return
        path = ".".join(map(str, error.instance_path))
        yield _short(f"{path}: {error.message}" if path else str(error.message))


def _short(message: str) -> str:
    return message if len(message) <= 160 else f"{message[:100]} … {message[-50:]}"


def _unreadable(file: str, message: str, line: int = 1, column: int = 1) -> UnreadableError:
    return UnreadableError((Problem(Location(file, line, column), message),))


def _finite(written: str) -> float:
    value = float(written)
    if not math.isfinite(value):
        raise ValueError(f"{_short(written)} is no finite number")
    return value


def _refuse_constant(written: str) -> NoReturn:
    raise ValueError(f"{written} is no finite number")


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    block = dict(pairs)
    if len(block) < len(pairs):
        raise ValueError("a key stands twice")
    return block
