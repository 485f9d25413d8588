"""What the build of a number took in, as its build directory keeps it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.plan import explain

if TYPE_CHECKING:
    from pathlib import Path

    from builder.plan.model import Step

FILE = "plan.json"


def read(directory: Path) -> tuple[Step, ...] | None:
    """The steps of the build in ``directory``; None where its plan is gone or cannot be read."""
    try:
        return explain.read_steps((directory / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError):
        return None
