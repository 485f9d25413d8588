"""The diff command for two revisions of images.lock: changes of pins, numbers, ``latest`` and pairings."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from builder.comparing import changes, contents, upstream
from builder.errors import UsageError
from builder.lock import reading
from builder.lock.model import ImageName, Lock, NumberedImage
from builder.sources.git import project_history

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from builder.comparing.changes import Changes, Kind, ValueChange
    from builder.comparing.upstream import UpstreamCommits
    from builder.events import Report
    from builder.lock.model import Pairing
    from builder.project import Project
    from builder.sources.git.mirror_reading import CommitFilter

NOW = "now"


@dataclass(frozen=True)
class PinChange:
    """The pins of a definition on a platform."""

    definition: str
    platform: str
    changes: Changes
    sources: tuple[UpstreamCommits, ...]


@dataclass(frozen=True)
class NumberChange:
    """A numbered image whose record was added, removed or changed."""

    image: ImageName
    kind: Kind
    values: tuple[ValueChange, ...]


@dataclass(frozen=True)
class PairingChange:
    """A model's pairing; None where the model has none."""

    model: str
    before: Pairing | None
    after: Pairing | None


@dataclass(frozen=True)
class LockDifference:
    """All that differs between two revisions of images.lock. ``current`` has a change for each repository whose
    ``latest`` moved."""

    before: str
    after: str
    pairings: tuple[PairingChange, ...]
    current: tuple[ValueChange, ...]
    pins: tuple[PinChange, ...]
    numbers: tuple[NumberChange, ...]

    @property
    def nothing(self) -> bool:
        """True if no difference was found."""
        return not (self.pairings or self.current or self.pins or self.numbers)


def run(project: Project, before: str, after: str | None, commits: CommitFilter, report: Report) -> LockDifference:
    """Compares images.lock in the git revision ``before`` with that in ``after``, or with the file as it is now;
    ``commits`` selects those to list.

    Raises UsageError where there is no such revision, LockError where images.lock cannot be read in one.
    """
    old = _at(project, before)
    new = reading.of(project) if after is None else _at(project, after)
    return LockDifference(
        before=before,
        after=after or NOW,
        pairings=tuple(_pairings(old, new)),
        current=tuple(changes.values(_current(old), _current(new))),
        pins=tuple(_pins(project, old, new, commits, report)),
        numbers=tuple(_numbers(old, new)),
    )


def _at(project: Project, revision: str) -> Lock:
    content = project_history.read_file(project.root, revision, project.lock.name)
    if content is None:
        raise UsageError(
            f"{revision} has no {project.lock.name}", hint="`git log images.lock` shows the revisions that have one"
        )
    return reading.parse_bytes(content, f"{revision}:{project.lock.name}")


def _pairings(old: Lock, new: Lock) -> Iterator[PairingChange]:
    for model in sorted(old.models.keys() | new.models.keys()):
        before, after = (lock.models[model].pairing if model in lock.models else None for lock in (old, new))
        if before != after:
            yield PairingChange(model, before, after)


def _current(lock: Lock) -> dict[str, str]:
    return {
        f"{name}:latest": f"{name}:{repository.current}"
        for name, repository in lock.images.items()
        if repository.current is not None
    }


def _pins(project: Project, old: Lock, new: Lock, commits: CommitFilter, report: Report) -> Iterator[PinChange]:
    pinned = {(name, platform) for lock in (old, new) for name, by in lock.pins.items() for platform in by}
    for definition, platform in sorted(pinned):
        before, after = (contents.of_pins(lock.pins_of(definition, platform)) for lock in (old, new))
        if differing := changes.between(before, after):
            yield PinChange(definition, platform, differing, upstream.commits_of(project, differing, commits, report))


def _numbers(old: Lock, new: Lock) -> Iterator[NumberChange]:
    names = (
        ImageName(name, number)
        for lock in (old, new)
        for name, repository in lock.images.items()
        for number in repository.numbers
    )
    for name in sorted(set(names)):
        before, after = old.image(name), new.image(name)
        if before != after:
            values = tuple(changes.values(_values(before), _values(after))) if before and after else ()
            yield NumberChange(name, changes.kind_of(before, after), values)


def _values(image: NumberedImage) -> Mapping[str, str]:
    """All values of a record, as text."""
    values = ((field.name, getattr(image, field.name)) for field in fields(image))
    return {name: value if isinstance(value, str) else json.dumps(value, default=vars) for name, value in values}
