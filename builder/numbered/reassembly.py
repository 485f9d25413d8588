"""A lock put together again from what is left of its numbers, as if they were built in the order in which they were."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.lock import merging
from builder.lock.model import Lock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builder.numbered.recovery_sources import RecoverableImage


def completed(lock: Lock, missing: Sequence[RecoverableImage], latest: Mapping[str, int]) -> Lock:
    """``lock`` and what is missing in it; ``latest`` are the current numbers, as tags tell them."""
    told = Lock()
    for one in _in_order(missing):
        told = _built(told, one)
    for repository, number in latest.items():
        if repository in told.images and number in told.images[repository].numbers:
            told = told.with_repository(repository, told.images[repository].with_current(number))
    return merging.adopt(lock, told)


def _in_order(found: Sequence[RecoverableImage]) -> list[RecoverableImage]:
    """In the order of building. A number was built before every higher one of its repository, whatever its time says:
    one that comes from a tag is too late where the image was tagged again."""
    earliest: dict[str, str] = {}
    keyed = []
    for one in sorted(found, key=lambda one: one.name, reverse=True):
        stamp = min(one.image.built, earliest.get(one.name.repository, one.image.built))
        earliest[one.name.repository] = stamp
        keyed.append((stamp, one.name, one))
    return [one for _, _, one in sorted(keyed, key=lambda key: key[:2])]


def _built(lock: Lock, one: RecoverableImage) -> Lock:
    """``lock`` after a build: what the build wrote goes on top of what is there."""
    lock = lock.with_image(one.name, one.image)
    lock = lock.with_repository(one.name.repository, lock.images[one.name.repository].with_current(one.name.number))
    for definition, platforms in one.part.pins.items():
        for platform, pins in platforms.items():
            lock = lock.with_pins(definition, platform, pins)
    for model, paired in one.part.models.items():
        lock = lock.with_pairing(model, paired.pairing)
    return lock
