"""The steps of an upgrade as data: which comes next, given what came of the last. Nothing is done here.

    build → prove → measure → promote → settle → done

Every way leads through `settle`, which leaves the server on the image that counts. Pins and pointers move in `promote`
alone, and only once nothing that is required is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from builder.lock.model import ImageName

Stage = Literal["build", "prove", "measure", "promote", "settle", "done"]
Result = Literal["", "promoted", "rejected", "aborted", "unchanged"]
STAGES: tuple[Stage, ...] = ("build", "prove", "measure", "promote", "settle", "done")
RESULTS: tuple[Result, ...] = ("", "promoted", "rejected", "aborted", "unchanged")


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


@dataclass(frozen=True)
class BuiltCandidate:
    """The event that the candidate has its number, new or from an earlier build of the same inputs."""

    image: str


@dataclass(frozen=True)
class Proved:
    """The event that the candidate was proven; ``broken`` says what keeps it from being measured at all."""

    broken: tuple[str, ...] = ()


@dataclass(frozen=True)
class Measured:
    """The event that everything required was measured; ``missing`` is what did not pass."""

    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class PointersMoved:
    """The event that pins and pointers are on the candidate, in one transaction."""


@dataclass(frozen=True)
class StepFailed:
    """The event that a step ended with an error, or that the user gave up (``aborted``)."""

    why: str
    aborted: bool = False


@dataclass(frozen=True)
class ServerSettled:
    """The event that the server is on what counts, or that none is to run; ``note`` says what came in between."""

    note: str = ""


Event: TypeAlias = "BuiltCandidate | Proved | Measured | PointersMoved | StepFailed | ServerSettled"


class UnexpectedEventError(ValueError):
    """An event that cannot come at this stage: a mistake of this program."""


def after(upgrade: Upgrade, event: Event) -> Upgrade:
    """The upgrade after an event. Raises UnexpectedEventError for one that its stage has no place for."""
    stage = upgrade.stage
    if isinstance(event, StepFailed) and stage in {"build", "prove", "measure", "promote"}:
        return _decided(upgrade, "aborted" if event.aborted else "rejected", (event.why,))
    if isinstance(event, StepFailed | ServerSettled) and stage == "settle":
        note = event.why if isinstance(event, StepFailed) else event.note
        return replace(upgrade, stage="done", why=(*upgrade.why, *([note] if note else [])))
    if isinstance(event, BuiltCandidate) and stage == "build":
        if event.image == upgrade.before:
            return replace(_decided(upgrade, "unchanged", ()), candidate=event.image)
        return replace(upgrade, stage="prove", candidate=event.image)
    if isinstance(event, Proved) and stage == "prove":
        return _decided(upgrade, "rejected", event.broken) if event.broken else replace(upgrade, stage="measure")
    if isinstance(event, Measured) and stage == "measure":
        return _decided(upgrade, "rejected", event.missing) if event.missing else replace(upgrade, stage="promote")
    if isinstance(event, PointersMoved) and stage == "promote":
        return _decided(upgrade, "promoted", ())
    raise UnexpectedEventError(f"{type(event).__name__} while the stage is {stage}")


def _decided(upgrade: Upgrade, result: Result, why: tuple[str, ...]) -> Upgrade:
    return replace(upgrade, stage="settle", result=result, why=why)


def _image(text: str) -> ImageName:
    repository, _, number = text.rpartition(":")
    return ImageName(repository, int(number))
