"""images.lock as text: stable order, one value a line, blocks set apart by blank lines.

The layout is for ``git merge`` and for people: what two branches add for different images or models stands in
different hunks, and a diff shows only what changed.
The last line ends the YAML document: a file without it was cut off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builder.lock.faults import END
from builder.lock.model import VERSION, Lock, Model, NumberedImage, Pairing, Repository, Version
from builder.lock.pins import WheelPin
from builder.lock.quoting import LONGEST_KEY, quote

if TYPE_CHECKING:
    from builder.lock.pins import LockedPackage, Pins, PythonPin, SourcePin

HEADER = f"""\
# images.lock: what every numbered image was built from, and which image serves which model.
# The program writes it: `builder build`, `lock`, `rollback`, `promote`, `pair`, `mark`, `pin` and `prune` change it.
# Read it, review it, commit it. The last line, `{END}`, shows that nothing is cut off.
"""


class _Apart(dict[Any, Any]):
    """A mapping whose blocks are set apart by blank lines."""


def dump(lock: Lock) -> str:
    """``lock`` as the text of images.lock. Raises UsageError for a string that is not Unicode text."""
    sections = {
        "definitions": _Apart(
            (definition, _Apart((platform, _pins(pins)) for platform, pins in sorted(platforms.items())))
            for definition, platforms in sorted(lock.pins.items())
        ),
        "images": _Apart((name, _repository(repository)) for name, repository in sorted(lock.images.items())),
        "models": _Apart((name, _model(model)) for name, model in sorted(lock.models.items())),
    }
    out = [f"{HEADER}version: {VERSION}"]
    for name, section in sections.items():
        if section:
            out.append("")
            _emit({name: section}, "", out)
    out += ["", END, ""]
    return "\n".join(out)


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


def _repository(repository: Repository) -> dict[str, Any]:
    block: dict[str, Any] = {"next": repository.next}
    if repository.current is not None:
        block["current"] = repository.current
    if repository.previous:
        block["previous"] = list(repository.previous)
    if repository.numbers:
        block["numbers"] = _Apart((number, _image(image)) for number, image in sorted(repository.numbers.items()))
    return block


def _image(image: NumberedImage) -> dict[str, Any]:
    block: dict[str, Any] = {
        "built": image.built,
        "definition": image.definition,
        "platform": image.platform,
        "fingerprint": image.fingerprint,
        "input_hash": image.input_hash,
        "size": image.size,
        "status": image.status,
    }
    if image.note:
        block["note"] = image.note
    if image.pinned:
        block["pinned"] = True
    if image.recipe is not None:
        block["recipe"] = image.recipe
    if image.digest is not None:
        block["digest"] = image.digest
    if image.builder is not None:
        block["builder"] = image.builder
    if image.versions:
        block["versions"] = {name: _version(version) for name, version in sorted(image.versions.items())}
    if image.mods:
        block["mods"] = dict(sorted(image.mods.items()))
    return block


def _version(version: Version) -> dict[str, Any]:
    return {"version": version.version, "commit": version.commit}


def _model(model: Model) -> dict[str, Any]:
    block = _pairing(model.pairing)
    if model.previous:
        block["previous"] = [_pairing(pairing) for pairing in model.previous]
    return block


def _pairing(pairing: Pairing) -> dict[str, Any]:
    block: dict[str, Any] = {"image": str(pairing.image)}
    if pairing.recipe is not None:
        block["recipe"] = pairing.recipe
    if pairing.revision is not None:
        block["revision"] = pairing.revision
    block["status"] = pairing.status
    if pairing.note:
        block["note"] = pairing.note
    return block


def _emit(block: dict[Any, Any], indent: str, out: list[str]) -> None:
    apart = isinstance(block, _Apart)
    for position, (name, value) in enumerate(block.items()):
        if apart and position:
            out.append("")
        named = _key(name, indent)
        if isinstance(value, dict) and value:
            out.append(named)
            _emit(value, indent + "  ", out)
        elif isinstance(value, list) and value:
            out.append(named)
            _emit_items(value, indent + "  ", out)
        else:
            out.append(f"{named} {_leaf(value)}")


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
