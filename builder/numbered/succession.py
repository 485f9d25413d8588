"""Claims that pass on: one of a project that is gone is made anew by another project, of which one at most gets it.

A claim is the newest of its generations, which are volumes with a name each. Of several that take it over at the same
time one creates the next generation, the others find it there, and the older ones are removed only then: at no moment
is it nobody's, and no process has to wait for another that may have been killed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.engine import volumes
from builder.numbered import identity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from builder.engine.client.endpoint import Endpoint
    from builder.numbered.identity import ProjectIdentity

GENERATION = "builder.claim.generation"
_ATTEMPTS = 20  # each is lost to another project that was faster; an engine that keeps no labels loses all


@dataclass(frozen=True)
class Claim:
    """A claim as the engine has it: the volume that it is, and its labels."""

    volume: str
    labels: Mapping[str, str]

    @property
    def owner(self) -> ProjectIdentity:
        """The project whose claim it is."""
        return identity.of_labels(self.labels)


@dataclass(frozen=True)
class ClaimedThing:
    """The subject of a claim: the name of its first volume, and the labels by which all that claim it are found."""

    volume: str
    labels: Mapping[str, str]


def generations(endpoint: Endpoint, subject: ClaimedThing) -> dict[int, Claim]:
    """The claims of a subject by their generation; the highest is the one that counts."""
    existing = volumes.labelled(endpoint, [f"{key}={value}" for key, value in subject.labels.items()])
    return {_generation(labels): Claim(volume, labels) for volume, labels in existing.items()}


def newest(endpoint: Endpoint, subject: ClaimedThing) -> Claim | None:
    """The claim of a subject that counts; None where nobody claims it."""
    existing = generations(endpoint, subject)
    return existing[max(existing)] if existing else None


def claim(
    endpoint: Endpoint, subject: ClaimedThing, labels: Mapping[str, str], passes: Callable[[Claim], bool]
) -> Claim:
    """Claims a subject with ``labels`` beside its own, where nobody does or the claim that there is ``passes``; returns
    the claim that counts then."""
    for _ in range(_ATTEMPTS):
        current = newest(endpoint, subject)
        if current and not passes(current):
            return current
        generation = _generation(current.labels) + 1 if current else 1
        volume = subject.volume if generation == 1 else f"{subject.volume}.CLAIM{generation}"
        wanted = {**subject.labels, **labels, GENERATION: str(generation)}
        made = Claim(volume, volumes.create(endpoint, volume, wanted))
        if made.labels == wanted and _counts(endpoint, subject, made):
            return made
        if made.labels != wanted and not passes(made):
            return made
    return made


def _counts(endpoint: Endpoint, subject: ClaimedThing, made: Claim) -> bool:
    """True if the claim that was made is the one that counts; those before that one are removed. One that was made too
    late, since a later generation was there already, is removed itself."""
    existing = generations(endpoint, subject)
    newest_generation = max(existing, default=0)
    for generation, other in existing.items():
        if generation < newest_generation:
            volumes.remove(endpoint, other.volume)
    return existing.get(newest_generation, made) == made


def _generation(labels: Mapping[str, str]) -> int:
    """The generation that a label tells, which anybody may have written; 1 where it tells none."""
    text = labels.get(GENERATION, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 1
