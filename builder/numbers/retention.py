"""This page decides which images and leftovers may be removed from the engine.

Orphans of earlier builds come first, then the rules that keep numbered images.
Anything that another project or program could have made does not count as an orphan.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import groupby
from typing import TYPE_CHECKING

from builder.base import files
from builder.base.values import dataclass
from builder.engine import bake_run, images
from builder.engine.images import ImageDetails, repository
from builder.lock.model import ImageName, Lock
from builder.numbers import build_directory
from builder.plan import making, plan_model
from builder.plan.making import BASE_PACKAGES

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.engine.client import Endpoint


# Orphans that builds of this project left in the engine: images without a name, and records of BuildKit's cache.
# Anything that another project or program could have made does not count.


def nameless_images(
    endpoint: Endpoint, lock: Lock, every: Mapping[str, ImageDetails], of_others: AbstractSet[str]
) -> dict[str, ImageDetails]:
    """The images without a name that builds of the lock's repositories left, by id; ``every`` has all images.

    An image that a number of this project records is left out: its tag was moved away and can be restored.
    ``of_others`` has the fingerprints of other projects' images, which are left out for the same reason.
    """
    recorded: AbstractSet[str] = {
        image.fingerprint for numbers in lock.images.values() for image in numbers.numbers.values() if not image.pruned
    }
    dangling = {id_: every[id_] for id_ in images.dangling(endpoint) if id_ in every}
    # The labels are compared here: for a filter by label, the engine reads every image that it has.
    return {
        id_: image
        for id_, image in dangling.items()
        if making.INPUT_HASH in image.labels
        and image.labels.get(making.REPOSITORY) in lock.images
        and images.fingerprint(image) not in recorded | of_others
    }


def is_untagged(image: ImageDetails) -> bool:
    return all("@" in tag for tag in image.tags)


def superseded_bases(
    endpoint: Endpoint, project: Project, lock: Lock, staying: Iterable[ImageDetails]
) -> dict[str, ImageDetails]:
    """The base images that were pulled for numbers and are not needed any more, by name. They have no tag, are no
    longer pinned, and none of the images ``staying`` is built on them."""
    every_pin = (pins.base for platforms in lock.pins.values() for pins in platforms.values())
    pinned = {base.resolved for base in every_pin if base}
    bases = {}
    on_top = [image.layers for image in staying]
    references = set()
    for name in (ImageName(name, number) for name, recorded in lock.images.items() for number in recorded.numbers):
        steps = build_directory.read_if_possible(build_directory.path_of(project, name)) or ()
        if any(step.name.endswith(BASE_PACKAGES) for step in steps):
            of_base = [step.takes for step in steps if step.name.rpartition(": ")[2] == "base"]
            digests = ((each.get("image", ""), each.get("content", "")) for each in of_base)
            references |= {f"{repository(image)}@{digest}" for image, digest in digests if digest.startswith("sha256:")}
    for reference in sorted(references):
        image = images.inspect_image(endpoint, reference) if reference.partition("@")[2] not in pinned else None
        if image and is_untagged(image) and not any(layers[: len(image.layers)] == image.layers for layers in on_top):
            bases[reference] = image
    return bases


def dockerfile_text(project: Project, names: Iterable[ImageName]) -> str:
    """The text of all Dockerfiles of these numbers, in which the steps of BuildKit's cache records are looked up."""
    texts = []
    for name in names:
        for file in build_directory.build_directory_files(build_directory.path_of(project, name)):
            if file.name == "Dockerfile":
                with suppress(OSError):
                    texts.append(files.read_plain_file(file, plan_model.LARGEST_FILE).decode(errors="replace"))
    return "\n".join(texts)


def removable_records(
    before: Iterable[bake_run.CacheRecord], after: Collection[bake_run.CacheRecord], gone: str, kept: str
) -> set[str]:
    """The ids of the cache records that only removed images needed. ``gone`` has the Dockerfiles of the removed images,
    ``kept`` the Dockerfiles of all others.

    Some records are copies of layers: their steps are in ``gone``, and they shared a layer with an image ``before`` but
    no longer do. The others belong to other stages: their steps are scripts and do not occur in ``kept``. A step of one
    line could belong to another project.
    """
    shared = {record.id for record in before if record.shared}
    if not any(record.shared for record in after):
        # Sometimes the engine marks no record as shared (seen with 28.5), although the remaining images have shared
        # layers. So the marks mean nothing then.
        shared = set()
    free = [
        record for record in after if record.step and record.step in gone and not record.shared and not record.in_use
    ]
    return {record.id for record in free if record.id in shared or ("\n" in record.step and record.step not in kept)}


# The rules that keep numbered images when others are pruned. They are pure, so that tests can try each of them.


@dataclass(frozen=True)
class EngineImages:
    """The images in the engine: the image of each number that is present with the recorded content, every other image
    by its name, and the containers that use each image, by its id."""

    numbered: Mapping[ImageName, ImageDetails]
    others: Mapping[str, ImageDetails]
    containers: Mapping[str, tuple[str, ...]]


def retention_reasons(
    lock: Lock, engine: EngineImages, keep: int, older_than: timedelta, now: datetime
) -> dict[ImageName, tuple[str, ...]]:
    """The reasons why each number stays; none for a number that may go. The ``keep`` newest numbers of each repository
    stay, and so does every image built less than ``older_than`` ago."""
    by_repository = groupby(sorted(engine.numbered, reverse=True), lambda name: name.repository)
    newest = {name for _, names in by_repository for name in [*names][:keep]}  # `islice` refuses a huge number
    own = {name: _own_reasons(lock, name, engine, newest, older_than, now) for name in engine.numbered}
    bases = _base_reasons(engine, own)
    return {name: why or bases.get(engine.numbered[name].layers, ()) for name, why in own.items()}


def _own_reasons(
    lock: Lock, name: ImageName, engine: EngineImages, newest: set[ImageName], older_than: timedelta, now: datetime
) -> tuple[str, ...]:
    repository = lock.images[name.repository]
    image = repository.numbers[name.number]
    is_irreplaceable = image.adopted is not None and image.digest is None and image.status != "bad"
    return (
        *(["current"] if repository.current == name.number else []),
        *(["kept"] if image.pinned else []),
        *(f"serves {model}" for model in lock.models_on(name)),
        *(f"used by container {used}" for used in engine.containers.get(engine.numbered[name].id, ())),
        *(["newest"] if name in newest else []),
        *(["young"] if now - datetime.fromisoformat(image.built) < older_than else []),
        *(["adopted: it cannot be built again"] if is_irreplaceable else []),
    )


def _base_reasons(
    engine: EngineImages, own: Mapping[ImageName, tuple[str, ...]]
) -> dict[tuple[str, ...], tuple[str, ...]]:
    """The reasons to keep an image that other images are built on, by its layers: every leading part of the layers of
    an image that stays."""
    staying = {str(name): engine.numbered[name] for name, why in own.items() if why}
    return {
        image.layers[:end]: (f"{name} is built on this image",)
        for name, image in sorted({**engine.others, **staying}.items())
        for end in range(1, len(image.layers))
    }
