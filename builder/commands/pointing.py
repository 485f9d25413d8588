"""Commands that decide which images are good, kept, current, or paired with a model.

Promoting an image does not change the image of any model. Keeping and marking import nothing heavy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.base.errors import UsageError
from builder.base.values import dataclass, replace
from builder.lock import checking, lock_file
from builder.numbers import images_lock, status
from builder.numbers.status import named_model, named_number

if TYPE_CHECKING:
    from builder.lock.checkpoints_lock import CheckpointName
    from builder.lock.model import ImageName, NumberedImage, Pairing, Status
    from builder.numbers.pointers import PointerMove
    from builder.numbers.workspace import Workspace


# The mark command: records that an image, or a model on its image, is good, bad or untested.


@dataclass(frozen=True)
class Marked:
    """A mark on ``what``, which is a model or an image. ``image`` is the image in both cases. ``changed`` is true if
    the lock changed. ``pointed_at_by`` names the models or the repository that still point to a bad image, ``stuck``
    those among them without an earlier image that fits."""

    what: str
    image: ImageName
    status: Status
    note: str
    changed: bool
    pointed_at_by: tuple[str, ...] = ()
    stuck: tuple[str, ...] = ()


def mark_image(workspace: Workspace, text: str, status: Status, note: str | None) -> Marked:
    """Marks the pairing of a model (also by its recipe), or an image for all models. Without a ``note``, the present
    note stays if the status does not change. Raises UsageError if ``text`` names neither a model nor a numbered
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
    current = [] if name or lock.images[image.repository].current != image.number else [image.repository]
    models = (name,) if name else lock.models_on(image)
    pointed_at_by = (*current, *models) if status == "bad" else ()
    stuck: tuple[str, ...] = ()
    if pointed_at_by:
        from builder.commands import rollback

        stuck = tuple(what for what in pointed_at_by if not rollback.is_possible(after, what, is_model=what in models))
    return Marked(name or str(image), image, status, new_note, changed, pointed_at_by, stuck)


def _new_note(marked: Pairing | NumberedImage, status: Status, note: str | None) -> str:
    if note is not None:
        return note
    return marked.note if marked.status == status else ""


# The pair command: serves a model with an image.


@dataclass(frozen=True)
class WeightsChange:
    """A change of weights on the same image. A rollback goes to another image, so it does not undo this change.
    ``before`` is None if the model's own weights were used."""

    before: CheckpointName | None
    now: CheckpointName


@dataclass(frozen=True)
class Paired:
    """The pairing of a model. ``move`` is None if the model was already paired with the image. ``is_new_recipe`` is
    true if the recipe of the pairing changed."""

    model: str
    image: ImageName
    recipe: str | None
    move: PointerMove | None
    differences: tuple[str, ...]
    weights: WeightsChange | None = None
    is_new_recipe: bool = False


def pair_model(
    workspace: Workspace, model: str, text: str, *, force: bool, note: str = "", checkpoint: str | None = None
) -> Paired:
    """Pairs a model, or the model of a recipe, with the image called ``text``. Other models are unchanged. A pairing
    without a recipe gets the only recipe for the model and the repository, if there is exactly one. A new pairing
    records the model's revision like a build (`model_weights.to_record`). An existing pairing keeps its revision,
    unless ``checkpoint`` names another: ``NAME`` for the latest revision, or ``NAME@REVISION``.

    Raises ConflictError if the image is marked bad, unless ``force``. Raises it also if the image lacks evidence that
    the model requires, unless ``force`` with a ``note``, which is recorded. Raises ImageStateError if the engine lacks
    the image, UsageError if images.lock lacks it."""
    from builder.evidence import requirements
    from builder.lock import checkpoints_lock
    from builder.numbers import pointers
    from builder.serving import model_weights

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
    weights = model_weights.named_weights(workspace.project, checkpoint, model, name, image) if checkpoint else None
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
        if moves:  # the number may come from git: other projects in this engine now avoid it
            images_lock.tell_numbers(workspace, transaction.lock, name.repository)
    differences = pointers.differences(workspace.project, before, moves)
    if moves:
        return Paired(model, name, pairing.recipe, moves[0], differences)
    replaced = checkpoints_lock.parse_name(before.models[model].pairing.revision or "")
    change = WeightsChange(replaced, weights) if weights and weights != replaced else None
    is_new_recipe = pairing.recipe != before.models[model].pairing.recipe
    return Paired(model, name, pairing.recipe, None, differences, change, is_new_recipe)


# The promote command: makes a numbered image the current image of its repository. Models stay paired as they are.


@dataclass(frozen=True)
class Promoted:
    """The promoted image. ``moves`` is empty if the image was already current; ``latest`` is then ``corrected`` if it
    named another image. ``staying`` are models on the previous image. ``foreign`` are repositories whose ``latest``
    belongs to another project."""

    image: ImageName
    moves: tuple[PointerMove, ...]
    staying: tuple[str, ...]
    differences: tuple[str, ...]
    foreign: tuple[str, ...] = ()
    corrected: bool = False


def promote_image(workspace: Workspace, text: str, *, force: bool, note: str = "") -> Promoted:
    """Makes the image called ``text`` current. Raises ConflictError if the image is marked bad, unless ``force``.
    Raises it also if the image lacks evidence that its models require, unless ``force`` with a ``note``, which is
    recorded. Raises ImageStateError if the engine lacks the image, UsageError if images.lock lacks it."""
    from builder.engine import images
    from builder.evidence import requirements
    from builder.numbers import adopted, claims, pointers

    requirements.refuse_note_alone(note, force=force)
    name, recorded = status.named_number(workspace.project, lock_file.read_project_lock(workspace.project), text)
    latest = f"{name.repository}:latest"
    tagged = None
    with images_lock.transaction(workspace) as transaction:
        before = transaction.lock
        moves = pointers.moves_to(before, name.repository, name, is_model=False)
        pointers.require_allowed(workspace.engine, before, moves, force=force)
        if not moves:
            adopted.require_present(workspace.engine, name, recorded)
            tagged = images.inspect_image(workspace.engine, latest)
        models = requirements.models_of(workspace.project, before, name) if moves else ()
        kept = requirements.passed(workspace, before, name, dict.fromkeys(models), note)
        after = pointers.apply_moves(before, moves)
        if kept and (record := after.image(name)):
            after = after.with_image(name, replace(record, note=kept))
        transaction.announce(name)  # `latest` may have been moved by hand, so set it even if the lock stays the same
        transaction.commit(after)
    now = None if moves else images.inspect_image(workspace.engine, latest)
    return Promoted(
        name,
        moves,
        staying=pointers.staying(after, moves),
        differences=pointers.differences(workspace.project, before, moves),
        foreign=claims.foreign_latest(workspace, moves),
        corrected=now is not None and (tagged is None or tagged.id != now.id),
    )


# The keep and release commands: pruning never removes a kept image.


def keep_image(workspace: Workspace, text: str, *, kept: bool) -> tuple[ImageName, bool]:
    """Keeps or releases the image called ``text``. Returns its name, and true if that changed anything. Raises
    UsageError if images.lock has no such image."""
    name, _ = status.named_number(workspace.project, lock_file.read_project_lock(workspace.project), text)
    with images_lock.transaction(workspace) as transaction:
        _, image = status.named_number(workspace.project, transaction.lock, str(name))
        if image.pinned == kept:
            return name, False
        transaction.commit(transaction.lock.with_image(name, replace(image, pinned=kept)))
    return name, True
