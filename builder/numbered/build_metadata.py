"""build-metadata.yaml in a build directory: what other tools read from an image, and what its templates were told."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from builder.storage import regular_file

if TYPE_CHECKING:
    from pathlib import Path

_LARGEST = 1 << 20


def read(folder: Path) -> dict[str, Any]:
    """Reads the file; empty where it is gone or was written by something else."""
    try:
        content = regular_file.read(folder / "build-metadata.yaml", _LARGEST)
        pairs = (line.partition(": ") for line in content.decode().splitlines())
        return {key: json.loads(value) for key, _, value in pairs}
    except (OSError, ValueError, RecursionError):
        return {}
