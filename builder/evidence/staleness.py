"""The reasons why a run tells nothing of the present any more: parts of its subject that are others now.

Its age is no reason. A part that was not looked at, then or now, is not compared.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from builder.storage.huggingface_cache import is_commit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.evidence.record import Evidence, Machine, Subject

_SHOWN = 12


def reasons(evidence: Evidence, present: Subject, set_now: str | None = None) -> tuple[str, ...]:
    """Each part that is no longer what it was, in words; empty for a run that still counts. ``set_now`` is the digest
    of the conversations, script or profile as they are now, where that is known."""
    return tuple(_reasons(evidence, present, set_now))


def _reasons(evidence: Evidence, present: Subject, set_now: str | None) -> Iterator[str]:
    then = evidence.subject
    if present.fingerprint and then.fingerprint != present.fingerprint:
        yield "the image has other content"
    if then.model and present.model and then.model != present.model:
        yield f"the model is {present.model} now"
    before, now = then.revision or "", present.revision or ""
    if before != now and is_commit(before) and is_commit(now):
        yield f"the model's revision is {now[:_SHOWN]} now, it was {before[:_SHOWN]}"
    if _differ(then.template, present.template):
        yield "the chat template changed"
    if _differ(then.recipe, present.recipe):
        yield f"it is served by {_recipe(present)} now, it was {_recipe(then)}"
    if _differ(then.arguments, present.arguments):
        yield "the recipe's options changed"
    if dict(then.overrides) != dict(present.overrides):
        yield "it ran with other options than the recipe's" if then.overrides else "it ran without these options"
    if then.machine and present.machine:
        yield from _of_machine(then.machine, present.machine)
    if _differ(evidence.set, set_now):
        yield {"prove": "the conversations changed", "bench": "the profile changed"}.get(
            evidence.kind, "the probe changed"
        )


def _recipe(subject: Subject) -> str:
    return PurePosixPath(subject.recipe or "").stem


def _of_machine(then: Machine, now: Machine) -> Iterator[str]:
    if _differ(then.gpu, now.gpu) or (then.gpus and now.gpus and then.gpus != now.gpus):
        yield f"it ran on {_gpus(then)}, which is {_gpus(now)} here"
    if _differ(then.driver, now.driver):
        yield f"the GPU's driver is {now.driver} now, it was {then.driver}"
    if not then.gpu and not now.gpu and _differ(then.cpu, now.cpu):
        yield f"it ran on another processor, {then.cpu}"


def _gpus(machine: Machine) -> str:
    return f"{machine.gpus} x {machine.gpu}" if machine.gpus > 1 else machine.gpu or "no GPU"


def _differ(then: str | None, now: str | None) -> bool:
    """True if both are there and are not the same."""
    return bool(then) and bool(now) and then != now
