"""The ``init --update`` command: brings the files that this release has newer into a project, and asks for edited
ones."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import replace as replaced
from typing import TYPE_CHECKING

from builder import release
from builder.errors import ConflictError
from builder.events import ignore
from builder.lock import reading
from builder.lock.model import Lock
from builder.numbered import images_lock
from builder.shipped import planning, record, selection
from builder.shipped.record import InitRecord
from builder.workspace import open_workspace

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from builder.project import Project
    from builder.shipped.planning import PlannedFile
    from builder.shipped.selection import Contents


@dataclass(frozen=True)
class InitUpdate:
    """The files that a project would get: ``files`` with their states, the ``pins`` of definitions that have none here,
    and the record of what was written before. ``before`` is the release
    whose files it has, empty where none is recorded."""

    project: Project
    contents: Contents
    files: tuple[PlannedFile, ...]
    pins: Lock
    record: InitRecord | None
    before: str
    now: str

    @property
    def writable(self) -> tuple[PlannedFile, ...]:
        """The files that are written without anything being lost."""
        return tuple(each for each in self.files if each.state in {"new", "newer"})

    @property
    def edited(self) -> tuple[PlannedFile, ...]:
        """The files that were edited here, and of which this release has another one."""
        return tuple(each for each in self.files if each.state == "edited")


def plan(project: Project, contents: Contents | None) -> InitUpdate:
    """Holds the project against what comes with this release: as much of that as it was made with, or ``contents``.
    Nothing is written. Raises FileProblemsError for a damaged record."""
    recorded = record.read(project)
    wanted = contents or (recorded.contents if recorded else "all")
    selected = selection.select(wanted)
    files = planning.plan(project, selected.files, recorded)
    now = str(release.of_this_program())
    pinned = reading.of(project).pins
    lacking = {name: pins for name, pins in selected.pins.pins.items() if pins and not pinned.get(name)}
    return InitUpdate(project, wanted, files, Lock(lacking), recorded, recorded.release if recorded else "", now)


def run(update: InitUpdate, replace: Collection[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Writes the files that lose nothing, and those of ``replace``, which were edited; returns what was written. Killed
    meanwhile it is completed by another one. Pins do not move: a definition that has none here gets the shipped ones.

    Raises ConflictError where a file was changed since it was shown, and OSError.
    """
    chosen = [*update.writable, *(each for each in update.edited if each.path in replace)]
    now = planning.plan(update.project, {each.path: each.file for each in chosen}, update.record)
    changed = [each.path for each, shown in zip(now, chosen, strict=True) if each.before != shown.before]
    if changed:
        raise ConflictError(
            f"{', '.join(changed)} changed meanwhile: nothing was written", hint="run this again, and look at it anew"
        )
    planning.write(update.project, chosen)
    written = {each.path: each.after for each in chosen}
    digests = dict(update.record.digests) if update.record else {}
    for each in update.files:
        if each.path in selection.LINES:
            continue
        if each.path in written or each.state == "same":
            digests[each.path] = record.digest(each.after)
    if update.pins.pins:
        _pin(update, environ)
        written[update.project.lock.name] = b""
    result = InitRecord(update.now, update.contents, digests)
    if result != update.record:
        record.write(update.project, result)
    return tuple(written)


def _pin(update: InitUpdate, environ: Mapping[str, str]) -> None:
    with images_lock.transaction(open_workspace(update.project, environ, ignore)) as transaction:
        lock = transaction.lock
        lacking = {name: pins for name, pins in update.pins.pins.items() if not lock.pins.get(name)}
        transaction.commit(replaced(lock, pins={**lock.pins, **lacking}))
