"""The sources that a lost images.lock is rebuilt from: build directories and the images in the engine.

A build directory keeps the part of images.lock that its build wrote; where it is gone as well, the image's labels hold
most of that. Where the two disagree about a number, the build directory wins.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder import timestamp
from builder.engine import disk_usage, images
from builder.engine.reference import split_tag
from builder.errors import LockError, UsageError
from builder.events import Message
from builder.lock import foreign, reading, text
from builder.lock.model import ImageName, Lock, Model, NumberedImage, Pairing
from builder.numbered import holdings, identity
from builder.numbered.images_lock import RECORD
from builder.plan import bake, labels, layout
from builder.storage import regular_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from builder.engine.client.endpoint import Endpoint
    from builder.engine.images import ImageDetails
    from builder.project import Project
    from builder.workspace import Workspace

_LARGEST_RECORD = 256 << 20
_NUMBER = re.compile("[1-9][0-9]{0,17}")


@dataclass(frozen=True)
class RecoverableImage:
    """A number that can be recovered: the part of a lock that its build wrote, or as much of it as is known;
    ``unknown`` says what is missing."""

    name: ImageName
    part: Lock
    unknown: tuple[str, ...] = ()

    @property
    def image(self) -> NumberedImage:
        return self.part.images[self.name.repository].numbers[self.name.number]


def _repositories(project: Project, built: Iterable[ImageName]) -> frozenset[str]:
    """The repositories of this project, which has ``built`` these numbers: an engine may hold images of others. A
    definition that cannot be read counts only by its build directories."""
    from builder.definitions import image

    return frozenset({*image.repositories(project), *(name.repository for name in built)})


def find(workspace: Workspace) -> list[RecoverableImage]:
    """Finds every number of this project in build directories and in the engine. Those in the engine that another
    project there has on record are left out, unless they are in builds/, too."""
    built = dict(in_builds(workspace.project))
    tagged = dict(_of_no_other(workspace, built, _in_engine(workspace.engine)))
    ours = _repositories(workspace.project, built)
    recoverable = []
    for name in sorted({*built, *(name for name in tagged if name.repository in ours)}):
        local = tagged.get(name)
        if name in built:
            recoverable.append(_from_build(name, built[name], local))
        elif local and (own := labels_of(name, local)):
            recoverable.append(_from_engine(workspace.engine, name, local, own))
    return [number for number in recoverable if _is_plausible(workspace, number)]


def _of_no_other(
    workspace: Workspace, built: Mapping[ImageName, Lock], tagged: Iterable[tuple[ImageName, ImageDetails]]
) -> Iterator[tuple[ImageName, ImageDetails]]:
    others = holdings.of_others(workspace.engine, identity.existing(workspace.project))
    for name, details in tagged:
        owner = None if name in built else holdings.holder(others, name)
        if owner is None:
            yield name, details
        elif name.repository in _repositories(workspace.project, built):
            workspace.report(Message(f"{name} is left out: {owner} has it"))


def _is_plausible(workspace: Workspace, number: RecoverableImage) -> bool:
    """True if images.lock can hold what is known of a number; labels may be anybody's."""
    if reason := foreign.refused(number.part):
        workspace.report(Message(f"{number.name} is left out: {reason}"))
    return not reason


def current(endpoint: Endpoint, recoverable: list[RecoverableImage]) -> dict[str, int]:
    """The number that each repository's ``latest`` tag names in the engine, where it names one."""
    latest: dict[str, int] = {}
    for repository in sorted({number.name.repository for number in recoverable}):
        details = images.inspect(endpoint, f"{repository}:latest")
        content = images.fingerprint(details) if details else ""
        numbers = [
            number.name.number
            for number in recoverable
            if number.name.repository == repository and number.image.fingerprint == content
        ]
        latest |= {repository: max(numbers)} if numbers else {}
    return latest


def labels_of(name: ImageName, details: ImageDetails) -> labels.ImageLabels | None:
    """The labels of an image as its build wrote them; None for those of another repository or another program. Anybody
    can write labels: those that images.lock could not hold are no build's."""
    image_labels = labels.read(details.labels)
    if image_labels is None or image_labels.repository != name.repository:
        return None
    try:
        part = _part(name, details, image_labels, timestamp.now(), 0)
        sound = reading.parse(text.dump(part)) == part
    except (LockError, UsageError, TypeError, ValueError, AttributeError, KeyError):
        return None
    return image_labels if sound else None


def _in_engine(endpoint: Endpoint) -> Iterator[tuple[ImageName, ImageDetails]]:
    """The images in the engine that have a number as their tag."""
    for details in disk_usage.all_images(endpoint):
        for tag in details.tags:
            repository, number = split_tag(tag)
            if _NUMBER.fullmatch(number):
                yield ImageName(repository, int(number)), details


def in_builds(project: Project) -> Iterator[tuple[ImageName, Lock]]:
    """The parts of images.lock that the build directories keep; one that is damaged counts as gone."""
    for file in sorted(project.builds.glob(f"**/{RECORD}")):
        number = file.parent.name
        if not _NUMBER.fullmatch(number) or _is_of_a_mod(project, file):
            continue
        name = ImageName(file.parent.parent.relative_to(project.builds).as_posix(), int(number))
        try:
            part = reading.parse_bytes(regular_file.read(file, _LARGEST_RECORD), RECORD)
        except (LockError, OSError):
            continue
        if part.image(name):
            # Anybody may have written the directory: it tells of its own number alone.
            yield name, replace(part, models={m: kept for m, kept in part.models.items() if kept.pairing.image == name})


def _is_of_a_mod(project: Project, file: Path) -> bool:
    """True for a file inside a build directory, of which each number has one: a mod may hold anything."""
    above = file.parent.parent.relative_to(project.builds).parts
    folders = (project.builds.joinpath(*above[:depth]) for depth in range(1, len(above) + 1))
    return any((folder / marker).exists() for folder in folders for marker in (bake.FILE, layout.ADOPTED))


def _from_build(name: ImageName, part: Lock, local: ImageDetails | None) -> RecoverableImage:
    number = RecoverableImage(name, part)
    if local is None:
        pruned = replace(number.image, pruned=timestamp.now())
        unknown = f"{name} is not in this engine, and since when is not known: recorded as pruned today"
        return replace(number, part=number.part.with_image(name, pruned), unknown=(unknown,))
    if images.fingerprint(local) != number.image.fingerprint:
        return replace(number, unknown=(f"{name} names other content in this engine than was built: it was moved",))
    return number


def _from_engine(
    endpoint: Endpoint, name: ImageName, local: ImageDetails, image_labels: labels.ImageLabels
) -> RecoverableImage:
    built = images.last_tagged(endpoint, str(name)) or local.created
    part = _part(name, local, image_labels, built, images.disk_size(endpoint, str(name)))
    unknown = (
        f"{name} has no build directory: when it was built is taken from its tag, its Python packages are not known"
    )
    return RecoverableImage(name, part, (unknown,))


def _part(name: ImageName, details: ImageDetails, image_labels: labels.ImageLabels, built: str, size: int) -> Lock:
    """The part of images.lock that the build of a labelled image wrote."""
    image = NumberedImage(
        built=built,
        definition=image_labels.definition,
        platform=details.platform,
        fingerprint=images.fingerprint(details),
        input_hash=image_labels.input_hash,
        size=size,
        recipe=image_labels.recipe,
        versions=image_labels.versions,
        mods=image_labels.mods,
    )
    part = Lock().with_image(name, image)
    for definition, pins in image_labels.pins.items():
        part = part.with_pins(definition, details.platform, pins)
    for position, model in enumerate(image_labels.models):
        # The recipe's own model comes first, and the revision is that one's.
        revision = image_labels.revision if position == 0 else None
        part = part.with_model(model, Model(Pairing(name, image_labels.recipe, revision)))
    return part
