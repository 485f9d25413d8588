"""The pair and mark verbs: which image serves a model, and what is known of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.definitions.recipes import recipe as recipes
from builder.errors import UsageError
from builder.lock import lost, reading
from builder.numbered import images_lock, names, pointers
from builder.numbered.pointers import PointerMove
from builder.serving import model_revision

if TYPE_CHECKING:
    from builder.definitions.recipes.recipe import Recipe
    from builder.lock.model import ImageName, Lock, Model, Status
    from builder.project import Project
    from builder.workspace import Workspace


@dataclass(frozen=True)
class Paired:
    """``move`` is None where the model was paired with the image already."""

    model: str
    image: ImageName
    recipe: str | None
    move: PointerMove | None
    differences: tuple[str, ...]


@dataclass(frozen=True)
class Marked:
    """``what`` is a model or an image, ``image`` the image in either case; ``changed`` says whether the lock did.
    ``pointed_at_by`` names what is still at an image that is marked bad now: models, or its repository."""

    what: str
    image: ImageName
    status: Status
    note: str
    changed: bool
    pointed_at_by: tuple[str, ...] = ()


def pair(workspace: Workspace, model: str, text: str, *, force: bool) -> Paired:
    """Pairs a model with the image called ``text``; other models stay where they are.

    A model's first pairing takes the recipe that is for it and for such images, where there is exactly one. A new
    pairing records the model's revision as a build would (`model_revision.to_record`); an earlier one keeps its own.
    Raises ConflictError for an image that is marked bad, unless ``force``; ImageStateError where the engine
    does not have it; UsageError where images.lock does not.
    """
    lock = reading.of(workspace.project)
    name, _ = names.numbered(workspace.project, lock, text)
    first = None if model in lock.models else _recipe(workspace.project, model, name)
    recipe = first or _paired_by(workspace.project, lock, model)
    revision = model_revision.to_record(workspace.environment, model, recipe)
    with images_lock.transaction(workspace) as transaction:
        before = transaction.lock
        moves = _moves(before, model, name)
        if not force:
            pointers.refuse_bad(before, moves)
        pointers.require_present(workspace.engine, before, moves)
        after = pointers.apply(before, moves)
        paired = after.models[model]
        pairing = paired.pairing
        if first and model not in before.models:
            pairing = replace(pairing, recipe=first.file)
        if pairing.revision is None or _is_new(before, model, name):
            pairing = replace(pairing, revision=revision or pairing.revision)
        transaction.commit(after.with_model(model, replace(paired, pairing=pairing)))
    move = moves[0] if moves else None
    return Paired(model, name, pairing.recipe, move, pointers.differences(workspace.project, moves))


def _moves(lock: Lock, model: str, name: ImageName) -> tuple[PointerMove, ...]:
    origin = lock.models[model].pairing.image if model in lock.models else None
    return () if origin == name else (PointerMove(model, True, origin, name),)


def _is_new(lock: Lock, model: str, name: ImageName) -> bool:
    """Whether the model has not been paired with the image before."""
    held = lock.models.get(model)
    return held is None or name not in {pairing.image for pairing in (held.pairing, *held.previous)}


def _paired_by(project: Project, lock: Lock, model: str) -> Recipe | None:
    """The recipe that the model is paired by, where it is still there."""
    file = lock.models[model].pairing.recipe if model in lock.models else None
    path = project.root / file if file else None
    return recipes.read(project, path).recipe if path and path.is_file() else None


def _recipe(project: Project, model: str, name: ImageName) -> Recipe | None:
    found = [recipes.load(project, project.recipes / f"{one}.yaml") for one in recipes.names(project)]
    suiting = [one for one in found if one.model == model and one.repository == name.repository]
    return suiting[0] if len(suiting) == 1 else None


def mark(workspace: Workspace, text: str, status: Status, note: str | None) -> Marked:
    """Marks a model's pairing, or an image for all models. Without a ``note`` the one that stands there stays, as long
    as the status does.

    Raises UsageError where ``text`` names neither a model nor a numbered image.
    """
    lost.refuse(workspace.project)
    with images_lock.transaction(workspace) as transaction:
        lock = transaction.lock
        if text in lock.models:
            held = lock.models[text]
            image, said = held.pairing.image, _note(held.pairing.status, held.pairing.note, status, note)
            after = lock.with_model(text, _marked(held, status, said))
        elif ":" not in text:
            raise UsageError(
                f"`{text}` is no model of images.lock and no numbered image",
                hint="name a model, or an image with its number: `builder mark tf5:7 good`",
            )
        else:
            image, known = names.numbered(workspace.project, lock, text)
            said = _note(known.status, known.note, status, note)
            after = lock.with_image(image, replace(known, status=status, note=said))
        changed = transaction.commit(after)
    if text in lock.models:
        return Marked(text, image, status, said, changed, (text,) if status == "bad" else ())
    current = [image.repository] if lock.images[image.repository].current == image.number else []
    pointers_at = (*current, *lock.models_on(image)) if status == "bad" else ()
    return Marked(str(image), image, status, said, changed, pointers_at)


def _marked(held: Model, status: Status, note: str) -> Model:
    return replace(held, pairing=replace(held.pairing, status=status, note=note))


def _note(before: Status, noted: str, status: Status, note: str | None) -> str:
    if note is not None:
        return note
    return noted if before == status else ""
