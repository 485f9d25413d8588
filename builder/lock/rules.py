"""What must hold between the parts of a lock: every number that is pointed at exists, and none is given twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.lock.checks import Path
    from builder.lock.model import Lock, Model, Repository


def broken_rules(lock: Lock) -> Iterator[tuple[Path, str]]:
    """Where each rule is broken, as a path into the file, and what is wrong there."""
    for name, repository in lock.images.items():
        yield from _broken_in_repository(name, repository)
    for name, model in lock.models.items():
        yield from _broken_in_model(name, model, lock)


def _broken_in_repository(name: str, repository: Repository) -> Iterator[tuple[Path, str]]:
    path = ("images", name)
    for number in repository.numbers:
        if number >= repository.next:
            message = f"number {number} is given already, so `next` must be above it, not {repository.next}"
            yield (*path, "numbers", str(number)), message
    if repository.current is not None and repository.current not in repository.numbers:
        yield (*path, "current"), f"`current` is {repository.current}, and `{name}` has no such number"
    for index, number in enumerate(repository.previous):
        if number not in repository.numbers:
            yield (*path, "previous", index), f"`previous` names {number}, and `{name}` has no such number"
        elif number == repository.current:
            yield (*path, "previous", index), f"`previous` names {number}, which is current"
        elif number in repository.previous[:index]:
            yield (*path, "previous", index), f"`previous` names {number} twice"


def _broken_in_model(name: str, model: Model, lock: Lock) -> Iterator[tuple[Path, str]]:
    path = ("models", name)
    if lock.image(model.pairing.image) is None:
        yield (*path, "image"), f"`{name}` is paired with {model.pairing.image}, which is not among the images"
    seen = {model.pairing.image}
    for index, pairing in enumerate(model.previous):
        at = (*path, "previous", index, "image")
        if lock.image(pairing.image) is None:
            yield at, f"`{name}` was paired with {pairing.image}, which is not among the images"
        elif pairing.image in seen:
            yield at, f"`{name}` names {pairing.image} twice"
        seen.add(pairing.image)
