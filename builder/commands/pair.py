"""The pair command: makes an image serve a model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.checkpoints import record
from builder.errors import UsageError
from builder.evidence import gate
from builder.lock import reading
from builder.lock.name_kinds import MODEL, is_a
from builder.numbered import images_lock, names, pointers
from builder.numbered.pointers import PointerMove
from builder.serving import checkpoint_weights, model_pairing

if TYPE_CHECKING:
    from builder.checkpoints.record import CheckpointName
    from builder.lock.model import ImageName, Lock
    from builder.workspace import Workspace


@dataclass(frozen=True)
class WeightsChange:
    """Other weights for the same image: a rollback, which goes to another image, does not undo it. ``before`` is None
    where those were the model's own."""

    before: CheckpointName | None
    now: CheckpointName


@dataclass(frozen=True)
class Paired:
    """The pairing of a model. ``move`` is None where it was paired with the image already."""

    model: str
    image: ImageName
    recipe: str | None
    move: PointerMove | None
    differences: tuple[str, ...]
    weights: WeightsChange | None = None


def run(
    workspace: Workspace, model: str, text: str, *, force: bool, note: str = "", checkpoint: str | None = None
) -> Paired:
    """Pairs a model, or that of a recipe, with the image called ``text``; other models stay where they are.

    A model's first pairing takes the recipe for the model and the repository, where there is exactly one. A new pairing
    records the model's revision as a build would (`model_revision.to_record`); an earlier one keeps its own, unless
    ``checkpoint`` names another one (``NAME``, for the revision made last, or ``NAME@REVISION``).
    Raises ConflictError for an image that is marked bad, unless ``force``, and for one that lacks what the model
    requires, unless ``force`` with a ``note``, which is kept; ImageStateError where the engine does not have it;
    UsageError where images.lock does not.
    """
    gate.refuse_note_alone(note, force=force)
    lock = reading.of(workspace.project)
    recipe = names.recipe(workspace.project, lock, model) if model not in lock.models else None
    if recipe and recipe.model:
        model = recipe.model
    if not is_a(MODEL, model):
        raise UsageError(
            f"`{model}` is no model: a Hugging Face id such as Qwen/Qwen3-0.6B, or the path of a folder",
            hint="write the path of a folder as /PATH, ~/PATH or ./PATH",
        )
    name, image = names.numbered(workspace.project, lock, text)
    source = image.adopted.image if image.adopted else ""
    weights = checkpoint_weights.named(workspace.project, checkpoint, model, image) if checkpoint else None
    origin = model_pairing.source(
        workspace.project, workspace.environment, lock, model, name.repository, source, recipe
    )
    with images_lock.transaction(workspace) as transaction:
        before = transaction.lock
        moves = _moves(before, model, name)
        pointers.require_allowed(workspace.engine, before, moves, force=force)
        kept = gate.passed(workspace, before, name, {model: origin.recipe} if moves else {}, note)
        pairing = model_pairing.pairing(before, model, name, origin)
        if weights:
            pairing = replace(pairing, revision=str(weights))
        if kept:
            pairing = replace(pairing, note=kept)
        transaction.commit(before.with_pairing(model, pairing))
        if moves:  # the number may have come by git: others in this engine leave it from now on
            images_lock.tell_numbers(workspace, transaction.lock, name.repository)
    differences = pointers.differences(workspace.project, before, moves)
    if moves:
        return Paired(model, name, pairing.recipe, moves[0], differences)
    replaced = record.parse_name(before.models[model].pairing.revision or "")
    change = WeightsChange(replaced, weights) if weights and weights != replaced else None
    return Paired(model, name, pairing.recipe, None, differences, change)


def _moves(lock: Lock, model: str, name: ImageName) -> tuple[PointerMove, ...]:
    origin = lock.models[model].pairing.image if model in lock.models else None
    return () if origin == name else (PointerMove(model, True, origin, name),)
