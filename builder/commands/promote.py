"""The promote command: makes a numbered image the current one of its repository. Models stay where they are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.evidence import gate
from builder.lock import reading
from builder.lock.model import ImageName
from builder.numbered import images_lock, latest_tag, names, pointers
from builder.numbered.pointers import PointerMove

if TYPE_CHECKING:
    from builder.lock.model import Lock
    from builder.workspace import Workspace


@dataclass(frozen=True)
class Promoted:
    """The promoted image. ``moves`` is empty where it was current already; ``staying`` are models on the previous
    one; ``foreign`` are repositories whose ``latest`` another project has."""

    image: ImageName
    moves: tuple[PointerMove, ...]
    staying: tuple[str, ...]
    differences: tuple[str, ...]
    foreign: tuple[str, ...] = ()


def run(workspace: Workspace, text: str, *, force: bool, note: str = "") -> Promoted:
    """Makes the image called ``text`` current.

    Raises ConflictError for one that is marked bad, unless ``force``, and for one that lacks what its models require,
    unless ``force`` with a ``note``, which is kept; ImageStateError where the engine does not have it; UsageError
    where images.lock does not.
    """
    gate.refuse_note_alone(note, force=force)
    name, _ = names.numbered(workspace.project, reading.of(workspace.project), text)
    with images_lock.transaction(workspace) as transaction:
        before = transaction.lock
        moves = _moves(before, name)
        pointers.require_allowed(workspace.engine, before, moves, force=force)
        models = gate.models_of(workspace.project, before, name) if moves else ()
        kept = gate.passed(workspace, before, name, dict.fromkeys(models), note)
        after = pointers.apply(before, moves)
        if kept and (record := after.image(name)):
            after = after.with_image(name, replace(record, note=kept))
        transaction.announce(name)  # the tag may have been moved by hand, even if images.lock stays as it is
        transaction.commit(after)
    differences = pointers.differences(workspace.project, before, moves)
    return Promoted(name, moves, pointers.staying(after, moves), differences, latest_tag.foreign(workspace, moves))


def _moves(lock: Lock, name: ImageName) -> tuple[PointerMove, ...]:
    current = lock.images[name.repository].current
    if current == name.number:
        return ()
    origin = ImageName(name.repository, current) if current else None
    return (PointerMove(name.repository, False, origin, name),)
