"""What every key of images.lock holds, and the lock that all of it makes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from builder.lock.checks import flag, list_of, mapping, matching, optional, record, text, whole
from builder.lock.model import VERSION, ImageName, Lock, Model, NumberedImage, Pairing, Repository, Version
from builder.lock.pins import BasePin, GitPin, LockedPackage, Pins, PullPin, PythonPin, SourcePin, WheelPin

if TYPE_CHECKING:
    from builder.lock.checks import Check
    from builder.lock.lines import Data


def lock_of(data: Data) -> Lock:
    """The lock that the data of a whole file says. Raises WrongError with the path of everything that is wrong."""
    found: Lock = _LOCK(data)
    return found


_TIME = matching(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "a time in UTC such as `2026-11-20T22:00:00Z`")
_DIGEST = matching("sha256:[0-9a-f]{64}", "a digest such as `sha256:` and 64 hex digits")
_STATUS = matching("untested|good|bad", "`untested`, `good` or `bad`")
_PACKAGE_LINE = matching(r"\S+( sha256:[0-9a-f]{64})*", "a version and `sha256:` hashes of 64 hex digits")


def _packages(data: Data) -> tuple[LockedPackage, ...]:
    lines: dict[str, str] = mapping(_PACKAGE_LINE)(data)
    packages = []
    for name in sorted(lines):
        version, *hashes = lines[name].split(" sha256:")
        packages.append(LockedPackage(name, version, tuple(hashes)))
    return tuple(packages)


class _Numbered(NamedTuple):
    """One number's block: its record, its sequence among what was current, and the pairings with it by model, each with
    its sequence."""

    image: NumberedImage
    sequence: int | None
    models: dict[str, tuple[int, dict[str, Any]]]


class _Held(NamedTuple):
    """One repository's block."""

    next: int
    numbers: dict[int, _Numbered]


def _numbered(sequence: int | None = None, models: Any = None, **rest: Any) -> _Numbered:
    return _Numbered(NumberedImage(**rest), sequence, models or {})


def _pairing(sequence: int, **rest: Any) -> tuple[int, dict[str, Any]]:
    return sequence, rest


def _held(next: int = 1, numbers: Any = None) -> _Held:  # noqa: A002  # the key in the file
    return _Held(next, numbers or {})


def _lock(definitions: Any = None, images: Any = None, **_: object) -> Lock:
    found: dict[str, _Held] = images or {}
    return Lock(definitions or {}, {name: _repository(held) for name, held in found.items()}, _models(found))


def _repository(held: _Held) -> Repository:
    """Of two numbers with the same sequence, given on two branches, the higher one came later."""
    sequences = sorted(((n.sequence, number) for number, n in held.numbers.items() if n.sequence), reverse=True)
    order = tuple(number for _, number in sequences)
    numbers = {number: one.image for number, one in held.numbers.items()}
    above = max(numbers, default=0) + 1
    return Repository(max(held.next, above), order[0] if order else None, order[1:], numbers)


def _models(images: dict[str, _Held]) -> dict[str, Model]:
    found: dict[str, list[tuple[int, ImageName, Pairing]]] = {}
    for repository, held in images.items():
        for number, one in held.numbers.items():
            name = ImageName(repository, number)
            for model, (sequence, said) in one.models.items():
                found.setdefault(model, []).append((sequence, name, Pairing(name, **said)))
    models = {}
    for model in sorted(found):
        (_, _, pairing), *before = sorted(found[model], key=lambda one: one[:2], reverse=True)
        models[model] = Model(pairing, tuple(one for _, _, one in before))
    return models


_TEXT_OR_NOTHING: Check = optional(text)
_BASE = record(BasePin, required={"asked": text, "resolved": text}, others={})
_WHEEL = record(WheelPin, required={"asked": text, "version": text}, others={"commit": _TEXT_OR_NOTHING})
_COMMIT = matching("[0-9a-f]{40}", "a commit of 40 hex digits")
_PULL = record(
    PullPin,
    required={
        "number": whole(1),
        "head": _COMMIT,
        "sha256": matching("[0-9a-f]{64}", "a SHA-256 of 64 hex digits"),
    },
    others={},
)
_GIT = record(
    GitPin,
    required={"git": text, "asked": text, "commit": _COMMIT, "version": text, "date": _TIME},
    others={"pulls": list_of(_PULL)},
)


def _source(data: Data) -> SourcePin:
    pin: SourcePin = _GIT(data) if isinstance(data, dict) and "git" in data else _WHEEL(data)
    return pin


_PYTHON = record(PythonPin, required={"asked": list_of(text), "newest": text, "packages": _packages}, others={})
_PINS = record(
    Pins,
    required={},
    others={"base": _BASE, "sources": mapping(_source), "python": _PYTHON, "build": _PYTHON},
)
_VERSION = record(Version, required={"version": text}, others={"commit": _TEXT_OR_NOTHING})
_SEQUENCE = whole(1)
_PAIRING = record(
    _pairing,
    required={"sequence": _SEQUENCE},
    others={"recipe": _TEXT_OR_NOTHING, "revision": _TEXT_OR_NOTHING, "status": _STATUS, "note": text},
)
_IMAGE = record(
    _numbered,
    required={
        "built": _TIME,
        "definition": text,
        "platform": text,
        "fingerprint": text,
        "input_hash": text,
        "size": whole(0),
    },
    others={
        "sequence": _SEQUENCE,
        "status": _STATUS,
        "note": text,
        "pinned": flag,
        "pruned": _TIME,
        "recipe": _TEXT_OR_NOTHING,
        "digest": _DIGEST,
        "builder": text,
        "versions": mapping(_VERSION),
        "mods": mapping(text),
        "models": mapping(_PAIRING),
    },
)
_REPOSITORY = record(_held, required={}, others={"next": whole(1), "numbers": mapping(_IMAGE, check_key=whole(1))})
_LOCK = record(
    _lock,
    required={"version": matching(str(VERSION), f"`{VERSION}`")},
    others={"definitions": mapping(mapping(_PINS)), "images": mapping(_REPOSITORY)},
)
