"""The journal of an upgrade, in the state folder, is written before each step, so that a killed upgrade goes on there.

build → prove → measure → promote → settle → done. Every way leads through `settle`, which leaves the server on the
image that counts. Pins and pointers move in `promote` alone, and only once nothing that is required is missing.
One upgrade of a model or a definition runs at a time, by a lock that ends with its process. Anybody may have written
the file: its names keep the grammars of images.lock, and how the model is served is not in it.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias, get_args
from urllib.parse import quote, unquote

from builder.base.errors import ConflictError
from builder.base.journal import Journal
from builder.lock import checking
from builder.lock.model import ImageName

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.base.project import Project
    from builder.lock.model import Lock


Stage = Literal["build", "prove", "measure", "promote", "settle", "done"]
Result = Literal["", "promoted", "rejected", "aborted", "unchanged"]
STAGES: tuple[Stage, ...] = get_args(Stage)
# What a journal may hold.
ModelText: TypeAlias = Annotated[str, checking.pattern("model-name")]
SourceText: TypeAlias = Annotated[str, checking.pattern("part")]
RefText: TypeAlias = Annotated[str, checking.pattern("line")]
ImageText: TypeAlias = Annotated[str, f"(?:{checking.pattern('image-name')})?"]


@dataclass(frozen=True)
class Upgrade:
    """An upgrade so far. ``target`` is the recipe or definition that is built, for ``models``; ``update`` maps each
    source that moves to the ref to take, or None for the definition's. ``before`` is the image that served at the
    start, empty if none; ``served`` is True if its server ran. ``why`` are the reasons of the ``result``."""

    target: str
    models: tuple[ModelText, ...]
    update: Mapping[SourceText, RefText | None]
    before: ImageText
    started: str
    served: bool = False
    stage: Stage = "build"
    candidate: ImageText = ""
    result: Result = ""
    why: tuple[str, ...] = ()
    older: bool = False

    @property
    def subject(self) -> str:
        """The name by which an upgrade is found again: its first model, or its target where it has none."""
        return self.models[0] if self.models else self.target

    @property
    def candidate_image(self) -> ImageName:
        """The candidate, once it is built."""
        return _image(self.candidate)

    @property
    def image_before(self) -> ImageName | None:
        return _image(self.before) if self.before else None


def _image(text: str) -> ImageName:
    repository, _, number = text.rpartition(":")
    return ImageName(repository, int(number))


def after(upgrade: Upgrade, why: Sequence[str] = (), *, aborted: bool = False) -> Upgrade:
    """The upgrade after the step of its stage, which failed if there are reasons ``why``; with ``aborted`` the user
    gave up. A result stays: after it, reasons are only added."""
    if upgrade.stage == "settle":
        return replace(upgrade, stage="done", why=(*upgrade.why, *why))
    if why:
        return replace(upgrade, stage="settle", result="aborted" if aborted else "rejected", why=tuple(why))
    if upgrade.stage == "build" and upgrade.candidate == upgrade.before:
        return replace(upgrade, stage="settle", result="unchanged")
    following = STAGES[STAGES.index(upgrade.stage) + 1]
    return replace(upgrade, stage=following, result="promoted" if upgrade.stage == "promote" else "")


def journal_of(project: Project, subject: str) -> Journal[Upgrade]:
    """The journal of the upgrade of ``subject``."""
    return Journal(
        project.upgrading / f"{quote(subject, safe='')}.json",
        Upgrade,
        format=2,
        what=f"an upgrade of {subject}",
        while_held="wait for it; ^C there puts everything back",
        if_unreadable=(
            "end it with the version that wrote it, or remove the file: pins and pointers move only at the end"
        ),
    )


# ^C and the other signals that a process can handle put the server back. After kill -9 the candidate may still run in
# the place of the model's own server; the next command ends it, or says how.


@dataclass(frozen=True)
class InterruptedUpgrade:
    """An upgrade that ended before it was over; ``text`` is what `upgrade` goes on with. ``upgrade`` is None where its
    journal cannot be read, for the reason ``problem``."""

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


def interrupted_upgrades(project: Project, lock: Lock) -> Iterator[InterruptedUpgrade]:
    """The upgrades of a project that are not over, and that no process is at, by subject."""
    for path in sorted(project.upgrading.glob("*.json")):
        subject = unquote(path.stem)
        journal = journal_of(project, subject)
        if journal.is_held:
            continue
        try:
            upgrade = journal.read()
        except ConflictError as error:
            yield InterruptedUpgrade(subject, subject, None, f"{error.message}; {error.hint}")
            continue
        if upgrade is not None:  # it has just ended
            yield InterruptedUpgrade(subject, subject if subject in lock.models else upgrade.target, upgrade)
