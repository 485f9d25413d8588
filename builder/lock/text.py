"""images.lock as text: stable order, one value a line, blocks set apart by blank lines.

The layout is for ``git merge`` and for people: a diff shows only what changed, and what two branches add stands in
different hunks. Git takes two changes for one conflict unless a line that both branches have stands between them. So

- a number's place is marked by a comment before the number is given, and all that a build adds stands there;
- what is current, and which image serves a model, is not one line that every build rewrites: each number and each
  pairing has its ``sequence``, and the highest is the one that counts;
- within a number, what may change later stands between lines that never do.

The last line ends the YAML document: a file without it was cut off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builder.lock.file_problems import END
from builder.lock.model import VERSION, ImageName, Lock, NumberedImage, Pairing, Repository, Version
from builder.lock.pins import WheelPin
from builder.lock.quoting import LONGEST_KEY, quote

if TYPE_CHECKING:
    from builder.lock.pins import LockedPackage, Pins, PythonPin, SourcePin

HEADER = f"""\
# images.lock: what every numbered image was built from, and which image serves which model.
# The program writes it: `builder build`, `lock`, `rollback`, `promote`, `pair`, `mark`, `pin` and `prune` change it.
# Read it, review it, commit it. The highest `sequence` is current, or serves the model. Lines such as `# 8` keep the
# places of numbers, so that branches merge. The last line, `{END}`, shows that nothing is cut off.
"""
_AHEAD = 6  # places after the highest number, at least
_ROUND = 10

Pairings = dict[str, tuple[int, Pairing]]
"""The pairings of one image: by model, each with its sequence."""


class _Apart(dict[Any, Any]):
    """A mapping whose blocks are set apart by blank lines."""


class _Numbers(dict[int, Any]):
    """The blocks of numbers, each below the mark of its place."""


def dump(lock: Lock) -> str:
    """``lock`` as the text of images.lock. Raises UsageError for a string that is not Unicode text."""
    serving = _pairings(lock)
    sections = {
        "definitions": _Apart(
            (definition, _Apart((platform, _pins(pins)) for platform, pins in sorted(platforms.items())))
            for definition, platforms in sorted(lock.pins.items())
        ),
        "images": _Apart(
            (name, _repository(name, repository, serving)) for name, repository in sorted(lock.images.items())
        ),
    }
    out = [f"{HEADER}version: {VERSION}"]
    for name, section in sections.items():
        if section:
            out.append("")
            _emit({name: section}, "", out)
    out += ["", END, ""]
    return "\n".join(out)


def _pairings(lock: Lock) -> dict[ImageName, Pairings]:
    found: dict[ImageName, Pairings] = {}
    for name, model in sorted(lock.models.items()):
        for sequence, pairing in enumerate(reversed((model.pairing, *model.previous)), start=1):
            found.setdefault(pairing.image, {})[name] = (sequence, pairing)
    return found


def _pins(pins: Pins) -> dict[str, Any]:
    block: dict[str, Any] = {}
    if pins.base:
        block["base"] = {"asked": pins.base.asked, "resolved": pins.base.resolved}
    if pins.sources:
        block["sources"] = {name: _source(pin) for name, pin in sorted(pins.sources.items())}
    if pins.python:
        block["python"] = _python(pins.python)
    if pins.build:
        block["build"] = _python(pins.build)
    return block


def _source(pin: SourcePin) -> dict[str, Any]:
    if isinstance(pin, WheelPin):
        return {"asked": pin.asked, "version": pin.version, "commit": pin.commit}
    block = {"git": pin.git, "asked": pin.asked, "commit": pin.commit, "version": pin.version, "date": pin.date}
    if pin.pulls:
        pulls = [{"number": pull.number, "head": pull.head, "sha256": pull.sha256} for pull in pin.pulls]
        return {**block, "pulls": pulls}
    return block


def _python(pin: PythonPin) -> dict[str, Any]:
    packages = sorted(pin.packages, key=lambda package: package.name)
    lines = {package.name: _package(package) for package in packages}
    return {"asked": list(pin.asked), "newest": pin.newest, "packages": lines}


def _package(package: LockedPackage) -> str:
    return " ".join((package.version, *(f"sha256:{digest}" for digest in package.hashes)))


def _repository(name: str, repository: Repository, serving: dict[ImageName, Pairings]) -> dict[str, Any]:
    block: dict[str, Any] = {}
    if repository.next > max(repository.numbers, default=0) + 1:
        block["next"] = repository.next
    order = (*([repository.current] if repository.current else []), *repository.previous)
    sequences = {number: sequence for sequence, number in enumerate(reversed(order), start=1)}
    block["numbers"] = _Numbers(
        (number, _image(image, sequences.get(number), serving.get(ImageName(name, number), {})))
        for number, image in sorted(repository.numbers.items())
    )
    return block


def _image(image: NumberedImage, sequence: int | None, pairings: Pairings) -> dict[str, Any]:
    block: dict[str, Any] = {
        "built": image.built,
        "sequence": sequence,
        "definition": image.definition,
        "platform": image.platform,
        "pinned": image.pinned or None,
        "fingerprint": image.fingerprint,
        "input_hash": image.input_hash,
        "pruned": image.pruned,
        "size": image.size,
        "status": image.status,
        "note": image.note or None,
        "recipe": image.recipe,
        "digest": image.digest,
        "builder": image.builder,
        "versions": {name: _version(version) for name, version in sorted(image.versions.items())} or None,
        "mods": dict(sorted(image.mods.items())) or None,
        "models": {model: _pairing(sequence, pairing) for model, (sequence, pairing) in pairings.items()} or None,
    }
    return {key: value for key, value in block.items() if value is not None}


def _version(version: Version) -> dict[str, Any]:
    return {"version": version.version, "commit": version.commit}


def _pairing(sequence: int, pairing: Pairing) -> dict[str, Any]:
    block: dict[str, Any] = {
        "sequence": sequence,
        "recipe": pairing.recipe,
        "revision": pairing.revision,
        "status": pairing.status,
        "note": pairing.note or None,
    }
    return {key: value for key, value in block.items() if value is not None}


def _emit(block: dict[Any, Any], indent: str, out: list[str]) -> None:
    apart = isinstance(block, _Apart)
    for position, (name, value) in enumerate(block.items()):
        if apart and position:
            out.append("")
        named = _key(name, indent)
        if isinstance(value, _Numbers):
            out.append(named if value else f"{named} {{}}")
            _emit_numbers(value, indent + "  ", out)
        elif isinstance(value, dict) and value:
            out.append(named)
            _emit(value, indent + "  ", out)
        elif isinstance(value, list) and value:
            out.append(named)
            _emit_items(value, indent + "  ", out)
        else:
            out.append(f"{named} {_leaf(value)}")


def _emit_numbers(numbers: dict[int, Any], indent: str, out: list[str]) -> None:
    for place in _places(numbers):
        out.append(f"{indent}# {place}")
        if place in numbers:
            _emit({place: numbers[place]}, indent, out)
            out.append("")
        if place % _ROUND == 0:
            out.append(f"{indent}# after {place}")


def _places(numbers: dict[int, Any]) -> list[int]:
    """Every number given, and after each enough places for those that several branches will give. They end at round
    numbers: where two branches both need more, they add the same lines, which is no conflict. A line of its own after
    that keeps what is added there apart from the block of the round number."""
    places = set(numbers)
    for number in (0, *numbers):
        end = -(-(number + _AHEAD) // _ROUND) * _ROUND
        places.update(range(number + 1, end + 1))
    return sorted(places)


def _key(name: str | int, indent: str) -> str:
    quoted = quote(name) if isinstance(name, str) else str(name)
    if len(quoted) > LONGEST_KEY:
        return f"{indent}? {quoted}\n{indent}:"
    return f"{indent}{quoted}:"


def _emit_items(items: list[Any], indent: str, out: list[str]) -> None:
    for item in items:
        if isinstance(item, dict):
            first = len(out)
            _emit(item, indent + "  ", out)
            out[first] = f"{indent}- {out[first].lstrip(' ')}"
        else:
            out.append(f"{indent}- {_leaf(item)}")


def _leaf(value: object) -> str:
    if isinstance(value, str):
        return quote(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)  # a whole number, or the `[]` or `{}` of an empty block
