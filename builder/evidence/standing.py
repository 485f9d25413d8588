"""The standing of a numbered image with a model: one word for what its runs tell of it now.

The latest proof of the project's own decides; what others ran is shown, and never makes a number proven. A run that
failed its probe or benchmark counts where the pairing requires that one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from builder.evidence import staleness

if TYPE_CHECKING:
    from builder.evidence.record import Evidence, Kind, Subject

Standing = Literal["proven", "changed", "failed", "stale", "unproven"]
WORST_FIRST: tuple[Standing, ...] = ("failed", "changed", "stale", "unproven", "proven")
Requirement: TypeAlias = "tuple[Kind, str]"


@dataclass(frozen=True)
class PairingStanding:
    """The standing of an image with one model (None: the image by itself). ``why`` says it in words, empty where there
    is nothing to add; ``run`` is the one that decided; ``has_foreign`` if there are runs of others."""

    model: str | None
    standing: Standing
    why: str = ""
    run: Evidence | None = None
    has_foreign: bool = False


def of(
    model: str | None,
    runs: Sequence[Evidence],
    present: Callable[[Kind], Subject],
    required: Collection[Requirement] = (),
    sets: Mapping[Requirement, str] | None = None,
) -> PairingStanding:
    """The standing of an image with ``model`` by ``runs``, all those of the image in the order in which they were
    added. ``present`` gives the subject that a run of a kind would have now; ``required`` names the probes and bench
    profiles that count as well, ``sets`` what is known of their sets now, by kind and name."""
    sets = sets or {}
    of_model = [run for run in runs if run.subject.model == model]
    own = [run for run in of_model if not run.foreign]
    foreign = len(own) < len(of_model)
    for kind, name in sorted(required):
        run = latest(own, kind, name)
        if kind != "prove" and run and run.verdict == "fail":
            reasons = staleness.reasons(run, present(kind), sets.get((kind, name)))
            if not reasons:
                return PairingStanding(model, "failed", f"{kind} {name} failed", run, foreign)
    served = present("prove").recipe
    proofs = [run for run in own if run.kind == "prove"]
    # A trial with another recipe tells of that recipe: what is known of the one that serves the model stays.
    proof = latest([run for run in proofs if served in {None, run.subject.recipe}] or proofs, "prove")
    if proof is None:
        return PairingStanding(model, "unproven", "proven elsewhere" if foreign else "", None, foreign)
    reasons = staleness.reasons(proof, present("prove"), sets.get(("prove", proof.name)))
    if reasons:
        return PairingStanding(model, "stale", "; ".join(reasons), proof, foreign)
    if proof.verdict == "unclear":
        return PairingStanding(model, "unproven", "the last proof came to no verdict", proof, foreign)
    by_verdict: dict[str, Standing] = {"pass": "proven", "changed": "changed", "fail": "failed"}
    return PairingStanding(model, by_verdict[proof.verdict], proof.accepted, proof, foreign)


def latest(runs: Sequence[Evidence], kind: Kind, name: str | None = None) -> Evidence | None:
    """The last of ``runs`` that is of this kind, and of this name where one is given."""
    return next((run for run in reversed(runs) if run.kind == kind and name in {None, run.name}), None)


def worst(standings: Collection[PairingStanding]) -> Standing | None:
    """The standing of an image with several models: the one that asks for attention first; None where there is none."""
    words = {each.standing for each in standings}
    return next((word for word in WORST_FIRST if word in words), None)
