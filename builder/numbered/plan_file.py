"""plan.json in a build directory: the steps of the build, with what each took in.

It has a module of its own because `rollback` reads it to tell what changes, and waits for nothing else that
`build_directory` imports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.plan import explain, layout
from builder.storage import regular_file

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from builder.plan.model import Step

FILE = layout.PLAN
LARGEST = 64 << 20
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)


def read(directory: Path) -> tuple[Step, ...]:
    """Returns the steps of the build in ``directory``. Raises one of UNREADABLE where the file is gone or damaged."""
    return explain.read_steps(regular_file.read(directory / FILE, LARGEST).decode())


def packages(steps: Iterable[Step]) -> dict[str, str]:
    """Returns the version of each Python package that ``steps`` installed or found in the base, by name."""
    takes = {
        name: at
        for step in steps
        if step.name.rpartition(": ")[2] in {"base packages", "python packages"}
        for name, at in step.takes.items()
    }
    return {name: identity.partition(" ")[0] for name, identity in sorted(takes.items())}


def read_if_possible(directory: Path) -> tuple[Step, ...] | None:
    """Returns the steps of the build in ``directory``; None where the file is gone or damaged."""
    try:
        return read(directory)
    except UNREADABLE:
        return None
