"""The report of a bisection: what was found, or what the user has to look at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from builder.bisecting.search import Conclusion, Culprit
    from builder.bisecting.session import Bisection
    from builder.commands.bisect_parts.steps import LookNow
    from builder.sources.git.commit_row import CommitFacts


@dataclass(frozen=True)
class FoundCulprit:
    """A culprit with what there is to say of it: the upstream ``commit``, the change as ``text`` (a unified diff), and
    the ``hint`` of what can be done now."""

    culprit: Culprit
    commit: CommitFacts | None = None
    text: str = ""
    hint: str = ""


@dataclass(frozen=True)
class BisectReport:
    """The end of a bisection, or of its steps for now. ``problem`` says why nothing was found; ``folder`` holds the
    build directories of the sides that are no number. ``between`` are the two neighbouring numbers between which the
    culprit came. ``look`` is what the user has to look at."""

    bisection: Bisection
    conclusion: Conclusion | None = None
    culprits: tuple[FoundCulprit, ...] = ()
    problem: str = ""
    folder: str = ""
    look: LookNow | None = None
    between: tuple[int, int] | None = None
