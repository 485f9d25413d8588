"""What must hold in a lock for its text to say all of it: whatever is pointed at exists, once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.lock.model import ImageName, Lock, Model, Repository


def broken_rules(lock: Lock) -> Iterator[str]:
    """One line for each rule that ``lock`` breaks: a mistake of this program, which a file cannot hold."""
    for name, repository in lock.images.items():
        yield from _broken_in_repository(name, repository)
    for name, model in lock.models.items():
        yield from _broken_in_model(name, model, lock)


def _broken_in_repository(name: str, repository: Repository) -> Iterator[str]:
    if repository.next <= max(repository.numbers, default=0):
        yield f"`next` of {name} is {repository.next}, which is given already"
    order = (*([repository.current] if repository.current is not None else []), *repository.previous)
    if repository.current is None and order:
        yield f"{name} has no current number, and numbers that were current before"
    gone = [number for number in order if number not in repository.numbers]
    yield from (f"{name}:{number} was current, and is not there" for number in gone)
    if len(set(order)) < len(order):
        yield f"{name} names a number twice among those that were current"


def _broken_in_model(name: str, model: Model, lock: Lock) -> Iterator[str]:
    seen: set[ImageName] = set()
    for pairing in (model.pairing, *model.previous):
        if lock.image(pairing.image) is None:
            yield f"{name} is paired with {pairing.image}, which is not among the images"
        if pairing.image in seen:
            yield f"{name} is paired with {pairing.image} twice"
        seen.add(pairing.image)
