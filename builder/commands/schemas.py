"""The JSON Schemas of the project's files and of images.lock, for editors and other programs."""

from __future__ import annotations

from pathlib import Path

from builder import definitions, evidence, lock

_DEFINITIONS = Path(definitions.__file__).parent / "schemas"

FILES = {
    **{name: _DEFINITIONS / f"{name}.schema.json" for name in ("image", "mod", "recipe", "builder", "probe")},
    "lock": Path(lock.__file__).parent / "lock.schema.json",
    "evidence": Path(evidence.__file__).parent / "evidence.schema.json",
}


def text(name: str) -> str:
    """The schema called ``name``, one of FILES, as JSON."""
    return FILES[name].read_text(encoding="utf-8")


def title(name: str) -> str:
    """The title of the schema called ``name``: a line that describes the file."""
    import json

    line: str = json.loads(text(name))["title"]
    return line
