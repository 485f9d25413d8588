"""The journal of an upgrade, in the state folder. It is written at the start, after the build of the candidate, and
when the result is known. Each step between these can be repeated, so a killed upgrade continues from the last entry.

A lock allows one upgrade of a model at a time, and ends with its process. The file is untrusted: its names must match
the grammars of images.lock, and it does not decide how the model is served.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias
from urllib.parse import quote, unquote

from builder.base.errors import ConflictError
from builder.base.records import Journal
from builder.base.values import dataclass
from builder.lock import checking
from builder.lock.model import ImageName, Lock, image_name

if TYPE_CHECKING:
    from builder.base.project import Project


Result = Literal["", "promoted", "rejected", "aborted", "unchanged"]
# The valid texts of a journal.
ModelText: TypeAlias = Annotated[str, checking.pattern("model-name")]
SourceText: TypeAlias = Annotated[str, checking.pattern("part")]
RefText: TypeAlias = Annotated[str, checking.pattern("line")]
ImageText: TypeAlias = Annotated[str, f"(?:{checking.pattern('image-name')})?"]


@dataclass(frozen=True)
class Upgrade:
    """The state of an upgrade of ``model``. ``target`` is the file of its recipe, which is built and served. ``update``
    maps each updated source to its new ref, or to None for the definition's ref. ``before`` is the image that served at
    the start, or empty; ``served`` is True if its server ran. ``candidate`` is empty before it is built, ``result``
    before it is known; ``why`` has the reasons for the result."""

    target: str
    model: ModelText
    update: Mapping[SourceText, RefText | None]
    before: ImageText
    started: str
    served: bool = False
    candidate: ImageText = ""
    result: Result = ""
    why: tuple[str, ...] = ()
    older: bool = False

    @property
    def stage(self) -> str:
        """The current step: ``build`` and ``test`` of a candidate, then ``settle``, which serves the resulting
        image."""
        return "settle" if self.result else "test" if self.candidate else "build"

    @property
    def progress(self) -> str:
        """The stage as text."""
        return f"{self.stage} of {self.candidate}" if self.candidate else self.stage

    @property
    def candidate_image(self) -> ImageName:
        """The candidate, after it is built."""
        return image_name(self.candidate)

    @property
    def image_before(self) -> ImageName | None:
        return image_name(self.before) if self.before else None


def journal_of(project: Project, model: str) -> Journal[Upgrade]:
    return Journal(
        project.upgrading / f"{quote(model, safe='')}.json",
        Upgrade,
        format=3,
        what=f"an upgrade of {model}",
        while_held="wait for that upgrade; ^C in its terminal puts everything back",
        if_unreadable=(
            "end the upgrade with the version of builder that wrote the file, or remove the file: pins and pointers "
            "move only at the end"
        ),
    )


# ^C and other signals restore the server. After kill -9, the candidate may still run in place of the model's own
# server. The next command stops it, or reports how to stop it.


@dataclass(frozen=True)
class InterruptedUpgrade:
    """An interrupted upgrade; the command `upgrade` with ``text`` continues it. ``upgrade`` is None if its journal
    cannot be read; ``problem`` is the reason."""

    model: str
    text: str
    upgrade: Upgrade | None
    problem: str = ""

    def __str__(self) -> str:
        if self.upgrade is None:
            return f"an interrupted upgrade of {self.model} cannot be continued: {self.problem}"
        command = f"builder upgrade {shlex.quote(self.text)}"
        serves = " serves the model as before and" if self.upgrade.served and not self.upgrade.result else ""
        return (
            f"an upgrade of {self.model} was interrupted ({self.upgrade.progress}): "
            f"`{command}`{serves} continues it, `{command} --abort`{serves} cancels it"
        )


def interrupted_upgrades(project: Project, lock: Lock) -> Iterator[InterruptedUpgrade]:
    """The interrupted upgrades of a project that no process continues, by model."""
    for path in sorted(project.upgrading.glob("*.json")):
        model = unquote(path.stem)
        journal = journal_of(project, model)
        if journal.is_held:
            continue
        try:
            upgrade = journal.read()
        except ConflictError as error:
            yield InterruptedUpgrade(model, model, None, f"{error.message}; {error.hint}")
            continue
        if upgrade is not None:  # None: the upgrade has just ended
            yield InterruptedUpgrade(model, model if model in lock.models else upgrade.target, upgrade)
