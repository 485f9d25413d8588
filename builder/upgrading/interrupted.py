"""The upgrades that were interrupted: their journals are there, and no process goes on with them."""

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


@dataclass(frozen=True)
class InterruptedUpgrade:
    """An upgrade that ended before it was over, in ``stage``; ``text`` is what `upgrade` goes on with. ``before`` is
    the image that it began with, ``candidate`` empty until it is built. ``problem`` says why a journal cannot be read,
    and then nothing else is known."""

    subject: str
    text: str
    stage: str = ""
    before: str = ""
    candidate: str = ""
    started: str = ""
    problem: str = ""

    def __str__(self) -> str:
        if self.problem:
            return f"an upgrade of {self.subject} was interrupted: {self.problem}"
        at = f"{self.stage} of {self.candidate}" if self.candidate else self.stage
        command = f"builder upgrade {shlex.quote(self.text)}"
        return (
            f"an upgrade of {self.subject} was interrupted ({at}): `{command}` goes on with it, "
            f"`{command} --abort` gives it up"
        )


def of(project: Project, lock: Lock) -> tuple[InterruptedUpgrade, ...]:
    """The interrupted upgrades of a project, by subject; none that a process is at."""
    return tuple(_each(project, lock))


def _each(project: Project, lock: Lock) -> Iterator[InterruptedUpgrade]:
    for subject in journal.unfinished(project):
        try:
            upgrade = journal.read(project, subject)
        except ConflictError as error:
            yield InterruptedUpgrade(subject, subject, problem=f"{error.message}; {error.hint}")
            continue
        if upgrade is not None:  # it has just ended
            text = subject if subject in lock.models else upgrade.target
            yield InterruptedUpgrade(subject, text, upgrade.stage, upgrade.before, upgrade.candidate, upgrade.started)
