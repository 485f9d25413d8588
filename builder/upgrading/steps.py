"""The steps of an upgrade as data: which comes next, given what came of the last. Nothing is done here.

    build → prove → measure → promote → settle → done

Every way leads through `settle`, which leaves the server on the image that counts. Pins and pointers move in `promote`
alone, and only once nothing that is required is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from builder.lock.model import ImageName

Stage = Literal["build", "prove", "measure", "promote", "settle", "done"]
Result = Literal["", "promoted", "rejected", "aborted", "unchanged"]
STAGES: tuple[Stage, ...] = get_args(Stage)
RESULTS: tuple[Result, ...] = get_args(Result)


@dataclass(frozen=True)
class Upgrade:
    """An upgrade as far as it is. ``target`` is the recipe or definition that is built, for ``models``; ``update`` maps
    each source that moves to the ref to take, or None for the definition's. ``before`` is the image that served at the
    start, empty where there was none; ``served`` is True where its server ran. ``why`` are the reasons of the
    ``result``. With ``older``, packages and sources may go back to older versions."""

    target: str
    models: tuple[str, ...]
    update: Mapping[str, str | None]
    before: str
    started: str
    served: bool = False
    stage: Stage = "build"
    candidate: str = ""
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


def after(upgrade: Upgrade, why: Sequence[str] = (), *, aborted: bool = False) -> Upgrade:
    """The upgrade after the step of its stage. ``why`` are the reasons for which the step failed, none where it passed;
    with ``aborted`` the user gave up. A decision stays: after it, reasons are only added."""
    if upgrade.stage == "settle":
        return replace(upgrade, stage="done", why=(*upgrade.why, *why))
    if why:
        return replace(upgrade, stage="settle", result="aborted" if aborted else "rejected", why=tuple(why))
    if upgrade.stage == "build" and upgrade.candidate == upgrade.before:
        return replace(upgrade, stage="settle", result="unchanged")
    following = STAGES[STAGES.index(upgrade.stage) + 1]
    return replace(upgrade, stage=following, result="promoted" if upgrade.stage == "promote" else "")


def _image(text: str) -> ImageName:
    repository, _, number = text.rpartition(":")
    return ImageName(repository, int(number))
