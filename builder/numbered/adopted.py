"""Adopted images: the file ``adopted.json`` in their build directory, and the way back to one that is missing.

An adopted image was built elsewhere: its build directory says what is in it, and cannot build it again.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from builder.plan import layout
from builder.storage import regular_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from builder.lock.model import ImageName, NumberedImage

FILE = layout.ADOPTED
_LARGEST = 64 << 20
_VERSION = 1


@dataclass(frozen=True)
class AdoptedContents:
    """The contents of an adopted image, as they were read out of it: the labels, the software as
    `engine.installed.InstalledSoftware` has it, and the entrypoint. ``unknown`` says why the software is not known;
    empty where it is."""

    fingerprint: str
    labels: Mapping[str, str] = field(default_factory=dict)
    python: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    unknown: str = ""
    entrypoint: tuple[str, ...] = ()


def dump(contents: AdoptedContents) -> bytes:
    """Returns the content of the file."""
    return json.dumps({"version": _VERSION, **asdict(contents)}, indent=1, ensure_ascii=False).encode() + b"\n"


def read(directory: Path) -> AdoptedContents | None:
    """Reads the file in a build directory; None where it is gone or damaged."""
    try:
        data = json.loads(regular_file.read(directory / FILE, _LARGEST))
        if data.pop("version") != _VERSION:
            return None
        contents = AdoptedContents(**{**data, "entrypoint": tuple(data.get("entrypoint", ()))})
        mappings = (contents.labels, contents.packages, contents.metadata)
        texts = (contents.fingerprint, contents.python, contents.unknown, *(v for m in mappings for v in m.values()))
        texts = (*texts, *contents.entrypoint)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return contents if all(isinstance(text, str) for text in texts) else None


def way_back(name: ImageName, image: NumberedImage) -> str:
    """Returns what brings a number back that the engine lacks: the registry first, then what it was made from."""
    if image.digest:
        return f"with `registry:` in builder.yaml, `builder pull {name}` gets it back"
    if image.adopted is None:
        return f"`builder rebuild {name}` builds it again"
    if image.adopted.digests:
        source = image.adopted.digests[0]
        return f"`docker pull {source}`, then `builder adopt {source} --as {name.repository}` gives it its number again"
    again = f"`builder adopt IMAGE --as {name.repository}`"
    return f"bring it back from where it was built; then {again} gives it its number again"
