"""The ``lock --recover`` command: rebuilds a lost images.lock from build directories and the engine.

What was recorded after a build (marks, notes, pins of images, pairings that moved) is kept nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.definitions import image
from builder.errors import LockError, NothingToDoError
from builder.lock import lost_lock, merge_sides, merging, reading
from builder.lock.model import ImageName, Lock
from builder.numbered import images_lock, latest_tag, recovery_sources
from builder.storage import atomic_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from builder.numbered.recovery_sources import RecoverableImage
    from builder.project import Project
    from builder.workspace import Workspace

_NOWHERE = (
    "marks, notes and pins (`builder pin`) that were set, digests of what was pushed, and pairings that `pair` or"
    " `rollback` moved, stand nowhere else: models are paired with the newest image that was built for them"
)

_ANEW = "nothing tells any more what builds/ was built from: move its folders away, and images.lock begins anew"


@dataclass(frozen=True)
class Recovered:
    """The numbers that are recorded again; what could not be recovered; what the user should look at, because a
    definition could not be read; and the file that holds the damaged lock (empty where it was missing or good)."""

    images: tuple[ImageName, ...]
    unknown: tuple[str, ...]
    findings: tuple[str, ...]
    damaged: str


def run(workspace: Workspace) -> Recovered:
    """Writes images.lock anew where it is missing or damaged; a good one gets the numbers that it lacks, and keeps all
    that it has.

    The current number of a repository is the one that ``latest`` names in the engine. Raises NothingToDoError where
    nothing is found or nothing is missing; LockError for a lock that is newer than this program, or that a merge left
    unfinished.
    """
    damaged: list[bytes] = []

    def read(content: bytes, file: str) -> Lock:
        try:
            return reading.parse_bytes(content, file)
        except LockError:
            if not merge_sides.is_lost(content, file):
                raise
            damaged.append(content)
            return Lock()

    with images_lock.repair(workspace, read) as writer:
        recoverable = recovery_sources.find(workspace)
        missing = [number for number in recoverable if writer.lock.image(number.name) is None]
        findings = tuple(_unreadable_definitions(workspace.project))
        if not missing:
            hint = _ANEW if lost_lock.is_lost(workspace.project) else ""
            raise NothingToDoError("\n".join((_nothing_to_recover(recoverable), *findings)), hint=hint)
        aside = _put_aside(workspace.project, damaged)
        latest = recovery_sources.current(workspace.engine, recoverable)
        writer.commit(completed(writer.lock, missing, latest))
        for name, repository in writer.lock.images.items():
            latest_tag.point(workspace, name, repository.current)
            images_lock.tell_numbers(workspace, writer.lock, name)
    unknown = (*(line for number in missing for line in number.unknown), _NOWHERE)
    return Recovered(tuple(number.name for number in missing), unknown, findings, aside)


def completed(lock: Lock, missing: Sequence[RecoverableImage], latest: Mapping[str, int]) -> Lock:
    """Returns ``lock`` with the ``missing`` numbers, recorded as if they were built one after the other; ``latest`` are
    the current numbers by the tags."""
    recovered = Lock()
    for number in _in_build_order(missing):
        recovered = _with_build(recovered, number)
    for name, current in latest.items():
        if name in recovered.images and current in recovered.images[name].numbers:
            recovered = recovered.with_repository(name, recovered.images[name].with_current(current))
    return merging.adopt(lock, recovered)


def _in_build_order(missing: Sequence[RecoverableImage]) -> list[RecoverableImage]:
    """Sorts numbers by the time of their builds. A number counts as built before every higher one of its repository,
    whatever its time: one that comes from a tag is too late where the image was tagged again."""
    earliest: dict[str, str] = {}
    keyed = []
    for number in sorted(missing, key=lambda number: number.name, reverse=True):
        repository = number.name.repository
        earliest[repository] = min(number.image.built, earliest.get(repository, number.image.built))
        keyed.append((earliest[repository], number.name, number))
    return [number for _, _, number in sorted(keyed, key=lambda key: key[:2])]


def _with_build(lock: Lock, number: RecoverableImage) -> Lock:
    """``lock`` after the build of a number, whose pins and pairings replace earlier ones."""
    name = number.name
    lock = lock.with_image(name, number.image)
    lock = lock.with_repository(name.repository, lock.images[name.repository].with_current(name.number))
    for definition, platforms in number.part.pins.items():
        for platform, pins in platforms.items():
            lock = lock.with_pins(definition, platform, pins)
    for model, record in number.part.models.items():
        lock = lock.with_pairing(model, record.pairing)
    return lock


def _unreadable_definitions(project: Project) -> Iterator[str]:
    for name, error in image.unreadable(project).items():
        yield f"images of {name} without a build directory were not looked for: {error.message}"


def _nothing_to_recover(recoverable: Sequence[RecoverableImage]) -> str:
    if recoverable:
        return "images.lock records every image of this project that is found: nothing to recover"
    return "neither the engine nor builds/ holds an image of this project: nothing to recover"


def _put_aside(project: Project, damaged: list[bytes]) -> str:
    """Keeps a copy of the damaged lock, of which the user may still make something, and returns its path."""
    if not damaged:
        return ""
    aside = project.lock.with_name("images.lock.damaged")
    atomic_file.write_alone(aside, damaged[0])
    return project.relative(aside)
