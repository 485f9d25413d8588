"""The speed of earlier builds on this machine, in bytes of the result a second: a memory that may be lost."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from builder.storage import state_file, unfinished_file

if TYPE_CHECKING:
    from builder.project import Project

# Until a build was measured: what a plain NVMe disk does, read and written at once.
_UNMEASURED = 500_000_000.0
_LEAST_SECONDS = 1.0


def expected(project: Project) -> float:
    """The bytes a second to reckon with."""
    try:
        speed = json.loads((project.state / "checkpoints.json").read_bytes())["bytes_per_second"]
    except (OSError, ValueError, KeyError, TypeError):
        return _UNMEASURED
    return float(speed) if isinstance(speed, int | float) and speed > 0 else _UNMEASURED


def record(project: Project, size: int, seconds: float) -> None:
    """Remembers that ``size`` bytes were made; less than a second says nothing."""
    if seconds >= _LEAST_SECONDS and size > 0:
        content = json.dumps({"bytes_per_second": round(size / seconds)})
        state_file.write(project.state / "checkpoints.json", content.encode())
    else:
        unfinished_file.remove_stale(project.state / "checkpoints.json")
