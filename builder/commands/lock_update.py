"""The lock verb: resolves what is not pinned and moves pins on request, without building."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.definitions import image, image_chain
from builder.engine.client import versions
from builder.errors import SourceError
from builder.lock import reading
from builder.lock.pins import GitPin
from builder.numbered import images_lock
from builder.pinning import chain as chains
from builder.pinning import definition_pins, vendored

if TYPE_CHECKING:
    from builder.lock.pins import Pins
    from builder.project import Project
    from builder.sources.git.mirror_reading import CommitRange
    from builder.workspace import Workspace


@dataclass(frozen=True)
class MovedPin:
    """One pin that is new or moved, and for git what lies ``between`` the two."""

    definition: str
    platform: str
    name: str
    before: str
    after: str
    between: CommitRange | None = None


@dataclass(frozen=True)
class UpdatedPins:
    """What came of it: the pins that moved, which images.lock has, and what could not be resolved."""

    moved: tuple[MovedPin, ...]
    faults: tuple[definition_pins.Fault, ...]

    @property
    def error(self) -> SourceError | None:
        """All that could not be resolved, as one error."""
        return definition_pins.error_of(self.faults) if self.faults else None


def run(workspace: Workspace, names: tuple[str, ...], update: chains.Update, platform: str | None) -> UpdatedPins:
    """Completes the pins of the definitions ``names`` (all where there are none) and of those below them.

    What resolves is written, whatever else does not. Raises what ``pinned.complete`` does; images.lock is then as it
    was.
    """
    lock = reading.of(workspace.project)
    wanted = _chains(workspace, names, platform)
    completed = chains.complete(workspace, lock, wanted, update)
    after: dict[tuple[str, str], Pins] = {}
    moved: list[MovedPin] = []
    for definition in {one.name: one for chain in wanted for one in chain}.values():
        one = completed[definition.name]
        before = lock.pins_of(definition.name, definition.platform)
        if one.pins == before:
            continue
        diffs = vendored.load(workspace.project, definition.name, one.pins, one.patches)
        vendored.keep(workspace.project, definition.name, one.pins, diffs)
        after[definition.name, definition.platform] = one.pins
        moved += _moved(workspace.project, definition, before, one.pins)
    with images_lock.transaction(workspace) as transaction:
        lock = transaction.lock
        for (definition_name, platform), pins in after.items():
            lock = lock.with_pins(definition_name, platform, pins)
        transaction.commit(images_lock.with_reserved_slots(workspace.project, lock) if after else lock)
    return UpdatedPins(tuple(moved), tuple(fault for one in completed.values() for fault in one.faults))


def check(workspace: Workspace, names: tuple[str, ...], platform: str | None) -> tuple[str, ...]:
    """What images.lock does not cover of the definitions ``names`` (all where there are none): ``cpu: base``."""
    lock = reading.of(workspace.project)
    found = [
        f"{name} on {chain[-1].platform}: {missing}"
        for chain in _chains(workspace, names, platform)
        for name, all_missing in chains.stale(lock, chain).items()
        for missing in all_missing
    ]
    return tuple(dict.fromkeys(found))


def _chains(workspace: Workspace, names: tuple[str, ...], platform: str | None) -> list[chains.Chain]:
    host = versions.platform(workspace.engine)
    overrides = image_chain.Overrides(platform)
    return [
        image_chain.load(workspace.project, name, host, overrides) for name in names or image.names(workspace.project)
    ]


def _moved(project: Project, definition: image.ImageDefinition, before: Pins, after: Pins) -> list[MovedPin]:
    found = []
    for name in definition_pins.names(definition):
        old, new = _said(before, name), _said(after, name)
        if old == new:
            continue
        pins = before.sources.get(name), after.sources.get(name)
        between: CommitRange | None = None
        if isinstance(pins[0], GitPin) and isinstance(pins[1], GitPin) and pins[0].git == pins[1].git:
            from builder.sources.git import mirror_reading

            url = definition.git_sources[name].git
            # Upstream may have lost the old commit, and a fresh mirror never had it.
            with contextlib.suppress(SourceError):
                between = mirror_reading.commits_between(project.mirrors, url, pins[0].commit, pins[1].commit)
        found.append(MovedPin(definition.name, definition.platform, name, old, new, between))
    return found


def _said(pins: Pins, name: str) -> str:
    """A pin in a few words, which differ whenever the pin does."""
    if name == "base":
        return pins.base.resolved if pins.base else ""
    if name in {"python", "build"}:
        closure = pins.python if name == "python" else pins.build
        return f"{len(closure.packages)} packages, newest of {closure.newest}" if closure else ""
    pin = pins.sources.get(name)
    if pin is None:
        return ""
    if not isinstance(pin, GitPin):
        return pin.version
    pulls = "".join(f" with pull request {pull.number} at {pull.head[:12]}" for pull in pin.pulls)
    return f"{pin.version} ({pin.commit[:12]}){pulls}"
