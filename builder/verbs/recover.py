"""Makes images.lock again after it was lost: from the build directories, and from the images in the engine.

A build directory keeps what its build wrote into images.lock; where it is gone as well, the image's labels tell most of
it. What people and verbs recorded after a build (marks, notes, pins, pairings that moved) stands nowhere else.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.engine import disk, images
from builder.errors import LockError, NothingToDoError
from builder.events import WAITING, Report
from builder.lock import merging, reading, sides, writing
from builder.lock.model import ImageName, Lock, Model, NumberedImage, Pairing
from builder.numbered.record import RECORD, point_latest
from builder.plan import labels

if TYPE_CHECKING:
    from builder.engine.endpoint import Endpoint
    from builder.engine.images import Details
    from builder.project import Project

_NUMBER = re.compile("[1-9][0-9]{0,17}")
_NOWHERE = (
    "marks, notes and pins (`builder pin`) that were set, and pairings that `pair` or `rollback` moved, stand nowhere"
    " else: models are paired with the newest image that was built for them"
)


@dataclass(frozen=True)
class Recovered:
    """What came of it: the numbers that are on record again, what could not be known, and the file that holds the
    damaged lock (empty where it was missing or good)."""

    images: tuple[ImageName, ...]
    unknown: tuple[str, ...]
    damaged: str


@dataclass(frozen=True)
class _Found:
    """One number: the part of a lock that its build wrote, or what can be told of it, and what cannot."""

    name: ImageName
    part: Lock
    unknown: tuple[str, ...] = ()

    @property
    def image(self) -> NumberedImage:
        return self.part.images[self.name.repository].numbers[self.name.number]


def run(project: Project, endpoint: Endpoint, report: Report) -> Recovered:
    """Writes images.lock where it is missing or damaged; a good one gets the numbers that it lacks, and nothing in it
    changes.

    The current number of a repository is the one that ``latest`` names. Raises NothingToDoError where nothing is found
    or nothing is missing; LockError for a lock that is newer than this program, or that a merge left unfinished.
    """
    damaged: list[bytes] = []

    def read(content: bytes, file: str) -> Lock:
        try:
            return reading.parse_bytes(content, file)
        except LockError:
            if not sides.is_lost(content, file):
                raise
            damaged.append(content)
            return Lock()

    with writing.writing(project.lock, on_wait=lambda: report(WAITING), read=read) as transaction:
        found = _find(project, endpoint)
        missing = [one for one in found if transaction.lock.image(one.name) is None]
        if not missing:
            raise NothingToDoError(_nothing(bool(found)))
        aside = _put_aside(project, damaged)
        transaction.commit(_completed(transaction.lock, missing, _latest(endpoint, found)))
        for repository, held in transaction.lock.images.items():
            point_latest(endpoint, repository, held.current)
    unknown = (*(line for one in missing for line in one.unknown), _NOWHERE)
    return Recovered(tuple(one.name for one in missing), unknown, aside)


def _nothing(found: bool) -> str:
    if found:
        return "images.lock records every image of this project that the engine or builds/ knows: nothing to recover"
    return "neither the engine nor builds/ holds a numbered image of this project: nothing to recover"


def _put_aside(project: Project, damaged: list[bytes]) -> str:
    """Keeps the damaged lock: a person may still read something in it."""
    if not damaged:
        return ""
    aside = project.lock.with_name("images.lock.damaged")
    beside = aside.with_name(f".{aside.name}.new")
    beside.write_bytes(damaged[0])
    beside.replace(aside)
    return project.relative(aside)


def _completed(lock: Lock, missing: list[_Found], latest: Mapping[str, int]) -> Lock:
    """``lock`` and what is missing in it, as if it had been built in the order in which it was."""
    told = Lock()
    for one in _in_order(missing):
        told = _built(told, one)
    for repository, number in latest.items():
        if repository in told.images and number in told.images[repository].numbers:
            told = told.with_repository(repository, told.images[repository].with_current(number))
    # What the lock says counts: of a repository or a model that it knows, nothing that is pointed at moves.
    merged = merging.union(lock, told)
    kept = {
        name: replace(merged.images[name], current=held.current, previous=held.previous)
        for name, held in lock.images.items()
        if held.numbers
    }
    return replace(merged, images={**merged.images, **kept}, models={**told.models, **lock.models})


def _in_order(found: list[_Found]) -> list[_Found]:
    """In the order of building. A number was built before every higher one of its repository, whatever its time says:
    one that comes from a tag is too late where the image was tagged again."""
    earliest: dict[str, str] = {}
    keyed = []
    for one in sorted(found, key=lambda one: one.name, reverse=True):
        stamp = min(one.image.built, earliest.get(one.name.repository, one.image.built))
        earliest[one.name.repository] = stamp
        keyed.append((stamp, one.name, one))
    return [one for _, _, one in sorted(keyed, key=lambda key: key[:2])]


def _built(lock: Lock, one: _Found) -> Lock:
    """``lock`` after a build: what the build wrote goes on top of what is there."""
    lock = lock.with_image(one.name, one.image)
    lock = lock.with_repository(one.name.repository, lock.images[one.name.repository].with_current(one.name.number))
    for definition, platforms in one.part.pins.items():
        for platform, pins in platforms.items():
            lock = lock.with_pins(definition, platform, pins)
    for model, paired in one.part.models.items():
        known = lock.models.get(model)
        lock = lock.with_model(model, known.with_pairing(paired.pairing) if known else paired)
    return lock


def _latest(endpoint: Endpoint, found: list[_Found]) -> dict[str, int]:
    """The number that each repository's ``latest`` tag names, where it names one."""
    current: dict[str, int] = {}
    for repository in sorted({one.name.repository for one in found}):
        details = images.inspect(endpoint, f"{repository}:latest")
        content = images.fingerprint(details) if details else ""
        numbers = [
            one.name.number for one in found if one.name.repository == repository and one.image.fingerprint == content
        ]
        current |= {repository: max(numbers)} if numbers else {}
    return current


def _find(project: Project, endpoint: Endpoint) -> list[_Found]:
    """Every number that the engine or a build directory knows."""
    tagged = dict(_tagged(endpoint))
    built = dict(_recorded(project))
    ours = _repositories(project, built)
    found = []
    for name in sorted({*built, *(name for name in tagged if name.repository in ours)}):
        details = tagged.get(name)
        if name in built:
            found.append(_as_built(name, built[name], details))
        elif details and (said := labels.read(details.labels)) and said.repository == name.repository:
            found.append(_as_labelled(endpoint, name, details, said))
    return found


def _repositories(project: Project, built: Mapping[ImageName, Lock]) -> set[str]:
    """The repositories of this project: an engine may hold images of others."""
    from builder.definitions import image

    return {name.repository for name in built} | {image.repository_of(project, name) for name in image.names(project)}


def _tagged(endpoint: Endpoint) -> Iterator[tuple[ImageName, Details]]:
    """The images in the engine that have a number as their tag."""
    for details in disk.every_image(endpoint):
        for tag in details.tags:
            repository, number = images.split(tag)
            if _NUMBER.fullmatch(number):
                yield ImageName(repository, int(number)), details


def _recorded(project: Project) -> Iterator[tuple[ImageName, Lock]]:
    """What the build directories keep of images.lock; one that is damaged counts as gone."""
    for file in sorted(project.builds.glob(f"**/{RECORD}")):
        number = file.parent.name
        if not _NUMBER.fullmatch(number):
            continue
        name = ImageName(file.parent.parent.relative_to(project.builds).as_posix(), int(number))
        try:
            part = reading.read(file)
        except LockError:
            continue
        if part.image(name):
            yield name, part


def _as_built(name: ImageName, part: Lock, details: Details | None) -> _Found:
    found = _Found(name, part)
    if details is None:
        pruned = replace(found.image, pruned=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
        said = f"{name} is not in this engine, and since when is not known: recorded as pruned today"
        return _Found(name, part.with_image(name, pruned), (said,))
    if images.fingerprint(details) != found.image.fingerprint:
        return replace(found, unknown=(f"{name} names other content in this engine than was built: it was moved",))
    return found


def _as_labelled(endpoint: Endpoint, name: ImageName, details: Details, said: labels.Said) -> _Found:
    image = NumberedImage(
        built=images.last_tagged(endpoint, str(name)) or details.created,
        definition=said.definition,
        platform=details.platform,
        fingerprint=images.fingerprint(details),
        input_hash=said.input_hash,
        size=images.disk_size(endpoint, str(name)),
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
    unknown = (
        f"{name} has no build directory: when it was built is taken from its tag, its Python packages are not known"
    )
    return _Found(name, part, (unknown,))
