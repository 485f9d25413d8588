"""Mends images.lock after a merge of two branches that gave one number to different images.

Both images are kept: one of each pair gets the next free number, with its build directory, and the pairings follow.
The number stays with the image that this engine has under it, or else with the first in the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.engine import images
from builder.errors import EngineError
from builder.lock import lost, merging, reading, sides
from builder.lock.model import ImageName, Lock, NumberedImage
from builder.numbered import images_lock, merged_builds

if TYPE_CHECKING:
    from builder.engine.client.endpoint import Endpoint
    from builder.project import Project
    from builder.workspace import Workspace


@dataclass(frozen=True)
class RenumberedImage:
    """One image that got another number. ``directory`` says whether its build directory was found."""

    origin: ImageName
    to: ImageName
    image: NumberedImage
    directory: bool


@dataclass(frozen=True)
class RepairedLock:
    """What came of it. ``chosen`` names what both sides say differently and was taken from the first; ``tagged`` the
    numbers whose tags were given to them in this engine; ``written`` whether images.lock changed."""

    renumbered: tuple[RenumberedImage, ...]
    chosen: tuple[str, ...]
    tagged: tuple[ImageName, ...]
    written: bool


def run(workspace: Workspace) -> RepairedLock:
    """Makes one lock of what a merge left, and brings build directories and tags in line with it.

    A lock with nothing to mend stays as it is; where the tags of this engine still are those of before another machine
    mended it, they follow. Raises LockError where a side is damaged in another way,
    or all of it is lost.
    """
    lost.refuse(workspace.project)
    found: list[Lock] = []

    def read(content: bytes, file: str) -> Lock:
        found.extend(_sides(content, file))
        return found[0]

    with images_lock.repair(workspace, read) as transaction:
        merged = transaction.lock
        pairs: list[tuple[ImageName, ImageName]] = []
        chosen: list[str] = []
        for other in found[1:]:
            merged, theirs, moved = _apart(workspace, merged, other)
            pairs += moved
            chosen += merging.chosen(merged, theirs)
            merged = merging.union(merged, theirs)
        # The directories before the lock and the tags after it: killed in between, the same command finishes.
        renumbered = tuple(_renumbered(workspace.project, merged, origin, to) for origin, to in pairs)
        written = transaction.commit(merged)
        tagged = _retag(workspace.engine, merged)
    return RepairedLock(renumbered, tuple(chosen), tagged, written)


def _sides(content: bytes, file: str) -> tuple[Lock, ...]:
    try:
        return sides.locks(content.decode(), file)
    except UnicodeDecodeError:
        return (reading.parse_bytes(content, file),)


def _apart(workspace: Workspace, ours: Lock, theirs: Lock) -> tuple[Lock, Lock, list[tuple[ImageName, ImageName]]]:
    """Both sides with different numbers for different images, and which numbers became which."""
    moved = []
    for name in merging.clashes(ours, theirs):
        one, other = (lock.images[name.repository].numbers[name.number] for lock in (ours, theirs))
        theirs_is_here = _fingerprint(workspace.engine, name) == other.fingerprint != one.fingerprint
        going = one if theirs_is_here else other
        number = _free_number(workspace, merging.union(ours, theirs), name.repository, going)
        if theirs_is_here:
            ours = merging.renamed(ours, name, number)
        else:
            theirs = merging.renamed(theirs, name, number)
        moved.append((name, ImageName(name.repository, number)))
    return ours, theirs, moved


def _free_number(workspace: Workspace, lock: Lock, repository: str, image: NumberedImage) -> int:
    """The next number; or one that this very image was being given when somebody was killed."""
    begun = workspace.project.build_directory(repository, lock.images[repository].next)
    if merged_builds.input_hash_of(begun) == image.input_hash:
        return lock.images[repository].next
    try:
        tags = images.tags(workspace.engine, [repository])
    except EngineError:  # a merge may be finished where no engine is: build directories tell the numbers too
        tags = {}
    return images_lock.free_number(workspace.project, lock, repository, tags)


def _fingerprint(endpoint: Endpoint, name: ImageName) -> str:
    try:
        details = images.inspect(endpoint, str(name))
    except EngineError:
        return ""
    return images.fingerprint(details) if details else ""


def _renumbered(project: Project, lock: Lock, origin: ImageName, to: ImageName) -> RenumberedImage:
    directory = merged_builds.place(project, lock, origin, to)
    return RenumberedImage(origin, to, lock.images[to.repository].numbers[to.number], directory)


def _retag(endpoint: Endpoint, lock: Lock) -> tuple[ImageName, ...]:
    """Gives numbers that are missing from the engine the content that another number's tag holds wrongly."""
    try:
        tags = images.tags(endpoint, lock.images) if lock.images else {}
        details = {tag: images.inspect(endpoint, tag) for tag in tags}
    except EngineError:
        return ()
    content = {tag: images.fingerprint(found) for tag, found in details.items() if found}
    moved = []
    for repository, held in lock.images.items():
        for number, image in sorted(held.numbers.items()):
            name = ImageName(repository, number)
            wrong = _held_wrongly(lock, repository, image.fingerprint, content)
            if str(name) not in content and not image.pruned and wrong:
                images.tag(endpoint, str(wrong), str(name))
                images.remove_extra_tag(endpoint, str(wrong))
                moved.append(name)
    return tuple(moved)


def _held_wrongly(lock: Lock, repository: str, fingerprint: str, content: dict[str, str]) -> ImageName | None:
    """The number whose tag names this content, though it is not what the lock records of it."""
    for number, image in lock.images[repository].numbers.items():
        if content.get(f"{repository}:{number}") == fingerprint != image.fingerprint:
            return ImageName(repository, number)
    return None
