"""The lock command: resolves what is not pinned and updates pins on request, without building."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder import humanize
from builder.building import mod_selection, mod_versions
from builder.comparing import changes, contents
from builder.definitions import image, image_chain
from builder.engine.client import versions
from builder.errors import FileProblemsError, SourceError
from builder.events import Message
from builder.lock import reading
from builder.lock.pins import GitPin, IncludedPin, Pins
from builder.numbered import images_lock
from builder.pinning import chain as chains
from builder.pinning import definition_pins, older_versions, vendored
from builder.sources import environment

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from builder.comparing.changes import PackageChange
    from builder.lock.model import Lock
    from builder.pinning.older_versions import OlderVersion
    from builder.project import Project
    from builder.sources.git.mirror_reading import CommitRange
    from builder.workspace import Workspace


@dataclass(frozen=True)
class MovedPin:
    """A pin that is new or moved; for git the commits ``between`` the two, and for a base image that was read, the
    ``packages`` in it that are others. ``older`` are the packages and sources that go back to an older version."""

    definition: str
    platform: str
    name: str
    before: str
    after: str
    between: CommitRange | None = None
    packages: tuple[PackageChange, ...] = ()
    older: tuple[OlderVersion, ...] = ()


@dataclass(frozen=True)
class UpdatedPins:
    """The pins that moved, as written to images.lock, and the ``faults`` that kept others from being resolved."""

    moved: tuple[MovedPin, ...]
    faults: tuple[definition_pins.Fault, ...]

    @property
    def error(self) -> SourceError | None:
        """All faults as one error."""
        return definition_pins.error_of(self.faults) if self.faults else None


def run(workspace: Workspace, names: tuple[str, ...], update: chains.Update, platform: str | None) -> UpdatedPins:
    """Completes the pins of the definitions ``names`` (all where there are none) and of their parents. Without names,
    a definition on an image of others that is not pinned yet is left out: to read that image, it would be pulled.

    The pins that resolve are written even where others fail. Raises what `pinning.chain.complete` does; images.lock is
    then as it was.
    """
    lock = reading.of(workspace.project)
    image_chains = _chains(workspace, names, platform)
    if not names:
        image_chains = [chain for chain in image_chains if not _is_left_out(workspace, lock, chain)]
    completed = chains.resolve_missing(workspace, lock, image_chains, update)
    after: dict[tuple[str, str], Pins] = {}
    moved: list[MovedPin] = []
    for definition in {part.name: part for chain in image_chains for part in chain}.values():
        resolved = completed[definition.name]
        before = lock.pins_of(definition.name, definition.platform)
        if resolved.pins == before:
            continue
        diffs = vendored.load(workspace.project, definition.name, resolved.pins, resolved.patches)
        vendored.keep(workspace.project, definition.name, resolved.pins, diffs)
        after[definition.name, definition.platform] = resolved.pins
        settings = environment.read(workspace.environment)
        older = older_versions.between(definition, before, resolved.pins, update, settings)
        moved += _moved_pins(workspace.project, definition, before, resolved.pins, older)
    with images_lock.transaction(workspace) as transaction:
        lock = transaction.lock
        for (definition_name, platform), pins in after.items():
            lock = lock.with_pins(definition_name, platform, pins)
        transaction.commit(lock)
    faults = [fault for resolved in completed.values() for fault in resolved.faults]
    faults += [fault for chain in image_chains for fault in _faults_of_mods(workspace.project, chain, completed)]
    return UpdatedPins(tuple(moved), tuple(dict.fromkeys(faults)))


def check(workspace: Workspace, names: tuple[str, ...], platform: str | None) -> tuple[str, ...]:
    """Lists the stale pins of the definitions ``names`` (all where there are none), which images.lock lacks or has for
    another request: ``cpu on linux/arm64: base``. Without names, the same are left out as by ``run``."""
    lock = reading.of(workspace.project)
    image_chains = _chains(workspace, names, platform)
    if not names:
        image_chains = [chain for chain in image_chains if not _is_left_out(workspace, lock, chain)]
    lines = [
        f"{name} on {chain[-1].platform}: {pin}"
        for chain in image_chains
        for name, stale in chains.stale(lock, chain).items()
        for pin in stale
    ]
    return tuple(dict.fromkeys(lines))


def _faults_of_mods(
    project: Project, chain: chains.Chain, completed: Mapping[str, definition_pins.ResolvedPins]
) -> Iterator[definition_pins.Fault]:
    """A fault where mods of ``chain`` name packages that its images have in another version; a mod that cannot be read
    is told by `mods check` and the build."""
    if not any(part.mods for part in chain) or any(completed[part.name].faults for part in chain):
        return
    try:
        mods = mod_selection.load(project, chain, None)
        mod_versions.check(chain, mods, [completed[part.name].pins for part in chain])
    except FileProblemsError:
        return
    except SourceError as error:
        yield definition_pins.Fault(chain[-1].name, "mods", error)


def _is_left_out(workspace: Workspace, lock: Lock, chain: chains.Chain) -> bool:
    """True for a chain on an image of others that is not pinned yet, which is reported."""
    unread = [part for part in chain if part.base_sources and lock.pins_of(part.name, part.platform).base is None]
    for part in unread:
        message = (
            f"{chain[-1].name}: left out; `builder lock {chain[-1].name}` pulls {part.base}, to read what it brings"
        )
        workspace.report(Message(message))
    return bool(unread)


def _chains(workspace: Workspace, names: tuple[str, ...], platform: str | None) -> list[chains.Chain]:
    host = versions.platform(workspace.engine)
    overrides = image_chain.Overrides(platform)
    return [
        image_chain.load(workspace.project, name, host, overrides) for name in names or image.names(workspace.project)
    ]


def _moved_pins(
    project: Project, definition: image.ImageDefinition, before: Pins, after: Pins, older: tuple[OlderVersion, ...]
) -> list[MovedPin]:
    moved = []
    for name in definition_pins.names(definition):
        old, new = _summary(before, name), _summary(after, name)
        if old == new:
            continue
        pins = before.sources.get(name), after.sources.get(name)
        between: CommitRange | None = None
        if isinstance(pins[0], GitPin) and isinstance(pins[1], GitPin) and pins[0].git == pins[1].git:
            from builder.sources.git import mirror_reading

            url = definition.git_sources[name].git
            # Upstream may no longer have the old commit, and a new mirror never had it.
            with contextlib.suppress(SourceError):
                between = mirror_reading.commits_between(project.mirrors, url, pins[0].commit, pins[1].commit)
        packages = _packages_in_base(before, after) if name == "base" else ()
        moved.append(MovedPin(definition.name, definition.platform, name, old, new, between, packages))
    if moved and older:
        # With the last pin that moved: the packages, or the base that brings them.
        moved[-1] = replace(moved[-1], older=older)
    return moved


def _packages_in_base(before: Pins, after: Pins) -> tuple[PackageChange, ...]:
    """The packages of a base image that are others; none where one of the two was not read."""
    if not (before.base and after.base and before.base.packages and after.base.packages):
        return ()
    brought = [contents.of_pins(Pins(base=pins.base)) for pins in (before, after)]
    return changes.between(*brought).packages


def _summary(pins: Pins, name: str) -> str:
    """A pin in a few words, which differ whenever the pin does."""
    if name == "base":
        return pins.base.resolved if pins.base else ""
    if name in {"python", "build"}:
        closure = pins.python if name == "python" else pins.build
        if closure is None:
            return ""
        limit = f", none after {closure.as_of}" if closure.as_of else ""
        return f"{humanize.counted(len(closure.packages), 'package')}, newest of {closure.newest}{limit}"
    pin = pins.sources.get(name)
    if pin is None:
        return ""
    if not isinstance(pin, GitPin):
        return f"{pin.version} ({pin.commit[:12]})" if isinstance(pin, IncludedPin) and pin.commit else pin.version
    pulls = "".join(f" with pull request {pull.number} at {pull.head[:12]}" for pull in pin.pulls)
    return f"{pin.version} ({pin.commit[:12]}){pulls}"
