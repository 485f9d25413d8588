"""Claims of projects that share an engine: which of them a number was given by, and whose ``latest`` is.

A claim is an empty volume of a fixed name, which only one can create (`builder.engine.volumes`). That of a number stays
as long as the number may be on record anywhere, long after its image was pruned: no project gives it to other content.
Images know nothing of projects: the same inputs make the same image in each.

To take a claim over from a project that is gone, a project removes its volume and creates it again. Where two projects
do so at the same moment, the second may remove the volume that the first has just created, and both go on as the owner.
The volume that stays decides: the next command of the first project reports the second one as the owner. Until then
``latest`` may name an image of either project, and the fingerprint in images.lock shows whose content a number's tag
names. A process that is killed between the two steps leaves the claim to nobody, and the next project takes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.engine import volumes
from builder.errors import ImageStateError
from builder.numbered import identity
from builder.numbered.identity import PROJECT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from builder.engine.client.endpoint import Endpoint
    from builder.lock.model import ImageName
    from builder.numbered.identity import ProjectIdentity

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
    return max([1, *given, *(_as_number(labels.get(NEXT, "")) for labels in claimed)])


def number_of(labels: Mapping[str, str]) -> int:
    """The number that a claim is of; 0 for one that is of none."""
    return _as_number(labels.get(NUMBER, ""))


def give_number(endpoint: Endpoint, own: ProjectIdentity, name: ImageName, fingerprint: str) -> bool:
    """Claims a number for a new image; False where another project has just claimed it."""
    labels = {**_labels_of_number(name), FINGERPRINT: fingerprint, **own.labels}
    return volumes.create(endpoint, _volume_of_number(name), labels).get(PROJECT) == own.id


def require_number(endpoint: Endpoint, own: ProjectIdentity, name: ImageName, fingerprint: str) -> None:
    """Claims a number that images.lock, a file or a registry has for this content; where another project claimed it for
    the same content, both have the same image. Raises ImageStateError where that is other content."""

    def passes(existing: Mapping[str, str]) -> bool:
        if existing.get(FINGERPRINT) == fingerprint:
            return False
        # What this project's number is to have is known better than when it was claimed.
        owner = identity.of_labels(existing)
        return owner.id == own.id or identity.is_gone(owner)

    volume = _volume_of_number(name)
    labels = {**_labels_of_number(name), FINGERPRINT: fingerprint, **own.labels}
    claimed = _claim(endpoint, volume, labels, passes)
    if claimed.get(FINGERPRINT) != fingerprint:
        raise ImageStateError(
            f"{name} is another image in this engine: {identity.of_labels(claimed)} gave it that number, which is never"
            " given to other content",
            hint="projects that build in one engine need a repository each (`repository:` in image.yaml); where that"
            f" project is no more, `docker volume rm {volume}` sets the number free",
        )


def numbers_for(endpoint: Endpoint, own: ProjectIdentity, repository: str, fingerprint: str) -> frozenset[int]:
    """The numbers of a repository that this project claimed for the content of this fingerprint."""
    claimed = of_repository(endpoint, repository).values()
    own_claims = (labels for labels in claimed if labels.get(PROJECT) == own.id)
    return frozenset(number_of(labels) for labels in own_claims if labels.get(FINGERPRINT) == fingerprint)


def release_number(endpoint: Endpoint, own: ProjectIdentity, name: ImageName) -> None:
    """Takes this project's claim of a number back, which was not recorded in the end. That of another one stays."""
    volume = _volume_of_number(name)
    if (volumes.find(endpoint, volume) or {}).get(PROJECT) == own.id:
        volumes.remove(endpoint, volume)


def take_latest(endpoint: Endpoint, own: ProjectIdentity, repository: str) -> ProjectIdentity | None:
    """Makes the ``latest`` of a repository this project's, where it is nobody's or of a project that is gone; None if
    it is this one's now, else the project whose it is."""
    labels = {KIND: "latest", REPOSITORY: repository, **own.labels}
    claimed = _claim(
        endpoint, volume_of_latest(repository), labels, lambda labels: identity.is_gone(identity.of_labels(labels))
    )
    owner = identity.of_labels(claimed)
    return None if owner.id == own.id else owner


def owner_of_latest(endpoint: Endpoint, own_id: str, repository: str) -> ProjectIdentity | None:
    """The other project that the ``latest`` of a repository is of; None where it is this one's or nobody's."""
    labels = volumes.find(endpoint, volume_of_latest(repository))
    if labels is None or labels.get(PROJECT, "") == own_id:
        return None
    owner = identity.of_labels(labels)
    return None if identity.is_gone(owner) else owner


def volume_of_latest(repository: str) -> str:
    """The name of the volume that is the claim of a repository's ``latest``."""
    return f"builder.latest.{_volume_part(repository)}"


def _claim(
    endpoint: Endpoint, volume: str, labels: Mapping[str, str], passes: Callable[[Mapping[str, str]], bool]
) -> Mapping[str, str]:
    """Creates a claim where there is none, or the one that exists ``passes`` on; returns the labels of the claim that
    exists then."""
    existing = volumes.find(endpoint, volume)
    if existing is not None and passes(existing):
        volumes.remove(endpoint, volume)
    return volumes.create(endpoint, volume, labels)


def _volume_of_number(name: ImageName) -> str:
    return f"builder.number.{_volume_part(name.repository)}.{name.number}"


def _labels_of_number(name: ImageName) -> dict[str, str]:
    return {KIND: "number", REPOSITORY: name.repository, NUMBER: str(name.number)}


def _as_number(text: str) -> int:
    """The number in a label, which anybody may have written; 0 where it is none."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else 0


def _volume_part(repository: str) -> str:
    """A repository's name as part of a volume's, which has no slashes and must be the name of a folder: different ones
    for different repositories."""
    from hashlib import sha256

    plain = repository.replace("/", "._")  # which no repository has in its name
    return plain if len(plain) < 150 else f"{plain[:100]}.{sha256(repository.encode()).hexdigest()}"
