"""What builds of this project left in the engine beside its numbered images: images without a name, and BuildKit's
cache. Nothing that could be anybody else's counts as ours."""

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
    """The images without a name that builds of the lock's repositories left, by id.

    Not one that a number records: somebody moved its tag away, and its content can be given back.
    """
    recorded = {
        image.fingerprint for held in lock.images.values() for image in held.numbers.values() if not image.pruned
    }
    found = {id_: every[id_] for id_ in disk_usage.dangling(endpoint, labels.INPUT_HASH) if id_ in every}
    return {
        id_: image
        for id_, image in found.items()
        if image.labels.get(labels.REPOSITORY) in lock.images and images.fingerprint(image) not in recorded
    }


def cached_steps(project: Project, names: Iterable[ImageName]) -> str:
    """All that the Dockerfiles of these numbers say: what a record of BuildKit's cache is looked up in."""
    folders = (project.build_directory(name.repository, name.number) for name in names)
    files = (file for folder in folders for file in sorted(folder.rglob("Dockerfile")))
    return "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)


def let_go(
    before: Iterable[build_cache.CacheRecord], after: Iterable[build_cache.CacheRecord], gone: str, kept: str
) -> set[str]:
    """The ids of the cache records that only images which are gone had a use for.

    Those are the copies of their layers: records of steps in their Dockerfiles (``gone``) that shared a layer with an
    image ``before`` and do so no longer. And what their other stages left: steps that stand in none of the Dockerfiles
    that are ``kept``, and that are scripts: one line could be anybody's.
    """
    shared = {record.id for record in before if record.shared}
    free = [
        record for record in after if record.step and record.step in gone and not record.shared and not record.in_use
    ]
    return {record.id for record in free if record.id in shared or ("\n" in record.step and record.step not in kept)}
