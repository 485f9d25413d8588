"""images.lock as data. A file with anything wrong in it is refused whole, with the place of everything that is.

Unlike a file that people write, a lock that is nearly right is not worth guessing at: it decides which image runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builder.errors import LockError, Place, Problem
from builder.lock.checks import WrongError, flag, mapping, matching, optional, record, sequence, text, whole
from builder.lock.faults import CORRECT, TAKE_BACK, lock_error, refuse_conflict, refuse_cut_off
from builder.lock.lines import read_layout
from builder.lock.model import VERSION, ImageName, Lock, Model, NumberedImage, Pairing, Repository, Version
from builder.lock.pins import BasePin, GitPin, LockedPackage, Pins, PullPin, PythonPin, SourcePin, WheelPin
from builder.lock.rules import broken_rules

if TYPE_CHECKING:
    from pathlib import Path

    from builder.lock.checks import Check
    from builder.lock.lines import Data
    from builder.lock.nodes import Tree


def read(path: Path) -> Lock:
    """The lock in ``path``; an empty one where there is no such file. Raises LockError as ``parse`` does, and for a
    file that cannot be opened."""
    content = read_bytes(path)
    return Lock() if content is None else parse_bytes(content, path.name)


def read_bytes(path: Path) -> bytes | None:
    """What ``path`` holds, None where there is no such file. Raises LockError where it cannot be opened."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LockError(f"{path} cannot be read: {error.strerror}", hint="give it to the user who runs this") from None


def parse_bytes(content: bytes, file: str) -> Lock:
    """As ``parse``, for the bytes of a file. Raises LockError where they are not UTF-8, too."""
    try:
        return parse(content.decode(), file)
    except UnicodeDecodeError as error:
        before = content[: error.start].decode()
        place = Place(file, before.count("\n") + 1, len(before) - before.rfind("\n"))
        raise lock_error([Problem(place, "not UTF-8 text")], TAKE_BACK) from None


def parse(content: str, file: str = "images.lock") -> Lock:
    """The lock that the text says; ``file`` is what errors call it. Raises LockError, with every problem found, for a
    conflict marker, a file cut off, invalid YAML, a newer version, an unknown key, a wrong value, a key or number that
    stands twice, and a number that is pointed at and not there."""
    refuse_conflict(content, file)
    refuse_cut_off(content, file)
    data = read_layout(content)
    if data is not None:
        try:
            return _lock_of(data)
        except WrongError:
            pass  # read again below, with places
    return _parse_yaml(content, file)


def _parse_yaml(content: str, file: str) -> Lock:
    from builder.lock.nodes import read_tree

    tree = read_tree(content, file)
    _refuse_other_version(tree)
    try:
        lock = _lock_of(tree.data)
    except WrongError as error:
        found = [Problem(tree.place(path), message) for path, message in error.problems]
        raise lock_error([*tree.problems, *found], CORRECT) from None
    if tree.problems:
        raise lock_error(tree.problems, CORRECT)
    return lock


def _lock_of(data: Data) -> Lock:
    lock: Lock = _LOCK(data)
    broken = list(broken_rules(lock))
    if broken:
        raise WrongError(broken)
    return lock


def _refuse_other_version(tree: Tree) -> None:
    version = tree.data.get("version") if isinstance(tree.data, dict) else None
    if isinstance(version, str) and version.isdecimal() and version != str(VERSION):
        message = f"{tree.file} is version {version[:20]}; this builder reads {VERSION}"
        problem = Problem(tree.place(("version",)), message)
        raise lock_error([problem], "update builder, or take back with git a lock that this one wrote")


_TIME = matching(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "a time in UTC such as `2026-11-20T22:00:00Z`")
_DIGEST = matching("sha256:[0-9a-f]{64}", "a digest such as `sha256:` and 64 hex digits")
_STATUS = matching("untested|good|bad", "`untested`, `good` or `bad`")
_PACKAGE_LINE = matching(r"\S+( sha256:[0-9a-f]{64})*", "a version and `sha256:` hashes of 64 hex digits")
_IMAGE_NAME = matching(r".*:[1-9][0-9]{0,17}", "a numbered image such as `vllm-node-tf5:7`")


def _packages(data: Data) -> tuple[LockedPackage, ...]:
    lines: dict[str, str] = mapping(_PACKAGE_LINE)(data)
    packages = []
    for name in sorted(lines):
        version, *hashes = lines[name].split(" sha256:")
        packages.append(LockedPackage(name, version, tuple(hashes)))
    return tuple(packages)


def _image_name(data: Data) -> ImageName:
    repository, _, number = _IMAGE_NAME(data).rpartition(":")
    return ImageName(repository, int(number))


def _model(image: ImageName, previous: tuple[Pairing, ...] = (), **rest: Any) -> Model:
    return Model(Pairing(image, **rest), previous)


def _lock(definitions: Any = None, images: Any = None, models: Any = None, **_: object) -> Lock:
    return Lock(definitions or {}, images or {}, models or {})


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
    others={"pulls": sequence(_PULL)},
)


def _source(data: Data) -> SourcePin:
    pin: SourcePin = _GIT(data) if isinstance(data, dict) and "git" in data else _WHEEL(data)
    return pin


_PYTHON = record(PythonPin, required={"asked": sequence(text), "newest": text, "packages": _packages}, others={})
_PINS = record(
    Pins,
    required={},
    others={"base": _BASE, "sources": mapping(_source), "python": _PYTHON, "build": _PYTHON},
)
_VERSION = record(Version, required={"version": text}, others={"commit": _TEXT_OR_NOTHING})
_IMAGE = record(
    NumberedImage,
    required={
        "built": _TIME,
        "definition": text,
        "platform": text,
        "fingerprint": text,
        "input_hash": text,
        "size": whole(0),
    },
    others={
        "status": _STATUS,
        "note": text,
        "pinned": flag,
        "recipe": _TEXT_OR_NOTHING,
        "digest": _DIGEST,
        "builder": text,
        "versions": mapping(_VERSION),
        "mods": mapping(text),
    },
)
_REPOSITORY = record(
    Repository,
    required={"next": whole(1)},
    others={
        "current": optional(whole(1)),
        "previous": sequence(whole(1)),
        "numbers": mapping(_IMAGE, check_key=whole(1)),
    },
)
_PAIRED: dict[str, Check] = {
    "recipe": _TEXT_OR_NOTHING,
    "revision": _TEXT_OR_NOTHING,
    "status": _STATUS,
    "note": text,
}
_PAIRING = record(Pairing, required={"image": _image_name}, others=_PAIRED)
_MODEL = record(_model, required={"image": _image_name}, others={**_PAIRED, "previous": sequence(_PAIRING)})
_LOCK = record(
    _lock,
    required={"version": matching(str(VERSION), f"`{VERSION}`")},
    others={"definitions": mapping(mapping(_PINS)), "images": mapping(_REPOSITORY), "models": mapping(_MODEL)},
)
