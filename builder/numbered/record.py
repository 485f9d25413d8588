"""Giving a finished image its number: the only step of a build that others can see.

images.lock is the record; writing it is the moment at which the number exists. What happens in the engine and in
``builds/`` around that moment is noted first in a journal beside the work folders, so that whoever takes the lock next
can finish it or take it back after a kill.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.engine import images
from builder.errors import ConflictError
from builder.lock import text, writing
from builder.lock.model import ImageName, Lock, Repository
from builder.numbered import reserved_slots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from builder.engine.client.endpoint import Endpoint
    from builder.project import Project


RECORD = "images.lock"  # in a build directory: what the build wrote into the project's images.lock


@dataclass(frozen=True)
class Finished:
    """A built and checked image that waits for its number: its temporary tag, its build directory, its engine id."""

    tag: str
    directory: Path
    engine_id: str


def give_number(
    project: Project,
    endpoint: Endpoint,
    repository: str,
    finished: Finished,
    change: Callable[[Lock, ImageName], Lock],
    on_wait: Callable[[], None],
) -> ImageName:
    """Takes the next number of ``repository``, tags the image, keeps its build directory and records it.

    ``change`` gets the lock as it is now and the number, and returns the lock to write; what it makes of an empty one
    is kept in the build directory, for the day that images.lock is lost. A failure at any point leaves lock, tags and
    numbers as they were.
    """
    with writing.writing(project.lock, on_wait=on_wait) as transaction:
        settle(project, endpoint, transaction.lock)
        tags = images.tags(endpoint, [repository])
        name = ImageName(repository, free_number(project, transaction.lock, repository, tags))
        _note(project, name, finished.engine_id)
        try:
            kept = project.build_directory(name.repository, name.number)
            (finished.directory / RECORD).write_text(text.dump(change(Lock(), name)), encoding="utf-8")
            kept.parent.mkdir(parents=True, exist_ok=True)
            finished.directory.rename(kept)
            images.tag(endpoint, finished.tag, str(name))
            transaction.commit(reserved_slots.reserve(project, change(transaction.lock, name)))
        finally:
            settle(project, endpoint, transaction.lock)
    return name


def take_up(
    project: Project,
    endpoint: Endpoint,
    name: ImageName,
    finished: Finished,
    change: Callable[[Lock], Lock],
    on_wait: Callable[[], None],
) -> Lock:
    """Gives an image that comes from elsewhere the number that it has there; returns the lock after it. A build
    directory that lies here already stays.

    ``change`` gets the lock as it is now, returns the one to write, and raises where the number means something else by
    now. A failure at any point leaves lock, tags and numbers as they were.
    """
    with writing.writing(project.lock, on_wait=on_wait) as transaction:
        settle(project, endpoint, transaction.lock)
        after = change(transaction.lock)
        kept = project.build_directory(name.repository, name.number)
        fresh = not kept.exists() and images.inspect(endpoint, str(name)) is None
        # What was here before is not taken back.
        _note(project, name, finished.engine_id if fresh else "")
        try:
            if not kept.exists() and any(finished.directory.glob("*")):
                kept.parent.mkdir(parents=True, exist_ok=True)
                finished.directory.rename(kept)
            images.tag(endpoint, finished.tag, str(name))
            transaction.commit(reserved_slots.reserve(project, after))
        finally:
            settle(project, endpoint, transaction.lock)
        return transaction.lock


def move_pointers(
    project: Project,
    endpoint: Endpoint,
    change: Callable[[Lock], Lock],
    on_wait: Callable[[], None],
    also: Iterable[str] = (),
) -> tuple[Lock, Lock]:
    """Changes images.lock by ``change`` and brings the ``latest`` tags in line; returns the lock before and after.

    The tag of a repository in ``also`` is set even where its current number stays: somebody may have moved it.
    """
    with writing.writing(project.lock, on_wait=on_wait) as transaction:
        settle(project, endpoint, transaction.lock)
        before = transaction.lock
        after = change(before)
        moved = [name for name, repo in after.images.items() if repo.current != _repository(before, name).current]
        for name in {*moved, *also}:
            _note(project, ImageName(name, after.images[name].current or 0), "")
        try:
            transaction.commit(after)
        finally:
            settle(project, endpoint, transaction.lock)
    return before, after


def prune(project: Project, endpoint: Endpoint, name: ImageName, stamp: str, on_wait: Callable[[], None]) -> None:
    """Records a number as pruned at ``stamp`` (RFC 3339 UTC) and removes its image from the engine. Its build directory
    stays. Raises ConflictError, with nothing changed, for a number that must stay or is in use by a container.
    """
    with writing.writing(project.lock, on_wait=on_wait) as transaction:
        settle(project, endpoint, transaction.lock)
        before = transaction.lock
        image, details = before.image(name), images.inspect(endpoint, str(name))
        if image is None or details is None or images.fingerprint(details) != image.fingerprint:
            raise ConflictError(f"{name} is no longer what it was when this began: it was left alone")
        if image.pinned or before.images[name.repository].current == name.number or before.models_on(name):
            raise ConflictError(f"{name} was pinned, paired or made current meanwhile: it was left alone")
        _note(project, name, details.id)
        try:
            transaction.commit(before.with_image(name, replace(image, pruned=stamp)))
            images.remove(endpoint, str(name))
        except ConflictError:
            transaction.commit(before)
            raise
        finally:
            settle(project, endpoint, transaction.lock)


def restore(project: Project, endpoint: Endpoint, name: ImageName, image: str, on_wait: Callable[[], None]) -> None:
    """Gives a number that is missing from the engine its tag again; ``image`` (a tag, digest or id) holds its content.
    It is no longer pruned then."""
    with writing.writing(project.lock, on_wait=on_wait) as transaction:
        settle(project, endpoint, transaction.lock)
        images.tag(endpoint, image, str(name))
        recorded = transaction.lock.image(name)
        if recorded and recorded.pruned:
            transaction.commit(transaction.lock.with_image(name, replace(recorded, pruned=None)))


def put_right(project: Project, endpoint: Endpoint, on_wait: Callable[[], None]) -> None:
    """Finishes, or takes back, what a killed process was recording, where one was: for those who may find that all is
    done, and then write nothing themselves."""
    if any(project.journal.glob("*")):
        with writing.writing(project.lock, on_wait=on_wait) as transaction:
            settle(project, endpoint, transaction.lock)


def settle(project: Project, endpoint: Endpoint, lock: Lock) -> None:
    """Brings tags and build directories in line with ``lock`` where the journal says that somebody was changing them.

    To be called under the writer's lock only.
    """
    for path in sorted(project.journal.glob("*")):
        if path.suffix != ".json":  # somebody was killed before it said anything
            path.unlink()
            continue
        noted = json.loads(path.read_text(encoding="utf-8"))
        name = ImageName(noted["repository"], noted["number"])
        image = lock.image(name)
        if noted["engine_id"] and (image is None or image.pruned):
            _remove(endpoint, name, noted["engine_id"])
        if noted["engine_id"] and image is None:
            shutil.rmtree(project.build_directory(name.repository, name.number), ignore_errors=True)
        point_latest(endpoint, name.repository, _repository(lock, name.repository).current)
        path.unlink()


def point_latest(endpoint: Endpoint, repository: str, current: int | None) -> None:
    """Makes ``REPOSITORY:latest`` mean the current number; an image that is gone leaves the tag as it was."""
    if current is not None and images.inspect(endpoint, f"{repository}:{current}") is not None:
        images.tag(endpoint, f"{repository}:{current}", f"{repository}:latest")


def _remove(endpoint: Endpoint, name: ImageName, engine_id: str) -> None:
    details = images.inspect(endpoint, str(name))
    if details is not None and details.id == engine_id:
        with contextlib.suppress(ConflictError):  # a container uses it by now: it may stay
            images.remove(endpoint, str(name))


def free_number(project: Project, lock: Lock, repository: str, tags: Iterable[str]) -> int:
    """The next number, past every one that the lock, the engine or a build directory knows: none is used twice, not
    even after images.lock was lost or taken from elsewhere."""
    folder = project.builds / repository
    taken = [tag.removeprefix(f"{repository}:") for tag in tags if tag.startswith(f"{repository}:")]
    taken += [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return max([_repository(lock, repository).next, *(int(n) + 1 for n in taken if n.isdecimal())])


def _repository(lock: Lock, name: str) -> Repository:
    return lock.images.get(name, Repository())


def _note(project: Project, name: ImageName, engine_id: str) -> None:
    folder = project.journal
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"repository": name.repository, "number": name.number, "engine_id": engine_id})
    temporary = folder / f"{name.repository.replace('/', '_')}.new"
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / f"{name.repository.replace('/', '_')}.json")
