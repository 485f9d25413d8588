"""The numbered images in the registry of builder.yaml, read without pulling them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from builder.engine.registry import manifests, registry_session
from builder.errors import SourceError, TransferError
from builder.lock.model import ImageName
from builder.numbered.recovery_sources import NUMBER, RegistryImage, labels_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from builder.distribution.registry import Registry
    from builder.engine.client.endpoint import Endpoint


@dataclass(frozen=True)
class RegistryContents:
    """The contents of the registry: its numbers, and the number that ``latest`` names in each repository. ``faults``
    tells what could not be read, ``foreign`` which numbers this program did not build."""

    numbers: Mapping[ImageName, RegistryImage] = field(default_factory=dict)
    latest: Mapping[str, int] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()


def query(endpoint: Endpoint, registry: Registry, repositories: Iterable[str]) -> RegistryContents:
    """Reads every number of these repositories from the registry. A registry that does not answer is among the faults,
    and so is a number that cannot be read. Raises EngineError where no engine answers."""
    from concurrent.futures import ThreadPoolExecutor

    numbers: dict[ImageName, RegistryImage] = {}
    latest: dict[str, int] = {}
    faults: list[str] = []
    foreign: list[str] = []
    for repository in sorted(repositories):
        try:
            tags = registry_session.tags(endpoint, f"{registry.address}/{repository}")
            names = sorted(ImageName(repository, int(tag)) for tag in tags if NUMBER.fullmatch(tag))
            with ThreadPoolExecutor(max_workers=4) as pool:
                answers = list(pool.map(lambda name: _remote(endpoint, registry, name), names))
            remotes = {
                name: answer for name, answer in zip(names, answers, strict=True) if isinstance(answer, RegistryImage)
            }
            faults += [answer for answer in answers if isinstance(answer, str)]
            foreign += [
                f"{remote.reference} was not built by this program: left alone"
                for name, remote in remotes.items()
                if labels_of(name, remote.details) is None
            ]
            numbers |= {name: remote for name, remote in remotes.items() if labels_of(name, remote.details)}
            latest |= _latest(endpoint, registry, repository, numbers) if "latest" in tags else {}
        except (TransferError, SourceError) as error:
            # It would not answer for the next repository either, after as long a wait.
            faults.append(
                f"{registry.address} could not be asked, so that what only it has is not recovered: {error.message}"
            )
            break
    return RegistryContents(numbers, latest, tuple(faults), tuple(foreign))


def _remote(endpoint: Endpoint, registry: Registry, name: ImageName) -> RegistryImage | str | None:
    """A number in the registry; a message if it cannot be read; None if it is gone since it was listed."""
    reference = f"{registry.repository(name)}:{name.number}"
    try:
        digest = manifests.digest(endpoint, reference)
        if digest is None:
            return None
        pinned = f"{registry.repository(name)}@{digest}"
        platform_images = manifests.platform_images(endpoint, pinned)
        if len(platform_images) != 1:
            platforms = ", ".join(image.platform for image in platform_images)
            return f"{reference} holds images for several platforms ({platforms}): not recovered"
        return RegistryImage(reference, digest, platform_images[0], manifests.compressed_size(endpoint, pinned))
    except (TransferError, SourceError) as error:
        return f"{reference} could not be read: {error.message}"


def _latest(
    endpoint: Endpoint, registry: Registry, repository: str, numbers: Mapping[ImageName, RegistryImage]
) -> dict[str, int]:
    """The number that the registry's ``latest`` names, if any; the digests tell, since ``latest`` is pushed as one."""
    digest = manifests.digest(endpoint, f"{registry.address}/{repository}:latest")
    matching = [
        name.number for name, remote in numbers.items() if name.repository == repository and remote.digest == digest
    ]
    return {repository: max(matching)} if matching else {}
