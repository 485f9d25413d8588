"""The ``--version`` option: the release of this program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder import release

if TYPE_CHECKING:
    from builder.release import ProgramRelease


def run() -> ProgramRelease:
    """The release that is running, with its commit where that is recorded."""
    return release.of_this_program()
