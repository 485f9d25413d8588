"""The verify verb: images.lock compared with the engine, the build directories, and the files that people write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from builder.comparing import edited, today
from builder.definitions import configuration
from builder.distribution import registry
from builder.errors import BuilderError, EngineError, FileProblemsError, TransferError
from builder.lock import lost, reading
from builder.lock.file_problems import TAKE_BACK
from builder.lock.model import ImageName
from builder.numbered import build_directory, status
from builder.pinning import vendored

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Set as AbstractSet

    from builder.engine.client.endpoint import Endpoint
    from builder.lock.model import Lock
    from builder.project import Project
    from builder.workspace import Workspace

SHOWN_REASONS = 3

Kind = Literal["missing", "moved", "edited", "unknown", "changed"]


@dataclass(frozen=True)
class Discrepancy:
    """One thing that is not as images.lock has it. ``missing`` and ``moved`` are of the engine, ``edited`` of what was
    kept of a build; ``unknown`` could not be looked at; ``changed`` is news and no fault: a build makes another image
    today."""

    subject: str
    kind: Kind
    said: str
    remedy: str


def run(workspace: Workspace) -> tuple[Discrepancy, ...]:
    """All findings, the gravest first. Raises LockError where images.lock itself cannot be read."""
    lock = reading.read(workspace.project.lock)
    directories = tuple(_directories(workspace.project, lock))
    return (
        *_lost(workspace.project),
        *_engine(workspace, lock, {finding.subject for finding in directories}),
        *directories,
        *_diffs(workspace.project, lock),
        *_changed(workspace, lock),
    )


def pushed(workspace: Workspace) -> tuple[Discrepancy, ...]:
    """What the registry of builder.yaml lacks, or has otherwise, of the numbers that were pushed.

    Raises UsageError where no registry is set.
    """
    place = registry.Registry(configuration.load(workspace.project).required_registry())
    return tuple(_pushed(place, workspace.engine, reading.read(workspace.project.lock)))


def _pushed(place: registry.Registry, endpoint: Endpoint, lock: Lock) -> Iterator[Discrepancy]:
    for repository, held in sorted(lock.images.items()):
        for number, image in sorted(held.numbers.items(), reverse=True):
            if image.digest is None:
                continue
            name = ImageName(repository, number)
            reference = f"{place.repository(name)}:{number}"
            try:
                state = registry.state(endpoint, place, name, image)
            except TransferError as error:
                yield Discrepancy(place.address, "unknown", error.message, error.hint)
                return
            if state == "missing":
                yield Discrepancy(reference, "missing", "the registry does not have it", f"`builder push {name}`")
            elif state == "moved":
                yield Discrepancy(reference, "moved", "the registry has other content there", f"`builder show {name}`")


def _lost(project: Project) -> Iterator[Discrepancy]:
    if lost.is_lost(project):
        yield Discrepancy(project.lock.name, "missing", lost.MESSAGE, TAKE_BACK)


def _engine(workspace: Workspace, lock: Lock, unlike: AbstractSet[str]) -> Iterator[Discrepancy]:
    """``unlike`` names the images that cannot be built again before their build directories are taken back."""
    overview = status.overview(workspace, lock)
    if overview.engine_error:
        yield Discrepancy("engine", "unknown", overview.engine_error, "`builder doctor` says more")
    for row in overview.rows:
        name = str(row.name)
        first = ", once its build directory is what it was (see there)" if name in unlike else ""
        if row.state == "missing":
            back = f"`builder pull {name}`" if row.image.digest else f"`builder rebuild {name}`{first}"
            yield Discrepancy(name, "missing", "the engine has no image of that name", back)
        elif row.state == "moved":
            free = f"docker tag {name} OTHER-NAME; docker image rm {name}"
            remedy = f"`{free}` sets the name free, then `builder rebuild {name}` builds it again{first}"
            yield Discrepancy(name, "moved", "the name stands for another image than the one that was built", remedy)
    for repository in overview.stray:
        current = f"{repository}:{lock.images[repository].current}"
        latest = f"{repository}:latest"
        yield Discrepancy(latest, "moved", f"does not stand for {current}", f"`builder promote {current}`")


def _directories(project: Project, lock: Lock) -> Iterator[Discrepancy]:
    for repository, held in sorted(lock.images.items()):
        for number, image in sorted(held.numbers.items(), reverse=True):
            name = ImageName(repository, number)
            try:
                directory = build_directory.read(project, name)
            except FileProblemsError as error:
                yield Discrepancy(str(name), "edited", error.message, error.hint)
                continue
            folder = project.relative(directory.path)
            for said in edited.edits(directory, image):
                yield Discrepancy(str(name), "edited", f"{folder}: {said}", f"`git checkout -- {folder}`")


def _diffs(project: Project, lock: Lock) -> Iterator[Discrepancy]:
    for definition, platforms in sorted(lock.pins.items()):
        faults = (fault for pins in platforms.values() for fault in vendored.faults(project, definition, pins))
        found = (Discrepancy(definition, "edited", fault.message, fault.hint) for fault in faults)
        yield from dict.fromkeys(found)  # platforms share their pull requests


def _changed(workspace: Workspace, lock: Lock) -> Iterator[Discrepancy]:
    """Whether each current image is still what a build makes."""
    for repository, held in sorted(lock.images.items()):
        if held.current is None:
            continue
        name, image = ImageName(repository, held.current), held.numbers[held.current]
        try:
            build = today.original_build(workspace, name, image)
            reasons = today.reasons(workspace, name, image, build)
        except EngineError:
            return  # that no engine answers is said already
        except BuilderError as error:
            yield Discrepancy(str(name), "changed", f"cannot be built today: {error.message}", error.hint)
            continue
        if reasons:
            more = f" and {len(reasons) - SHOWN_REASONS} more" if len(reasons) > SHOWN_REASONS else ""
            said = f"a build makes another image today: {', '.join(reasons[:SHOWN_REASONS])}{more}"
            yield Discrepancy(str(name), "changed", said, f"`{build.command}`")
        elif build.mods:
            said = f"{build.target} does not ask for all of its mods: a build of it alone makes another image"
            yield Discrepancy(str(name), "changed", said, f"`{build.command}`")
