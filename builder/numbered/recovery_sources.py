"""What is left of numbered images where images.lock was lost: in build directories, in the engine, in the registry.

A build directory keeps what its build wrote into images.lock; where it is gone as well, the image's labels tell most of
it. Where the three disagree about a number, the build directory counts before the engine, and the engine before the
registry; and it is said.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.engine import disk_usage, images
from builder.engine.reference import split_tag
from builder.errors import LockError
from builder.lock import reading
from builder.lock.model import ImageName, Lock, Model, NumberedImage, Pairing
from builder.numbered.images_lock import RECORD
from builder.plan import labels

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from builder.engine.client.endpoint import Endpoint
    from builder.engine.images import ImageDetails
    from builder.project import Project
    from builder.workspace import Workspace

NUMBER = re.compile("[1-9][0-9]{0,17}")


@dataclass(frozen=True)
class RegistryImage:
    """A number in the registry: its ``reference`` and the digest of its manifest there, what its configuration says,
    and the bytes of its packed layers."""

    reference: str
    digest: str
    details: ImageDetails
    size: int


@dataclass(frozen=True)
class RecoverableImage:
    """One number: the part of a lock that its build wrote, or what can be told of it; what cannot be told; and what a
    person should look at, because two places disagree."""

    name: ImageName
    part: Lock
    unknown: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()

    @property
    def image(self) -> NumberedImage:
        return self.part.images[self.name.repository].numbers[self.name.number]


def repositories(project: Project) -> frozenset[str]:
    """The repositories of this project: an engine and a registry may hold images of others."""
    return _repositories(project, (name for name, _ in _recorded(project)))


def _repositories(project: Project, built: Iterable[ImageName]) -> frozenset[str]:
    from builder.definitions import image

    defined = {image.repository_of(project, name) for name in image.names(project)}
    return frozenset(defined | {name.repository for name in built})


def find(workspace: Workspace, remote: Mapping[ImageName, RegistryImage]) -> list[RecoverableImage]:
    """Every number of this project that a build directory, the engine or the registry (``remote``) knows."""
    tagged = dict(_tagged(workspace.engine))
    built = dict(_recorded(workspace.project))
    ours = _repositories(workspace.project, built)
    found = []
    for name in sorted({*built, *remote, *(name for name in tagged if name.repository in ours)}):
        here, there = tagged.get(name), remote.get(name)
        if name in built:
            found.append(_as_built(name, built[name], here, there))
        elif here and (said := _labels(name, here)):
            found.append(_as_tagged(workspace.engine, name, here, said, there))
        elif there and (said := _labels(name, there.details)):
            found.append(_as_pushed(name, there, said, here))
    return found


def current(endpoint: Endpoint, found: list[RecoverableImage]) -> dict[str, int]:
    """The number that each repository's ``latest`` tag names in the engine, where it names one."""
    latest: dict[str, int] = {}
    for repository in sorted({one.name.repository for one in found}):
        details = images.inspect(endpoint, f"{repository}:latest")
        content = images.fingerprint(details) if details else ""
        numbers = [
            one.name.number for one in found if one.name.repository == repository and one.image.fingerprint == content
        ]
        latest |= {repository: max(numbers)} if numbers else {}
    return latest


def _labels(name: ImageName, details: ImageDetails) -> labels.ImageLabels | None:
    said = labels.read(details.labels)
    return said if said and said.repository == name.repository else None


def _tagged(endpoint: Endpoint) -> Iterator[tuple[ImageName, ImageDetails]]:
    """The images in the engine that have a number as their tag."""
    for details in disk_usage.all_images(endpoint):
        for tag in details.tags:
            repository, number = split_tag(tag)
            if NUMBER.fullmatch(number):
                yield ImageName(repository, int(number)), details


def _recorded(project: Project) -> Iterator[tuple[ImageName, Lock]]:
    """What the build directories keep of images.lock; one that is damaged counts as gone."""
    for file in sorted(project.builds.glob(f"**/{RECORD}")):
        number = file.parent.name
        if not NUMBER.fullmatch(number):
            continue
        name = ImageName(file.parent.parent.relative_to(project.builds).as_posix(), int(number))
        try:
            part = reading.read(file)
        except LockError:
            continue
        if part.image(name):
            yield name, part


def _as_built(name: ImageName, part: Lock, here: ImageDetails | None, there: RegistryImage | None) -> RecoverableImage:
    found = _with_remote(RecoverableImage(name, part), there, f"builds/{name} is of another image")
    if here is None and found.image.digest is None:
        pruned = replace(found.image, pruned=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
        said = f"{name} is not in this engine, and since when is not known: recorded as pruned today"
        return replace(found, part=found.part.with_image(name, pruned), unknown=(said,))
    if here and images.fingerprint(here) != found.image.fingerprint:
        return replace(found, unknown=(f"{name} names other content in this engine than was built: it was moved",))
    return found


def _as_tagged(
    endpoint: Endpoint, name: ImageName, here: ImageDetails, said: labels.ImageLabels, there: RegistryImage | None
) -> RecoverableImage:
    built = images.last_tagged(endpoint, str(name)) or here.created
    part = _part(name, here, said, built, images.disk_size(endpoint, str(name)))
    unknown = (
        f"{name} has no build directory: when it was built is taken from its tag, its Python packages are not known"
    )
    return _with_remote(
        RecoverableImage(name, part, (unknown,)), there, "this engine has another image under that number"
    )


def _as_pushed(
    name: ImageName, there: RegistryImage, said: labels.ImageLabels, here: ImageDetails | None
) -> RecoverableImage:
    part = _part(name, there.details, said, there.details.created, there.size)
    alone = (
        f"{name} is in the registry alone: when it was built is not known, its date is that of its sources, its size"
        " that of its packed layers; its Python packages are not known"
    )
    unknown = [alone]
    if here:
        unknown.append(f"{name} names content in this engine that this program did not build: it was moved")
    return _with_remote(RecoverableImage(name, part, tuple(unknown)), there, "")


def _with_remote(found: RecoverableImage, there: RegistryImage | None, why_not: str) -> RecoverableImage:
    """``found`` with the digest in the registry, where that has the same content."""
    if there is None:
        return found
    if images.fingerprint(there.details) != found.image.fingerprint:
        said = f"{there.reference} holds other content than is recorded for {found.name}: {why_not}"
        return replace(found, findings=(*found.findings, said))
    return replace(found, part=found.part.with_image(found.name, replace(found.image, digest=there.digest)))


def _part(name: ImageName, details: ImageDetails, said: labels.ImageLabels, built: str, size: int) -> Lock:
    """What the build of a labelled image wrote into images.lock."""
    image = NumberedImage(
        built=built,
        definition=said.definition,
        platform=details.platform,
        fingerprint=images.fingerprint(details),
        input_hash=said.input_hash,
        size=size,
        recipe=said.recipe,
        versions=said.versions,
        mods=said.mods,
    )
    part = Lock().with_image(name, image)
    for definition, pins in said.pins.items():
        part = part.with_pins(definition, details.platform, pins)
    for position, model in enumerate(said.models):
        # The recipe's own model comes first, and the revision is that one's.
        part = part.with_model(model, Model(Pairing(name, said.recipe, said.revision if position == 0 else None)))
    return part
