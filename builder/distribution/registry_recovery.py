"""The numbered images that the registry of builder.yaml has, looked at without pulling them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from builder.engine.registry import manifests, tag_list
from builder.errors import SourceError, TransferError
from builder.lock.model import ImageName
from builder.numbered.recovery_sources import NUMBER, Remote
from builder.plan import labels

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from builder.distribution.registry import Registry
    from builder.engine.client.endpoint import Endpoint


@dataclass(frozen=True)
class RegistryContents:
    """What the registry has: numbers, and the number that ``latest`` names in each repository. ``faults`` says what
    could not be asked or read, ``foreign`` which numbers this program did not build."""

    numbers: Mapping[ImageName, Remote] = field(default_factory=dict)
    latest: Mapping[str, int] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()


def query(endpoint: Endpoint, place: Registry, repositories: Iterable[str]) -> RegistryContents:
    """Asks the registry for every number of these repositories. One that does not answer is among the faults; so is a
    number that cannot be read, while the others count. Raises EngineError where no engine answers."""
    from concurrent.futures import ThreadPoolExecutor

    numbers: dict[ImageName, Remote] = {}
    latest: dict[str, int] = {}
    faults: list[str] = []
    foreign: list[str] = []
    for repository in sorted(repositories):
        try:
            tags = tag_list.tags(endpoint, f"{place.address}/{repository}")
            names = sorted(ImageName(repository, int(tag)) for tag in tags if NUMBER.fullmatch(tag))
            with ThreadPoolExecutor(max_workers=4) as pool:
                answers = list(pool.map(lambda name: _remote(endpoint, place, name), names))
            held = {one: answer for one, answer in zip(names, answers, strict=True) if isinstance(answer, Remote)}
            faults += [answer for answer in answers if isinstance(answer, str)]
            foreign += [
                f"{one.reference} was not built by this program: left alone"
                for one in held.values()
                if not _is_ours(repository, one)
            ]
            numbers |= {name: one for name, one in held.items() if _is_ours(repository, one)}
            latest |= _latest(endpoint, place, repository, numbers) if "latest" in tags else {}
        except (TransferError, SourceError) as error:
            # What does not answer for one repository does not for the next, after as long a wait.
            faults.append(
                f"{place.address} could not be asked, so that what only it has is not recovered: {error.message}"
            )
            break
    return RegistryContents(numbers, latest, tuple(faults), tuple(foreign))


def _remote(endpoint: Endpoint, place: Registry, name: ImageName) -> Remote | str | None:
    """A number in the registry; what is wrong where it cannot be read; None where it is gone since it was listed."""
    reference = f"{place.repository(name)}:{name.number}"
    try:
        digest = manifests.digest(endpoint, reference)
        if digest is None:
            return None
        exactly = f"{place.repository(name)}@{digest}"
        found = manifests.platform_images(endpoint, exactly)
        if len(found) != 1:
            said = ", ".join(one.platform for one in found)
            return f"{reference} holds images for several platforms ({said}): not recovered"
        return Remote(reference, digest, found[0], manifests.compressed_size(endpoint, exactly))
    except (TransferError, SourceError) as error:
        return f"{reference} could not be read: {error.message}"


def _is_ours(repository: str, one: Remote) -> bool:
    said = labels.read(one.details.labels)
    return said is not None and said.repository == repository


def _latest(
    endpoint: Endpoint, place: Registry, repository: str, numbers: Mapping[ImageName, Remote]
) -> dict[str, int]:
    """The number that the registry's ``latest`` names, where it names one: by digest, since it is pushed as that."""
    digest = manifests.digest(endpoint, f"{place.address}/{repository}:latest")
    named = [name.number for name, one in numbers.items() if name.repository == repository and one.digest == digest]
    return {repository: max(named)} if named else {}
