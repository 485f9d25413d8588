"""Claims of projects that share an engine: which of them a number was given by, and whose ``latest`` is.

A claim is an empty volume of a fixed name, which only one can create (`builder.engine.volumes`). That of a number stays
as long as the number may be on record anywhere, long after its image was pruned: no project gives it to other content.
Images know nothing of projects: the same inputs make the same image in each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.engine import volumes
from builder.errors import ImageStateError
from builder.numbered import identity
from builder.numbered.identity import PROJECT, ProjectIdentity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.engine.client.endpoint import Endpoint
    from builder.lock.model import ImageName

KIND = "builder.claim"
REPOSITORY, NUMBER, NEXT, FINGERPRINT = (f"{KIND}.{name}" for name in ("repository", "number", "next", "fingerprint"))


def of_repository(endpoint: Endpoint, repository: str) -> dict[str, Mapping[str, str]]:
    """The labels of everything that projects claim of a repository, by the volume's name."""
    return volumes.labelled(endpoint, [f"{REPOSITORY}={repository}"])


def of_kind(endpoint: Endpoint, kind: str) -> dict[str, Mapping[str, str]]:
    """The labels of all claims of a kind ("number", "latest", "project"), by the volume's name."""
    return volumes.labelled(endpoint, [f"{KIND}={kind}"])


def contents_of_others(endpoint: Endpoint, own_id: str) -> frozenset[str]:
    """The fingerprints of the images that other projects gave numbers to. Projects that are gone do not count."""
    claimed = of_kind(endpoint, "number").values()
    owned = [(identity.of_labels(labels), labels.get(FINGERPRINT, "")) for labels in claimed]
    return frozenset(content for owner, content in owned if owner.id != own_id and not identity.is_gone(owner))


def next_number(endpoint: Endpoint, repository: str) -> int:
    """The first number of a repository that is above all that projects have given in this engine."""
    claimed = of_repository(endpoint, repository).values()
    given = (number_of(labels) + 1 for labels in claimed)
    return max([1, *given, *(_number(labels.get(NEXT, "")) for labels in claimed)])


def number_of(labels: Mapping[str, str]) -> int:
    """The number that a claim is of; 0 for one that is of none."""
    return _number(labels.get(NUMBER, ""))


def give_number(endpoint: Endpoint, own: ProjectIdentity, name: ImageName, fingerprint: str) -> bool:
    """Claims a number for a new image; False where another project has just claimed it."""
    owner = volumes.create(endpoint, _number_volume(name), _number_labels(own, name, fingerprint))
    return owner.get(PROJECT) == own.id


def require_number(endpoint: Endpoint, own: ProjectIdentity, name: ImageName, fingerprint: str) -> None:
    """Claims a number that images.lock, a file or a registry has for this content; where another project claimed it for
    the same content, both have the same image. Raises ImageStateError where that is other content."""
    volume, labels = _number_volume(name), _number_labels(own, name, fingerprint)
    existing = volumes.create(endpoint, volume, labels)
    if existing.get(FINGERPRINT) == fingerprint:
        return
    owner: ProjectIdentity | None = identity.of_labels(existing)
    if owner and (owner.id == own.id or identity.is_gone(owner)):
        owner = _take_over(endpoint, own, volume, labels)
    if owner is not None:
        raise ImageStateError(
            f"{name} is another image in this engine: {owner} gave it that number, which is never given to other"
            " content",
            hint="projects that build in one engine need a repository each (`repository:` in image.yaml); where that"
            f" project is no more, `docker volume rm {volume}` sets the number free",
        )


def release_number(endpoint: Endpoint, own: ProjectIdentity, name: ImageName) -> None:
    """Takes this project's claim of a number back, which was not recorded in the end. That of another one stays."""
    labels = volumes.find(endpoint, _number_volume(name))
    if labels and labels.get(PROJECT) == own.id:
        volumes.remove(endpoint, _number_volume(name))


def take_latest(endpoint: Endpoint, own: ProjectIdentity, repository: str) -> ProjectIdentity | None:
    """Makes the ``latest`` of a repository this project's, where it is nobody's or of a project that is gone; None if
    it is this one's now, else whose it is."""
    volume = latest_volume(repository)
    labels = {KIND: "latest", REPOSITORY: repository, **own.labels}
    owner = identity.of_labels(volumes.create(endpoint, volume, labels))
    if owner.id != own.id and identity.is_gone(owner):
        return _take_over(endpoint, own, volume, labels)
    return None if owner.id == own.id else owner


def owner_of_latest(endpoint: Endpoint, own_id: str, repository: str) -> ProjectIdentity | None:
    """The other project that the ``latest`` of a repository is of; None where it is this one's or nobody's."""
    labels = volumes.find(endpoint, latest_volume(repository))
    owner = identity.of_labels(labels or {})
    return None if labels is None or owner.id == own_id or identity.is_gone(owner) else owner


def latest_volume(repository: str) -> str:
    """The name of the volume by which a project claims the ``latest`` of a repository."""
    return f"builder.latest.{_volume_part(repository)}"


def _take_over(
    endpoint: Endpoint, own: ProjectIdentity, volume: str, labels: Mapping[str, str]
) -> ProjectIdentity | None:
    """Takes over a claim of a project that is gone; None if it is this project's now, else whose it is.

    Two may try at once, and what one has just made the other must not remove: they take turns by a further claim. This
    project's own claim of a number gives way, too: what is to have it is known better than when that was made.
    """
    turn = f"{volume}.TURN"  # no repository has capitals in its name
    rival = identity.of_labels(volumes.create(endpoint, turn, {**labels, KIND: "turn"}))
    if rival.id != own.id and not identity.is_gone(rival):
        return rival
    try:
        before = identity.of_labels(volumes.find(endpoint, volume) or {})
        if before.id == own.id or identity.is_gone(before):
            volumes.remove(endpoint, volume)
        owner = identity.of_labels(volumes.create(endpoint, volume, labels))
        return None if owner.id == own.id else owner
    finally:
        volumes.remove(endpoint, turn)


def _number(text: str) -> int:
    """The number in a label, which anybody may have written; 0 where it is none."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else 0


def _number_labels(own: ProjectIdentity, name: ImageName, fingerprint: str) -> dict[str, str]:
    number = {KIND: "number", REPOSITORY: name.repository, NUMBER: str(name.number), FINGERPRINT: fingerprint}
    return {**number, **own.labels}


def _number_volume(name: ImageName) -> str:
    return f"builder.number.{_volume_part(name.repository)}.{name.number}"


def _volume_part(repository: str) -> str:
    """A repository's name as part of a volume's, which has no slashes and must be the name of a folder: different ones
    for different repositories."""
    from hashlib import sha256

    plain = repository.replace("/", "._")  # which no repository has in its name
    return plain if len(plain) < 150 else f"{plain[:100]}.{sha256(repository.encode()).hexdigest()}"
