"""The JSON Schemas of the project's files, of images.lock and of what commands print, for editors and programs."""

from __future__ import annotations

from builder.explaining import keys

FILES = {**keys.SCHEMAS, **keys.OUTPUTS}


def text(name: str) -> str:
    """The schema called ``name``, one of FILES, as JSON."""
    return FILES[name].read_text(encoding="utf-8")


def title(name: str) -> str:
    """The title of the schema called ``name``: a line that describes the file."""
    import json

    line: str = json.loads(text(name))["title"]
    return line
