"""Orphans that builds of this project left in the engine: images without a name, and records of BuildKit's cache.
Anything that another project or program could have made does not count as ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.engine import disk_usage, images
from builder.engine.reference import repository
from builder.lock.model import ImageName
from builder.numbered import build_directory, plan_file
from builder.plan import labels, layout
from builder.plan.make import BASE_PACKAGES
from builder.storage import regular_file

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    from builder.engine.buildkit import build_cache
    from builder.engine.client.endpoint import Endpoint
    from builder.engine.images import ImageDetails
    from builder.lock.model import Lock
    from builder.project import Project


def nameless(
    endpoint: Endpoint, lock: Lock, every: Mapping[str, ImageDetails], of_others: AbstractSet[str]
) -> dict[str, ImageDetails]:
    """The images without a name that builds of the lock's repositories left, by id; ``every`` holds all images.

    One that a number records is left out, here or, by its fingerprint in ``of_others``, in another project: its tag was
    moved away, and can be given back to it.
    """
    recorded: AbstractSet[str] = {
        image.fingerprint for numbers in lock.images.values() for image in numbers.numbers.values() if not image.pruned
    }
    dangling = {id_: every[id_] for id_ in disk_usage.dangling(endpoint, labels.INPUT_HASH) if id_ in every}
    return {
        id_: image
        for id_, image in dangling.items()
        if image.labels.get(labels.REPOSITORY) in lock.images and images.fingerprint(image) not in recorded | of_others
    }


def is_untagged(image: ImageDetails) -> bool:
    """True for an image that has no name but its digest, which containerd's store lists among the tags."""
    return all("@" in tag for tag in image.tags)


def superseded_bases(
    endpoint: Endpoint, project: Project, lock: Lock, staying: Iterable[ImageDetails]
) -> dict[str, ImageDetails]:
    """The images of others that were pulled because numbers stand on them, by name: without a tag, no longer pinned,
    and with no image left on them among those ``staying``."""
    pinned = _pinned_bases(lock)
    bases = {}
    on_top = [image.layers for image in staying]
    for reference in sorted(_bases_of_numbers(project, lock)):
        image = images.inspect(endpoint, reference) if reference.partition("@")[2] not in pinned else None
        if image and is_untagged(image) and not any(layers[: len(image.layers)] == image.layers for layers in on_top):
            bases[reference] = image
    return bases


def base_digests(project: Project, lock: Lock) -> frozenset[str]:
    """The digests of the images of others that this program pulled: those that are pinned, and those that numbers stand
    on."""
    numbered = (reference.partition("@")[2] for reference in _bases_of_numbers(project, lock))
    return frozenset([*_pinned_bases(lock), *numbered])


def _pinned_bases(lock: Lock) -> set[str]:
    return {pins.base.resolved for platforms in lock.pins.values() for pins in platforms.values() if pins.base}


def _bases_of_numbers(project: Project, lock: Lock) -> set[str]:
    names = [ImageName(name, number) for name, recorded in lock.images.items() for number in recorded.numbers]
    return {
        f"{repository(step.takes.get('image', ''))}@{step.takes['content']}"
        for name in names
        for steps in [plan_file.read_if_possible(project.build_directory(name.repository, name.number)) or ()]
        if any(step.name.endswith(BASE_PACKAGES) for step in steps)
        for step in steps
        if step.name.rpartition(": ")[2] == "base" and step.takes.get("content", "").startswith("sha256:")
    }


def dockerfile_text(project: Project, names: Iterable[ImageName]) -> str:
    """The text of all Dockerfiles of these numbers, in which a record of BuildKit's cache is looked up."""
    folders = (project.build_directory(name.repository, name.number) for name in names)
    files = (file for folder in folders for file in build_directory.files(folder) if file.name == "Dockerfile")
    return "\n".join(_text(file) for file in files)


def _text(file: Path) -> str:
    try:
        return regular_file.read(file, layout.LARGEST_FILE).decode(errors="replace")
    except OSError:
        return ""


def removable_records(
    before: Iterable[build_cache.CacheRecord], after: Collection[build_cache.CacheRecord], gone: str, kept: str
) -> set[str]:
    """The ids of the cache records that only removed images needed; ``gone`` and ``kept`` are the Dockerfiles of those
    and of all others.

    These are the copies of their layers: records of steps in ``gone`` that shared a layer with an image ``before`` and
    do so no longer. And the records of their other stages: steps that do not occur in ``kept`` and are scripts, since a
    step of one line could be another project's.
    """
    shared = {record.id for record in before if record.shared}
    if not any(record.shared for record in after):
        # The engine marks none at times (seen with 28.5). The images that stay have shared layers: so it tells nothing.
        shared = set()
    free = [
        record for record in after if record.step and record.step in gone and not record.shared and not record.in_use
    ]
    return {record.id for record in free if record.id in shared or ("\n" in record.step and record.step not in kept)}
