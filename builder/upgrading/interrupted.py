"""The upgrades that were interrupted: their journals are there, and no process goes on with them.

^C and the other signals that a process can handle put the server back. After kill -9 the candidate may still run in the
place of the model's own server; the next command ends it, or says how.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.errors import ConflictError
from builder.upgrading import journal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.lock.model import Lock
    from builder.project import Project
    from builder.upgrading.steps import Upgrade


@dataclass(frozen=True)
class InterruptedUpgrade:
    """An upgrade that ended before it was over; ``text`` is what `upgrade` goes on with. ``problem`` says why its
    journal cannot be read; ``upgrade`` is None then."""

    subject: str
    text: str
    upgrade: Upgrade | None
    problem: str = ""

    def __str__(self) -> str:
        if self.upgrade is None:
            return f"an upgrade of {self.subject} was interrupted: {self.problem}"
        at = f"{self.upgrade.stage} of {self.upgrade.candidate}" if self.upgrade.candidate else self.upgrade.stage
        command = f"builder upgrade {shlex.quote(self.text)}"
        serves = " serves the model as before and" if self.upgrade.served and not self.upgrade.result else ""
        return (
            f"an upgrade of {self.subject} was interrupted ({at}): `{command}`{serves} goes on with it, "
            f"`{command} --abort`{serves} gives it up"
        )


def of(project: Project, lock: Lock) -> Iterator[InterruptedUpgrade]:
    """The interrupted upgrades of a project, by subject; none that a process is at."""
    for subject in journal.unfinished(project):
        try:
            upgrade = journal.read(project, subject)
        except ConflictError as error:
            yield InterruptedUpgrade(subject, subject, None, f"{error.message}; {error.hint}")
            continue
        if upgrade is not None:  # it has just ended
            yield InterruptedUpgrade(subject, subject if subject in lock.models else upgrade.target, upgrade)
