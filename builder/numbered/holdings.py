"""The numbers that projects have on record, told in the engine that they share: what one of them has, none of the
others removes.

Each project keeps one empty volume for each of its repositories, whose labels list the numbers that it records and has
not pruned. The list has a name by its content: a new one is made before the old one goes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.engine import volumes
from builder.lock.model import ImageName
from builder.numbered import claims, identity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from builder.engine.client.endpoint import Endpoint
    from builder.lock.model import Lock
    from builder.numbered.identity import ProjectIdentity

_NUMBERS = f"{claims.KIND}.numbers"
_RANGE = re.compile("([0-9]{1,18})(?:-([0-9]{1,18}))?")


@dataclass(frozen=True)
class Holding:
    """The numbers of one repository that another project has on record, as ranges."""

    owner: ProjectIdentity
    repository: str
    ranges: tuple[tuple[int, int], ...]

    def has(self, name: ImageName) -> bool:
        """True if this number is among them."""
        return name.repository == self.repository and any(first <= name.number <= last for first, last in self.ranges)


def write(endpoint: Endpoint, own: ProjectIdentity, lock: Lock, repository: str) -> None:
    """Tells the engine which numbers of a repository ``lock`` records, and that those below its next one are given.
    The lists of projects that are gone are removed."""
    claimed = claims.of_repository(endpoint, repository)
    lists = {volume: labels for volume, labels in claimed.items() if labels.get(claims.KIND) == "project"}
    wanted = ""
    if repository in lock.images and lock.images[repository].numbers:
        own_list = _labels(own, lock, repository)
        wanted = _volume(own_list)
        if wanted not in lists:
            volumes.create(endpoint, wanted, own_list)
    for volume, labels in lists.items():
        owner = identity.of_labels(labels)
        if volume != wanted and (owner.id == own.id or identity.is_gone(owner)):
            volumes.remove(endpoint, volume)


def of_others(endpoint: Endpoint, own_id: str) -> tuple[Holding, ...]:
    """The numbers that other projects have on record. Those of projects that are gone do not count."""
    owned = [(identity.of_labels(labels), labels) for labels in claims.of_kind(endpoint, "project").values()]
    return tuple(
        Holding(owner, labels.get(claims.REPOSITORY, ""), tuple(_ranges(labels.get(_NUMBERS, ""))))
        for owner, labels in owned
        if owner.id != own_id and not identity.is_gone(owner)
    )


def holder(holdings: Iterable[Holding], name: ImageName) -> ProjectIdentity | None:
    """A project that has this number on record; None where there is none."""
    return next((holding.owner for holding in holdings if holding.has(name)), None)


def numbers(lock: Lock, repository: str) -> tuple[int, ...]:
    """The numbers of a repository that a project needs to stay: those that it has not pruned, or uses nevertheless."""
    record = lock.images[repository]
    return tuple(
        number
        for number, image in sorted(record.numbers.items())
        if not image.pruned or number == record.current or lock.models_on(ImageName(repository, number))
    )


def _labels(own: ProjectIdentity, lock: Lock, repository: str) -> dict[str, str]:
    return {
        claims.KIND: "project",
        claims.REPOSITORY: repository,
        claims.NEXT: str(lock.images[repository].next),
        _NUMBERS: " ".join(_as_ranges(numbers(lock, repository))),
        **own.labels,
    }


def _volume(labels: Mapping[str, str]) -> str:
    from hashlib import sha256

    content = "\n".join(f"{key}={value}" for key, value in sorted(labels.items()))
    return f"builder.project.{sha256(content.encode()).hexdigest()[:32]}"


def _as_ranges(ascending: Iterable[int]) -> list[str]:
    ranges: list[list[int]] = []
    for number in ascending:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return [f"{first}-{last}" if first < last else str(first) for first, last in ranges]


def _ranges(text: str) -> Iterator[tuple[int, int]]:
    for word in text.split():
        if match := _RANGE.fullmatch(word):
            yield int(match[1]), int(match[2] or match[1])
