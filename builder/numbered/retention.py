"""The rules by which numbered images stay when others are pruned: pure, so that tests can try each of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from builder.lock.model import ImageName, Lock, NumberedImage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from builder.engine.images import ImageDetails


@dataclass(frozen=True)
class RetentionPolicy:
    """The limits that the user sets: of each repository the ``keep`` newest numbers stay, and so does every image built
    less than ``older_than`` ago."""

    keep: int
    older_than: timedelta


@dataclass(frozen=True)
class EngineImages:
    """The images in the engine: that of each number which is present with the recorded content, every other image by
    its name, and the containers that use each image, by its id."""

    numbered: Mapping[ImageName, ImageDetails]
    others: Mapping[str, ImageDetails]
    containers: Mapping[str, tuple[str, ...]]


def reasons(
    lock: Lock, engine: EngineImages, policy: RetentionPolicy, now: datetime
) -> dict[ImageName, tuple[str, ...]]:
    """Every reason for each number in the engine to stay; a number without any may go."""
    newest = _newest(engine.numbered, policy.keep)
    own = {name: _own_reasons(lock, name, engine, newest, policy, now) for name in engine.numbered}
    bases = _base_reasons(engine, own)
    return {name: why or bases.get(engine.numbered[name].layers, ()) for name, why in own.items()}


def _own_reasons(
    lock: Lock, name: ImageName, engine: EngineImages, newest: set[ImageName], policy: RetentionPolicy, now: datetime
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
        *(["young"] if age < policy.older_than else []),
        *(["adopted: it cannot be built again"] if _is_irreplaceable(image) else []),
    )


def _is_irreplaceable(image: NumberedImage) -> bool:
    """True for an image that was built elsewhere, is not in the registry, and is not marked bad."""
    return image.adopted is not None and image.digest is None and image.status != "bad"


def _newest(names: Iterable[ImageName], keep: int) -> set[ImageName]:
    by_repository: dict[str, list[int]] = {}
    for name in names:
        by_repository.setdefault(name.repository, []).append(name.number)
    return {
        ImageName(repository, number)
        for repository, numbers in by_repository.items()
        for number in sorted(numbers, reverse=True)[:keep]
    }


def _base_reasons(
    engine: EngineImages, own: Mapping[ImageName, tuple[str, ...]]
) -> dict[tuple[str, ...], tuple[str, ...]]:
    """The reason for an image to stay that another one was built on, by the layers of the former: every leading part of
    the layers of an image that stays."""
    staying = {str(name): engine.numbered[name] for name, why in own.items() if why}
    return {
        image.layers[:end]: (f"{name} is built on it",)
        for name, image in sorted({**engine.others, **staying}.items())
        for end in range(1, len(image.layers))
    }
