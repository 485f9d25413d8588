"""Orphans that builds of this project left in the engine: images without a name, and records of BuildKit's cache.
Anything that another project or program could have made does not count as ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.engine import disk_usage, images
from builder.plan import labels

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from builder.engine.buildkit import build_cache
    from builder.engine.client.endpoint import Endpoint
    from builder.engine.images import ImageDetails
    from builder.lock.model import ImageName, Lock
    from builder.project import Project


def nameless(endpoint: Endpoint, lock: Lock, every: Mapping[str, ImageDetails]) -> dict[str, ImageDetails]:
    """The images without a name that builds of the lock's repositories left, by id; ``every`` holds all images.

    One that a number records is left out: its tag was moved away, and can be given back to it.
    """
    recorded = {
        image.fingerprint
        for repository in lock.images.values()
        for image in repository.numbers.values()
        if not image.pruned
    }
    dangling = {id_: every[id_] for id_ in disk_usage.dangling(endpoint, labels.INPUT_HASH) if id_ in every}
    return {
        id_: image
        for id_, image in dangling.items()
        if image.labels.get(labels.REPOSITORY) in lock.images and images.fingerprint(image) not in recorded
    }


def dockerfile_text(project: Project, names: Iterable[ImageName]) -> str:
    """The text of all Dockerfiles of these numbers, in which a record of BuildKit's cache is looked up."""
    folders = (project.build_directory(name.repository, name.number) for name in names)
    files = (file for folder in folders for file in sorted(folder.rglob("Dockerfile")))
    return "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)


def removable_records(
    before: Iterable[build_cache.CacheRecord], after: Iterable[build_cache.CacheRecord], gone: str, kept: str
) -> set[str]:
    """The ids of the cache records that only removed images needed; ``gone`` and ``kept`` are the Dockerfiles of those
    and of all others.

    These are the copies of their layers: records of steps in ``gone`` that shared a layer with an image ``before`` and
    do so no longer. And the records of their other stages: steps that do not occur in ``kept`` and are scripts, since a
    step of one line could be another project's.
    """
    shared = {record.id for record in before if record.shared}
    free = [
        record for record in after if record.step and record.step in gone and not record.shared and not record.in_use
    ]
    return {record.id for record in free if record.id in shared or ("\n" in record.step and record.step not in kept)}
