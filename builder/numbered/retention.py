"""Which numbered images stay when others are pruned, and why: pure, so that every rule can be tried out."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from builder.lock.model import ImageName, Lock

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from builder.engine.images import ImageDetails


@dataclass(frozen=True)
class RetentionPolicy:
    """Which images may go: of each repository all but the ``keep`` newest numbers, and of these only those built more
    than ``older_than`` ago."""

    keep: int
    older_than: timedelta


@dataclass(frozen=True)
class EngineImages:
    """The engine as pruning sees it: the image of each number that is there with the content recorded, every image that
    is no number's by what people call it, and the containers that use each image, by its id."""

    numbered: Mapping[ImageName, ImageDetails]
    others: Mapping[str, ImageDetails]
    containers: Mapping[str, tuple[str, ...]]


def reasons(lock: Lock, engine: EngineImages, wish: RetentionPolicy, now: datetime) -> dict[ImageName, tuple[str, ...]]:
    """Every reason for each number in the engine to stay; a number without any may go."""
    newest = _newest(engine.numbered, wish.keep)
    found = {name: _own(lock, name, engine, newest, wish, now) for name in engine.numbered}
    grounds = _grounds(engine, found)
    return {name: why or grounds.get(engine.numbered[name].layers, ()) for name, why in found.items()}


def _own(
    lock: Lock, name: ImageName, engine: EngineImages, newest: set[ImageName], wish: RetentionPolicy, now: datetime
) -> tuple[str, ...]:
    repository = lock.images[name.repository]
    image = repository.numbers[name.number]
    age = now - datetime.fromisoformat(image.built)
    return (
        *(["current"] if repository.current == name.number else []),
        *(["pinned"] if image.pinned else []),
        *(f"serves {model}" for model in lock.models_on(name)),
        *(f"used by container {used}" for used in engine.containers.get(engine.numbered[name].id, ())),
        *(["newest"] if name in newest else []),
        *(["young"] if age < wish.older_than else []),
    )


def _newest(names: Iterable[ImageName], keep: int) -> set[ImageName]:
    numbers: dict[str, list[int]] = {}
    for name in names:
        numbers.setdefault(name.repository, []).append(name.number)
    return {ImageName(repo, number) for repo, held in numbers.items() for number in sorted(held, reverse=True)[:keep]}


def _grounds(
    engine: EngineImages, found: Mapping[ImageName, tuple[str, ...]]
) -> dict[tuple[str, ...], tuple[str, ...]]:
    """The layers below each image that stays, as an image on its own would have them, and what to say of it."""
    staying = {str(name): engine.numbered[name] for name, why in found.items() if why}
    return {
        image.layers[:end]: (f"{name} is built on it",)
        for name, image in sorted({**engine.others, **staying}.items())
        for end in range(1, len(image.layers))
    }
