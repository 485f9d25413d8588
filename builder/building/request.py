"""The request for a build, and its results. The command line makes the request and shows the results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from builder.base.values import dataclass, field

if TYPE_CHECKING:
    from builder.engine.build_log import StepMemory
    from builder.evidence.run_record import ProvedImage


@dataclass(frozen=True)
class BuildRequest:
    """A build as typed.

    ``targets`` name recipes or definitions; ``mods`` and ``models`` are added to those of a recipe. ``update`` maps
    each source that is resolved again to the git ref to use, or to None for the definition's ref. ``settings`` are
    values for the templates. ``builder`` names the buildx instance. With ``ignore_disk``, the disk may be too small.
    ``without_checks`` maps the checks to skip to the reason. A note in ``promote_anyway`` moves the pointers although
    evidence failed or is missing, and is recorded. A ``candidate`` gets its number, and moves no pin, no pairing and no
    ``latest``. Without ``older``, the build fails if a package or source would move to an older version.
    """

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
    bad, or ``elsewhere``: paired with another ``image``. ``taken_from`` is the model's earlier image in another
    repository."""

    model: str
    state: Literal["paired", "unpaired", "elsewhere"]
    image: str | None
    taken_from: str | None = None


@dataclass(frozen=True)
class MissingPart:
    """A missing part of the evidence, in words, and the command that provides it."""

    text: str
    command: str


@dataclass(frozen=True)
class HeldPointer:
    """A pointer that a build did not move, because evidence is ``missing``: the pairing of the model ``what``, or the
    ``latest`` of the repository ``what``. It still points to ``stays``. ``failed``: some evidence did not pass."""

    what: str
    kind: Literal["model", "repository"]
    stays: str | None
    failed: bool
    missing: tuple[MissingPart, ...] = ()


@dataclass(frozen=True)
class BuildOutcome:
    """The numbered image of a target. It existed before the build, unless it is `Built`. ``current`` is the current
    image of its repository. ``models`` are the models of the target, except those in ``waiting``. ``unchecked`` are the
    skipped checks of its build, with the reasons."""

    image: str
    current: str | None
    models: tuple[ModelOutcome, ...] = ()
    waiting: tuple[HeldPointer, ...] = ()
    bad: bool = False
    unchecked: Mapping[str, str] = field(default_factory=dict)

    @property
    def failed_models(self) -> tuple[str, ...]:
        """The models whose evidence from this image did not pass."""
        return tuple(each.what for each in self.waiting if each.kind == "model" and each.failed)


@dataclass(frozen=True, kw_only=True)
class Built(BuildOutcome):
    """A new numbered image. ``seconds`` is the total time, and ``size`` is in bytes. ``changes`` and ``new_layers`` are
    relative to the previous number. ``compiled`` is the memory that the compilers used. ``log`` is the file with the
    whole output of BuildKit."""

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
