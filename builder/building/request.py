"""The request for a build and its results, which the command line makes and shows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.engine.build_log import StepMemory
    from builder.evidence.store import ProvedImage


@dataclass(frozen=True)
class BuildRequest:
    """A build as typed. ``targets`` name recipes or definitions; ``mods`` and ``models`` are added to those of a
    recipe. ``update`` maps each source to resolve anew to the git ref to use instead of the definition's, or None;
    ``settings`` are values for the templates. ``builder`` names the buildx instance to build with. With ``ignore_disk``
    it is built where the disk is expected to be too small; without ``prove`` its behaviour is not looked at.
    ``without_checks`` names checks of the finished image that do not run, each with the reason. With a note in
    ``promote_anyway``, the pointers move although evidence is missing or failed, and it is recorded. A ``candidate``
    gets its number and moves nothing else: no pin, no pairing, no ``latest``. Without ``older`` nothing is built where
    a package or a source would go back to an older version. With ``local_base`` it is built on this engine's own copy
    of a base image that the registry does not give."""

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
    local_base: bool = False


@dataclass(frozen=True)
class ModelOutcome:
    """The pairing of a model after a build that had nothing to do: ``paired`` just now with the existing image,
    ``unpaired`` because that is marked bad, ``elsewhere``, with another ``image``, or ``waiting`` there because
    evidence is ``missing``: each part as text, and the command that brings it. ``failed`` if some of that evidence was
    taken and did not pass."""

    model: str
    state: Literal["paired", "unpaired", "elsewhere", "waiting"]
    image: str = ""
    missing: tuple[tuple[str, str], ...] = ()
    failed: bool = False


@dataclass(frozen=True)
class AlreadyBuilt:
    """A target with nothing to build: ``image`` was built from the same inputs and still exists. ``bad`` if it is
    marked so; ``current`` is the image that ``latest`` means, if that is another one, or ``nothing``; ``unchecked`` are
    the checks that were left out when it was built, with the reason."""

    image: str
    bad: bool
    current: str
    models: tuple[ModelOutcome, ...]
    unchecked: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class HeldPointer:
    """A model's pairing, or the ``latest`` of a repository, that a build left at ``stays`` (empty where it is nowhere);
    what is missing, each as text and the command that brings it; ``failed`` if some of that was taken and did not
    pass."""

    what: str
    is_model: bool
    stays: str
    missing: tuple[tuple[str, str], ...]
    failed: bool = False


@dataclass(frozen=True)
class Built:
    """A new numbered image. ``seconds`` is the total time, ``size`` in bytes; ``changes`` and ``new_layers`` are
    relative to the previous number; ``compiled`` is the memory that compiling took; ``log`` is the file with the whole
    output of BuildKit. ``models`` are paired with it, ``waiting`` is what stays until its evidence is there;
    ``taken_from`` is the image of another repository that a model was paired with before, by model. ``current`` is what
    ``latest`` means now, empty where that is nothing. ``unchecked`` are the checks that were left out, with the reason.
    """

    image: str
    models: tuple[str, ...]
    changes: tuple[str, ...]
    seconds: float
    size: int
    layers: int
    new_layers: int
    steps: int
    cached_steps: int
    compiled: tuple[StepMemory, ...]
    log: str
    waiting: tuple[HeldPointer, ...] = ()
    proofs: tuple[ProvedImage, ...] = ()
    taken_from: Mapping[str, str] = field(default_factory=dict)
    current: str = ""
    unchecked: Mapping[str, str] = field(default_factory=dict)
