"""The cache file of facts about an engine, kept between runs. It may be deleted at any time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from builder.storage import regular_file, state_file

if TYPE_CHECKING:
    from pathlib import Path

_VERSION = 1
_LARGEST = 64 << 20


def load(path: Path) -> dict[str, Any]:
    """Returns the sections of the file; none where it is missing, damaged or of another version."""
    try:
        value = json.loads(regular_file.read(path, _LARGEST))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(value, dict) or value.get("version") != _VERSION:
        return {}
    return {key: section for key, section in value.items() if isinstance(section, dict)}


def store(path: Path, section: str, content: dict[str, Any]) -> None:
    """Replaces one section; the others stay as they are in the file now.

    Atomic for a reader. Of two writers at once the later one wins, and the other's facts are asked for again. A folder
    that cannot be written to is no error: the next run is only slower.
    """
    value = {**load(path), "version": _VERSION, section: content}
    state_file.write(path, json.dumps(value).encode())
