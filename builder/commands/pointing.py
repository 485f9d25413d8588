"""These commands decide which images are good, current, or paired with a model.

The order is mark, pair, promote.
The promotion of an image does not change the image of any model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.base.errors import UsageError
from builder.base.values import dataclass, replace
from builder.evidence import requirements
from builder.lock import checking, checkpoints_lock, lock_file
from builder.numbers import claims, images_lock, pointers, status
from builder.numbers.status import named_model, named_number
from builder.serving import model_weights

if TYPE_CHECKING:
    from builder.lock.model import ImageName, NumberedImage, Pairing, Status
    from builder.numbers.workspace import Workspace


# The mark command: records that an image, or a model on its image, is good, bad or untested.


@dataclass(frozen=True)
class Marked:
    """A mark on ``what``, a model or an image; ``image`` is the image in either case. ``changed`` is true if the lock
    changed. ``pointed_at_by`` names what still points to a bad image: models, or its repository."""

    what: str
    image: ImageName
    status: Status
    note: str
    changed: bool
    pointed_at_by: tuple[str, ...] = ()


def mark_image(workspace: Workspace, text: str, status: Status, note: str | None) -> Marked:
    """Marks the pairing of a model or of a recipe's model, or an image for all models. Without a ``note`` the present
    one stays, as long as the status stays. Raises UsageError where ``text`` names neither a model nor a numbered
    image."""
    lock_file.refuse_lost_lock(workspace.project)
    with images_lock.transaction(workspace) as transaction:
        lock = transaction.lock
        if name := named_model(workspace.project, lock, text):
            model = lock.models[name]
            image = model.pairing.image
            new_note = _new_note(model.pairing, status, note)
            pairing = replace(model.pairing, status=status, note=new_note)
            after = lock.with_model(name, replace(model, pairing=pairing))
        else:
            image, record = named_number(workspace.project, lock, text)
            new_note = _new_note(record, status, note)
            after = lock.with_image(image, replace(record, status=status, note=new_note))
        changed = transaction.commit(after)
    if name:
        return Marked(name, image, status, new_note, changed, (name,) if status == "bad" else ())
    current = [image.repository] if lock.images[image.repository].current == image.number else []
    pointed_at_by = (*current, *lock.models_on(image)) if status == "bad" else ()
    return Marked(str(image), image, status, new_note, changed, pointed_at_by)


def _new_note(marked: Pairing | NumberedImage, status: Status, note: str | None) -> str:
    if note is not None:
        return note
    return marked.note if marked.status == status else ""


# The pair command: makes an image serve a model.


@dataclass(frozen=True)
class WeightsChange:
    """Other weights for the same image: a rollback, which goes to another image, does not undo it. ``before`` is None
    where those were the model's own."""

    before: checkpoints_lock.CheckpointName | None
    now: checkpoints_lock.CheckpointName


@dataclass(frozen=True)
class Paired:
    """The pairing of a model. ``move`` is None if the model was paired with the image before; ``is_new_recipe`` says
    whether the pairing names another recipe now."""

    model: str
    image: ImageName
    recipe: str | None
    move: pointers.PointerMove | None
    differences: tuple[str, ...]
    weights: WeightsChange | None = None
    is_new_recipe: bool = False


def pair_model(
    workspace: Workspace, model: str, text: str, *, force: bool, note: str = "", checkpoint: str | None = None
) -> Paired:
    """Pairs a model, or that of a recipe, with the image called ``text``; other models stay where they are. A pairing
    without a recipe takes the recipe for the model and the repository, if there is exactly one. A new pairing records
    the model's revision as a build would (`model_weights.to_record`); an earlier one keeps its own, unless
    ``checkpoint`` names another one (``NAME``, for the revision made last, or ``NAME@REVISION``). Raises ConflictError
    for an image that is marked bad, unless ``force``, and for one that lacks what the model requires, unless ``force``
    with a ``note``, which is kept; ImageStateError where the engine does not have it; UsageError where images.lock does
    not."""
    requirements.refuse_note_alone(note, force=force)
    lock = lock_file.read_project_lock(workspace.project)
    recipe = status.named_recipe(workspace.project, lock, model) if model not in lock.models else None
    if recipe and recipe.model:
        model = recipe.model
    if not checking.is_a("model-name", model):
        raise UsageError(
            f"`{model}` is not a model: expected a Hugging Face id such as Qwen/Qwen3-0.6B, or the path of a folder",
            hint="write the path of a folder as /PATH, ~/PATH or ./PATH",
        )
    name, image = status.named_number(workspace.project, lock, text)
    source = image.adopted.image if image.adopted else ""
    weights = model_weights.named_weights(workspace.project, checkpoint, model, image) if checkpoint else None
    origin = model_weights.pairing_source(
        workspace.project, workspace.environment, lock, model, name.repository, source, recipe
    )
    with images_lock.transaction(workspace) as transaction:
        before = transaction.lock
        moves = pointers.moves_to(before, model, name, is_model=True)
        pointers.require_allowed(workspace.engine, before, moves, force=force)
        kept = requirements.passed(workspace, before, name, {model: origin.recipe} if moves else {}, note)
        pairing = model_weights.new_pairing(before, model, name, origin)
        if recipe:
            pairing = replace(pairing, recipe=recipe.file)
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
    replaced = checkpoints_lock.parse_name(before.models[model].pairing.revision or "")
    change = WeightsChange(replaced, weights) if weights and weights != replaced else None
    is_new_recipe = pairing.recipe != before.models[model].pairing.recipe
    return Paired(model, name, pairing.recipe, None, differences, change, is_new_recipe)


# The promote command: makes a numbered image the current one of its repository. Models stay where they are.


@dataclass(frozen=True)
class Promoted:
    """The promoted image. ``moves`` is empty where it was current already; ``staying`` are models on the previous
    one; ``foreign`` are repositories whose ``latest`` another project has."""

    image: ImageName
    moves: tuple[pointers.PointerMove, ...]
    staying: tuple[str, ...]
    differences: tuple[str, ...]
    foreign: tuple[str, ...] = ()


def promote_image(workspace: Workspace, text: str, *, force: bool, note: str = "") -> Promoted:
    """Makes the image called ``text`` current. Raises ConflictError for one that is marked bad, unless ``force``, and
    for one that lacks what its models require, unless ``force`` with a ``note``, which is kept; ImageStateError where
    the engine does not have it; UsageError where images.lock does not."""
    requirements.refuse_note_alone(note, force=force)
    name, _ = status.named_number(workspace.project, lock_file.read_project_lock(workspace.project), text)
    with images_lock.transaction(workspace) as transaction:
        before = transaction.lock
        moves = pointers.moves_to(before, name.repository, name, is_model=False)
        pointers.require_allowed(workspace.engine, before, moves, force=force)
        models = requirements.models_of(workspace.project, before, name) if moves else ()
        kept = requirements.passed(workspace, before, name, dict.fromkeys(models), note)
        after = pointers.apply_moves(before, moves)
        if kept and (record := after.image(name)):
            after = after.with_image(name, replace(record, note=kept))
        transaction.announce(name)  # the tag may have been moved by hand, even if images.lock stays as it is
        transaction.commit(after)
    differences = pointers.differences(workspace.project, before, moves)
    return Promoted(name, moves, pointers.staying(after, moves), differences, claims.foreign_latest(workspace, moves))
