"""A model whose new image does not serve returns to the image before, once.

That happens only after a change: the image has never answered for the model here, and another one was there before it.
What was paired with `--force --note` without its evidence stays, as the user wants it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.base import words
from builder.base.errors import MeasuringError, ServeFailedError
from builder.base.events import Message
from builder.evidence import requirements
from builder.lock import lock_file
from builder.numbers import images_lock
from builder.serving import model_revision, selection
from builder.serving.selection import SelectedImage

if TYPE_CHECKING:
    from builder.lock.model import ImageName, Lock, Pairing
    from builder.numbers.workspace import Workspace
    from builder.serving.running import RunningServer
    from builder.serving.selection import ServedImage


_PUT_BACK = "put back on "
_LONGEST = 200


@dataclass(frozen=True)
class PutBack:
    """A model that was put back from the image ``origin``, which did not serve it, to the one before; ``why`` is a
    line."""

    model: str
    origin: ImageName
    to: ImageName
    why: str


def require_probes(workspace: Workspace, served: SelectedImage, server: RunningServer) -> None:
    """Takes each required probe that has not passed on this image, and keeps the result. Raises ServeFailedError for
    the first one that fails, and ends the server. A probe that cannot take place decides nothing."""
    project, model = workspace.project, served.recipe.model
    lock = lock_file.read_project_lock(project)
    lacking = requirements.missing(
        project, lock, served.image, model, recipe=served.recipe, environ=workspace.environment
    )
    names = [each.name for each in lacking if each.kind == "probe"]
    if not names:
        return
    from builder.lab.measure import probes, served_model
    from builder.serving import starting

    try:
        measured = served_model.find_measured_server(server)
        for name in names:
            probes.require(project, name)
            workspace.report(Message(f"{served.image} is new: taking the probe {name}, which {model} requires"))
            outcome = probes.run_probe(project, measured.model, name, workspace.environment, workspace.report)
            served_model.keep_run(workspace, measured, outcome)
            if outcome.verdict == "fail":
                break
        else:
            return
    except MeasuringError as error:
        workspace.report(Message(error.message))
        return
    starting.remove_server(server)
    hint = f"`builder show {served.image}` has the result"
    raise ServeFailedError(f"{server.name} answers, and fails the probe {name}", hint=hint)


def image_before(workspace: Workspace, served: ServedImage) -> SelectedImage | None:
    """The image that takes the place of ``served`` if it does not serve: None where nothing changed, there is none, or
    that was tried before. It counts where evidence is required, or where it is known to have answered here."""
    model = served.recipe.model
    if model is None or not isinstance(served, SelectedImage) or served.reason != "paired":
        return None
    project = workspace.project
    lock = lock_file.read_project_lock(project)
    paired = lock.models.get(model)
    if paired is None or paired.pairing.image != served.image:
        return None
    if paired.pairing.status != "untested" or paired.pairing.note.startswith(requirements.FORCED):
        return None  # it was found good, or the user wants it whatever it lacks
    outcomes = model_revision.outcomes(project, model)
    before = requirements.pairing_before(project, workspace.environment, lock, model)
    if before is None or served.record.fingerprint in outcomes:
        return None
    selected = selection.with_number(lock, served.recipe, before.image)
    has_answered = outcomes.get(selected.record.fingerprint) == "answered"
    return selected if has_answered or requirements.required(project, model, served.recipe) else None


def record_going_back(workspace: Workspace, served: SelectedImage, before: SelectedImage, why: str) -> PutBack:
    """Pairs the model with the image before, and marks the other pairing bad, with the first line of ``why``."""
    model = served.recipe.model or ""
    reason = "".join(char if char.isprintable() else " " for char in next(iter(why.splitlines()), ""))
    if len(reason) > _LONGEST:
        reason = f"{reason[: _LONGEST - 1]}…"
    with images_lock.transaction(workspace) as transaction:
        lock = transaction.lock
        paired = lock.models.get(model)
        goal = next((each for each in paired.previous if each.image == before.image), None) if paired else None
        if paired and goal and paired.pairing.image == served.image:  # else it was moved meanwhile
            note = f"{_PUT_BACK}{before.image} {words.now()[:10]}: {reason}"
            marked = replace(paired, pairing=replace(paired.pairing, status="bad", note=note))
            transaction.commit(lock.with_model(model, marked.with_pairing(goal)))
    return PutBack(model, served.image, before.image, reason)


def of_model(lock: Lock, model: str) -> Pairing | None:
    """The pairing that a model was put back from, where nothing has moved it since."""
    paired = lock.models.get(model)
    last = paired.previous[0] if paired and paired.previous else None
    return last if last and last.note.startswith(_PUT_BACK) and last.status == "bad" else None
