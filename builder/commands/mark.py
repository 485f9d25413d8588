"""The mark command: records that an image, or a model on its image, is good, bad or untested."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.lock import lost_lock
from builder.numbered import images_lock, names

if TYPE_CHECKING:
    from builder.lock.model import ImageName, NumberedImage, Pairing, Status
    from builder.workspace import Workspace


@dataclass(frozen=True)
class Marked:
    """A mark on ``what``, a model or an image; ``image`` is the image in either case. ``changed`` is true if the lock
    changed. ``pointed_at_by`` names what still points to an image that is marked bad now: models, or its
    repository."""

    what: str
    image: ImageName
    status: Status
    note: str
    changed: bool
    pointed_at_by: tuple[str, ...] = ()


def run(workspace: Workspace, text: str, status: Status, note: str | None) -> Marked:
    """Marks the pairing of a model or of a recipe's model, or an image for all models. Without a ``note`` the present
    one stays, as long as the status stays.

    Raises UsageError where ``text`` names neither a model nor a numbered image.
    """
    lost_lock.refuse(workspace.project)
    with images_lock.transaction(workspace) as transaction:
        lock = transaction.lock
        if name := names.model(workspace.project, lock, text):
            model = lock.models[name]
            image = model.pairing.image
            new_note = _new_note(model.pairing, status, note)
            pairing = replace(model.pairing, status=status, note=new_note)
            after = lock.with_model(name, replace(model, pairing=pairing))
        else:
            image, record = names.numbered(workspace.project, lock, text)
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
