"""The ``lock --renumber`` command: repairs images.lock after a merge in which one number is two images.

Both images are kept: one of each pair gets the next free number, with its build directory, and the pairings follow.
The image that this engine has under the number keeps it, or else the first one in the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.engine import images
from builder.errors import EngineError
from builder.evidence import store
from builder.lock import lost_lock, merge_sides, merging, reading
from builder.lock.model import ImageName, Lock, NumberedImage
from builder.numbered import adopted, claims, identity, images_lock, merged_builds, next_number, status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.engine.client.endpoint import Endpoint
    from builder.project import Project
    from builder.workspace import Workspace


@dataclass(frozen=True)
class RenumberedImage:
    """An image that got another number. ``directory`` is true if its build directory was found."""

    origin: ImageName
    to: ImageName
    image: NumberedImage
    directory: bool


@dataclass(frozen=True)
class RepairedLock:
    """The result of a repair. ``chosen`` names the values that differ between the sides and were taken from the first;
    ``tagged`` the numbers that got their tags in this engine; ``written`` is true if images.lock changed. ``absent``
    are the models that are paired with an image that this engine does not have now, each with what brings it here."""

    renumbered: tuple[RenumberedImage, ...]
    chosen: tuple[str, ...]
    tagged: tuple[ImageName, ...]
    written: bool
    absent: tuple[tuple[str, ImageName, str], ...] = ()


def run(workspace: Workspace) -> RepairedLock:
    """Makes one lock of both sides of a merge, and brings build directories and tags in line with it.

    A lock that needs no repair stays as it is. Where another machine repaired it, the tags of this engine follow.
    Raises LockError where a side is damaged in another way, or images.lock is lost.
    """
    lost_lock.refuse(workspace.project)
    locks: list[Lock] = []

    def read(content: bytes, file: str) -> Lock:
        locks.extend(_sides(content, file))
        return locks[0]

    with images_lock.repair(workspace, read) as writer:
        merged_builds.remove_unfinished(workspace.project)
        merged = writer.lock
        pairs: list[tuple[ImageName, ImageName]] = []
        chosen: list[str] = []
        for other in locks[1:]:
            merged, theirs, renumbered_pairs = _separate(workspace, merged, other)
            pairs += renumbered_pairs
            chosen += merging.chosen(merged, theirs)
            merged = merging.union(merged, theirs)
        # Directories before the lock, tags after it: where this is killed in between, the same command finishes.
        renumbered = tuple(_renumbered(workspace.project, merged, origin, to) for origin, to in pairs)
        written = writer.commit(merged)
        tagged = _retag(workspace, merged)
        absent = tuple(_absent(workspace, merged)) if written or tagged else ()
    return RepairedLock(renumbered, tuple(chosen), tagged, written, absent)


def _absent(workspace: Workspace, lock: Lock) -> Iterator[tuple[str, ImageName, str]]:
    """The models whose image this engine lacks, or has under another number; none where no engine answers."""
    try:
        states, _ = status.states(workspace, lock)
    except EngineError:
        return
    for model, paired in sorted(lock.models.items()):
        name = paired.pairing.image
        if (record := lock.image(name)) and states[name] != "present":
            yield model, name, adopted.way_back(name, record)


def _sides(content: bytes, file: str) -> tuple[Lock, ...]:
    try:
        return merge_sides.locks(content.decode(), file)
    except UnicodeDecodeError:
        return (reading.parse_bytes(content, file),)


def _separate(workspace: Workspace, ours: Lock, theirs: Lock) -> tuple[Lock, Lock, list[tuple[ImageName, ImageName]]]:
    """Both sides with different numbers for different images, and the old and new name of each that changed."""
    renumbered = []
    for name in merging.clashes(ours, theirs):
        our_image, their_image = (lock.images[name.repository].numbers[name.number] for lock in (ours, theirs))
        keep_theirs = _fingerprint(workspace.engine, name) == their_image.fingerprint != our_image.fingerprint
        to_renumber = our_image if keep_theirs else their_image
        number = _free_number(workspace, merging.union(ours, theirs), name.repository, to_renumber)
        if keep_theirs:
            ours = merging.renamed(ours, name, number)
        else:
            theirs = merging.renamed(theirs, name, number)
        renumbered.append((name, ImageName(name.repository, number)))
    return ours, theirs, renumbered


def _free_number(workspace: Workspace, lock: Lock, repository: str, image: NumberedImage) -> int:
    """The next number, or the one that a killed process was giving to this very image."""
    record = lock.images[repository]
    started = workspace.project.build_directory(repository, record.next)
    if merged_builds.is_of(started, image):
        return record.next
    try:
        own = identity.of(workspace.project)
        if given := claims.numbers_for(workspace.engine, own, repository, image.fingerprint) - record.numbers.keys():
            return min(given)
        return next_number.give(workspace, lock, repository, image.fingerprint).number
    except EngineError:  # the merge may be finished without an engine: the build directories have the numbers, too
        return next_number.free(workspace.project, lock, repository, ())


def _fingerprint(endpoint: Endpoint, name: ImageName) -> str:
    try:
        details = images.inspect(endpoint, str(name))
    except EngineError:
        return ""
    return images.fingerprint(details) if details else ""


def _renumbered(project: Project, lock: Lock, origin: ImageName, to: ImageName) -> RenumberedImage:
    image = lock.images[to.repository].numbers[to.number]
    directory = merged_builds.restore_both(project, lock, origin, to)
    store.move(project, origin, to, image.fingerprint)
    return RenumberedImage(origin, to, image, directory)


def _retag(workspace: Workspace, lock: Lock) -> tuple[ImageName, ...]:
    """Tags numbers that are missing from the engine, where the tag of another number wrongly has their content. That
    one goes, but for where another project in the engine has it on record."""
    endpoint = workspace.engine
    try:
        tags = images.tags(endpoint, lock.images) if lock.images else {}
        details = {tag: images.inspect(endpoint, tag) for tag in tags}
    except EngineError:
        return ()
    content = {tag: images.fingerprint(image) for tag, image in details.items() if image}
    retagged = []
    for repository, record in lock.images.items():
        for number, image in sorted(record.numbers.items()):
            name = ImageName(repository, number)
            wrong = _wrong_tag(lock, repository, image.fingerprint, content)
            if str(name) not in content and not image.pruned and wrong:
                images_lock.claim(workspace, name, image.fingerprint)
                images.tag(endpoint, str(wrong), str(name))
                if images_lock.holder(workspace, wrong) is None:
                    images.remove_extra_tag(endpoint, str(wrong))
                retagged.append(name)
    return tuple(retagged)


def _wrong_tag(lock: Lock, repository: str, fingerprint: str, content: dict[str, str]) -> ImageName | None:
    """The number whose tag has this content in the engine, though the lock records other content for it."""
    for number, image in lock.images[repository].numbers.items():
        if content.get(f"{repository}:{number}") == fingerprint != image.fingerprint:
            return ImageName(repository, number)
    return None
