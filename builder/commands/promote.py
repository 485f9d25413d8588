"""The promote verb: makes a numbered image the current one of its repository. Models stay where they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.events import WAITING, Report
from builder.lock import reading
from builder.numbered import names, pointers, record
from builder.numbered.pointers import Move

if TYPE_CHECKING:
    from builder.engine.client.endpoint import Endpoint
    from builder.lock.model import ImageName, Lock
    from builder.project import Project


@dataclass(frozen=True)
class Promoted:
    """``moves`` is empty where the image was current already; ``staying`` are models on the one that was."""

    image: ImageName
    moves: tuple[Move, ...]
    staying: tuple[str, ...]
    differences: tuple[str, ...]


def run(project: Project, endpoint: Endpoint, text: str, *, force: bool, report: Report) -> Promoted:
    """Makes the image called ``text`` current.

    Raises ConflictError for one that is marked bad, unless ``force``; ImageStateError where the engine does not have
    it; UsageError where images.lock does not.
    """
    name, _ = names.numbered(project, reading.of(project), text)
    done: tuple[Move, ...] = ()

    def change(lock: Lock) -> Lock:
        nonlocal done
        done = _moves(lock, name)
        if not force:
            pointers.refuse_bad(lock, done)
        pointers.require_present(endpoint, lock, done)
        return pointers.apply(lock, done)

    _, after = record.move_pointers(project, endpoint, change, lambda: report(WAITING), [name.repository])
    return Promoted(name, done, pointers.staying(after, done), pointers.differences(project, done))


def _moves(lock: Lock, name: ImageName) -> tuple[Move, ...]:
    current = lock.images[name.repository].current
    if current == name.number:
        return ()
    origin = type(name)(name.repository, current) if current else None
    return (Move(name.repository, False, origin, name),)
