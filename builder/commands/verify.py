"""The verify command: compares images.lock with the engine, the build directories, and the project's files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from builder.comparing import build_directory_edits, current_build
from builder.definitions import configuration
from builder.distribution import registry
from builder.errors import BuilderError, EngineError, FileProblemsError, TransferError
from builder.evidence import store, witness
from builder.lock import lost_lock, reading
from builder.lock.file_problems import TAKE_BACK
from builder.lock.model import ImageName
from builder.numbered import adopted, build_directory, status
from builder.pinning import vendored

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Set as AbstractSet

    from builder.engine.client.endpoint import Endpoint
    from builder.lock.model import Lock, NumberedImage
    from builder.project import Project
    from builder.workspace import Workspace

SHOWN_REASONS = 3

Kind = Literal["missing", "moved", "edited", "unknown", "changed", "foreign"]


@dataclass(frozen=True)
class Discrepancy:
    """A difference from images.lock. ``missing`` and ``moved`` are of the engine, ``edited`` of the files that a build
    left; ``unknown`` could not be checked; ``changed`` is no fault: a build makes another image today. Nor is
    ``foreign``: another project in the engine has that name."""

    subject: str
    kind: Kind
    message: str
    remedy: str


def run(workspace: Workspace) -> tuple[Discrepancy, ...]:
    """Finds every discrepancy, the gravest first. Raises LockError where images.lock itself cannot be read."""
    lock = reading.read(workspace.project.lock)
    directories = tuple(_directories(workspace.project, lock))
    return (
        *_lost(workspace.project),
        *_engine(workspace, lock, {finding.subject for finding in directories}),
        *directories,
        *_vendored_patches(workspace.project, lock),
        *_evidence(workspace.project),
        *_witnesses(workspace.project, lock),
        *_changed(workspace, lock),
    )


def compare_registry(workspace: Workspace) -> tuple[Discrepancy, ...]:
    """Finds the pushed numbers that the registry of builder.yaml lacks, or has other content for.

    Raises UsageError where no registry is set.
    """
    pushed_to = registry.Registry(configuration.load(workspace.project).required_registry())
    return tuple(_in_registry(pushed_to, workspace.engine, reading.read(workspace.project.lock)))


def _in_registry(pushed_to: registry.Registry, endpoint: Endpoint, lock: Lock) -> Iterator[Discrepancy]:
    for repository, record in sorted(lock.images.items()):
        for number, image in sorted(record.numbers.items(), reverse=True):
            if image.digest is None:
                continue
            name = ImageName(repository, number)
            reference = f"{pushed_to.repository(name)}:{number}"
            try:
                state = registry.state(endpoint, pushed_to, name, image)
            except TransferError as error:
                yield Discrepancy(pushed_to.address, "unknown", error.message, error.hint)
                return
            if state == "missing":
                yield Discrepancy(reference, "missing", "the registry does not have it", f"`builder push {name}`")
            elif state == "moved":
                yield Discrepancy(reference, "moved", "the registry has other content there", f"`builder show {name}`")


def _lost(project: Project) -> Iterator[Discrepancy]:
    if lost_lock.is_lost(project):
        yield Discrepancy(project.lock.name, "missing", lost_lock.MESSAGE, TAKE_BACK)


def _engine(workspace: Workspace, lock: Lock, edited_names: AbstractSet[str]) -> Iterator[Discrepancy]:
    """Finds missing and moved tags. ``edited_names`` are images that cannot be built again before their build
    directories are restored."""
    overview = status.overview(workspace, lock)
    if overview.engine_error:
        yield Discrepancy("engine", "unknown", overview.engine_error, "`builder doctor` says more")
    for row in overview.rows:
        name = str(row.name)
        first = ", once its build directory is what it was (see there)" if name in edited_names else ""
        if row.state == "missing":
            back = f"`builder pull {name}`" if row.image.digest else f"`builder rebuild {name}`{first}"
            if row.image.adopted and not row.image.digest:
                back = adopted.way_back(row.name, row.image)
            yield Discrepancy(name, "missing", "the engine has no image of that name", back)
        elif row.state == "moved":
            free = f"docker tag {name} OTHER-NAME; docker image rm {name}"
            remedy = f"`{free}` sets the name free, then `builder rebuild {name}` builds it again{first}"
            if row.image.adopted:
                remedy = f"`{free}` sets the name free, then {adopted.way_back(row.name, row.image)}"
            yield Discrepancy(name, "moved", "the name stands for another image than the one that was built", remedy)
    for repository in overview.stray:
        current = f"{repository}:{lock.images[repository].current}"
        latest = f"{repository}:latest"
        yield Discrepancy(latest, "moved", f"does not stand for {current}", f"`builder promote {current}`")
    for repository, owner in overview.foreign.items():
        current = f"{repository}:{lock.images[repository].current}"
        yield Discrepancy(f"{repository}:latest", "foreign", f"does not stand for {current}: {owner} has it", "")


def _directories(project: Project, lock: Lock) -> Iterator[Discrepancy]:
    for repository, record in sorted(lock.images.items()):
        for number, image in sorted(record.numbers.items(), reverse=True):
            name = ImageName(repository, number)
            if image.adopted:
                yield from _adopted_directory(project, name, image)
                continue
            try:
                directory = build_directory.read(project, name)
            except FileProblemsError as error:
                yield Discrepancy(str(name), "edited", error.message, error.hint)
                continue
            folder = project.relative(directory.path)
            for message in build_directory_edits.edits(directory, image):
                yield Discrepancy(str(name), "edited", f"{folder}: {message}", f"`git checkout -- {folder}`")


def _adopted_directory(project: Project, name: ImageName, image: NumberedImage) -> Iterator[Discrepancy]:
    folder = build_directory.path_of(project, name)
    contents = adopted.read(folder)
    if contents is None or contents.fingerprint != image.fingerprint:
        file = project.relative(folder / adopted.FILE)
        fault = "is gone or damaged" if contents is None else "is of another image"
        yield Discrepancy(str(name), "edited", f"{file} {fault}", f"`git checkout -- {project.relative(folder)}`")


def _vendored_patches(project: Project, lock: Lock) -> Iterator[Discrepancy]:
    for definition, platforms in sorted(lock.pins.items()):
        faults = (fault for pins in platforms.values() for fault in vendored.faults(project, definition, pins))
        discrepancies = (Discrepancy(definition, "edited", fault.message, fault.hint) for fault in faults)
        yield from dict.fromkeys(discrepancies)  # platforms share their pull requests


def _witnesses(project: Project, lock: Lock) -> Iterator[Discrepancy]:
    """Finds statements of witnesses that are of other content, or were changed after they were signed."""
    for repository, record in sorted(lock.images.items()):
        for number, image in sorted(record.numbers.items(), reverse=True):
            for problem in witness.look(project, ImageName(repository, number), image.fingerprint).problems:
                shown = problem.location.file
                yield Discrepancy(shown, "edited", problem.message, f"`git checkout -- {shown}`")


def _evidence(project: Project) -> Iterator[Discrepancy]:
    """Finds files of evidence that are none, or were changed after they were written."""
    for name, kept in store.of_project(project).items():
        for problem in kept.problems:
            file = problem.location.file
            yield Discrepancy(str(name), "edited", f"{file}: {problem.message}", f"`git checkout -- {file}`")


def _changed(workspace: Workspace, lock: Lock) -> Iterator[Discrepancy]:
    """Finds the current images that are no longer what a build makes."""
    for repository, record in sorted(lock.images.items()):
        if record.current is None:
            continue
        name, image = ImageName(repository, record.current), record.numbers[record.current]
        if image.adopted:
            continue
        try:
            build = current_build.original_build(workspace, name, image)
            reasons = current_build.reasons(workspace, name, image, build)
        except EngineError:
            return  # another finding says that no engine answers
        except BuilderError as error:
            yield Discrepancy(str(name), "changed", f"cannot be built today: {error.message}", error.hint)
            continue
        if reasons:
            more = f" and {len(reasons) - SHOWN_REASONS} more" if len(reasons) > SHOWN_REASONS else ""
            message = f"a build makes another image today: {', '.join(reasons[:SHOWN_REASONS])}{more}"
            yield Discrepancy(str(name), "changed", message, f"`{build.command}`")
        elif build.mods:
            message = f"{build.target} does not ask for all of its mods: a build of it alone makes another image"
            yield Discrepancy(str(name), "changed", message, f"`{build.command}`")
