"""The release of this program: its number, and the commit that it was made from."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PACKAGE = Path(__file__).parent
# Written by hatch_build.py when a wheel or a source archive is made.
COMMIT_FILE = _PACKAGE / "commit"
_SHORT = 12


@dataclass(frozen=True)
class ProgramRelease:
    """The number of a release, and the commit that it was made from; empty where that is not recorded."""

    number: str
    commit: str

    def __str__(self) -> str:
        return f"{self.number} ({self.commit[:_SHORT]})" if self.commit else self.number


def of_this_program() -> ProgramRelease:
    """The release that is running: of a wheel as it was recorded when that was made, of a checkout as git has it."""
    from importlib import metadata

    return ProgramRelease(metadata.version("builder"), _commit())


def _commit() -> str:
    with suppress(OSError):
        return COMMIT_FILE.read_text(encoding="ascii").strip()
    checkout = _PACKAGE.parent
    if not (checkout / ".git").exists():  # a repository further above has another program
        return ""
    from builder.sources.git import project_history

    return project_history.commit_of(checkout)
