"""The request for a build and its results, which the command line makes and shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from builder.base.values import dataclass, field

if TYPE_CHECKING:
    from builder.engine.build_log import StepMemory
    from builder.evidence.run_record import ProvedImage


@dataclass(frozen=True)
class BuildRequest:
    """A build as typed. ``targets`` name recipes or definitions; ``mods`` and ``models`` are added to those of a
    recipe. ``update`` maps each source to resolve again to the git ref to use instead of the definition's, or None;
    ``settings`` are values for the templates. ``builder`` names the buildx instance to build with. ``ignore_disk``
    builds even if the disk is expected to be too small. ``without_checks`` names checks of the finished image that do
    not run, each with the reason. A note in ``promote_anyway`` moves the pointers although evidence is missing or
    failed, and is recorded. A ``candidate`` gets its number and moves nothing else: no pin, no pairing, no ``latest``.
    Without ``older``, a package or source that would go back to an older version ends the build."""

    targets: tuple[str, ...]
    mods: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    update: Mapping[str, str | None] = field(default_factory=dict)
    platform: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    locked: bool = False
    force: bool = False
    promote: bool = True
    promote_anyway: str = ""
    builder: str | None = None
    push: bool = False
    ignore_disk: bool = False
    candidate: bool = False
    prove: bool = True
    without_checks: Mapping[str, str] = field(default_factory=dict)
    older: bool = True


@dataclass(frozen=True)
class ModelOutcome:
    """The pairing of a model after a build: ``paired`` with this ``image``, ``unpaired`` because this image is marked
    bad, or ``elsewhere``, with another ``image``. ``taken_from`` is the image of another repository before."""

    model: str
    state: Literal["paired", "unpaired", "elsewhere"]
    image: str | None
    taken_from: str | None = None


@dataclass(frozen=True)
class MissingPart:
    """A missing part of the evidence, in words, and the command that brings it."""

    text: str
    command: str


@dataclass(frozen=True)
class HeldPointer:
    """A model's pairing, or the ``latest`` of the repository ``what``, that a build left at ``stays``: evidence is
    ``missing``. ``failed`` if some evidence was taken and did not pass."""

    what: str
    kind: Literal["model", "repository"]
    stays: str | None
    failed: bool
    missing: tuple[MissingPart, ...] = ()


@dataclass(frozen=True)
class BuildOutcome:
    """The numbered image of a target, which exists already unless it is `Built`. ``current`` is the current image of
    its repository; ``models`` are those of the target, except those in ``waiting``; ``unchecked`` are the checks that
    were left out when it was built, with the reason."""

    image: str
    current: str | None
    models: tuple[ModelOutcome, ...] = ()
    waiting: tuple[HeldPointer, ...] = ()
    bad: bool = False
    unchecked: Mapping[str, str] = field(default_factory=dict)

    @property
    def failed_models(self) -> tuple[str, ...]:
        """The models whose evidence was taken from this image and did not pass."""
        return tuple(each.what for each in self.waiting if each.kind == "model" and each.failed)


@dataclass(frozen=True, kw_only=True)
class Built(BuildOutcome):
    """A new numbered image. ``seconds`` is the total time, ``size`` in bytes; ``changes`` and ``new_layers`` are
    relative to the previous number; ``compiled`` is the memory that compiling took; ``log`` is the file with the whole
    output of BuildKit."""

    changes: tuple[str, ...]
    seconds: float
    size: int
    layers: int
    new_layers: int
    steps: int
    cached_steps: int
    compiled: tuple[StepMemory, ...]
    proofs: tuple[ProvedImage, ...]
    log: str
