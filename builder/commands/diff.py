"""The diff command: the changes between two numbered images, the most probable causes of a difference first."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.comparing import changes, compared_images, texts, upstream
from builder.comparing.changes import Changes
from builder.lock import reading
from builder.numbered import build_metadata, names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.comparing.changes import Kind, ValueChange
    from builder.comparing.compared_images import ComparedImage
    from builder.comparing.texts import FileChange
    from builder.comparing.upstream import UpstreamCommits
    from builder.events import Report
    from builder.evidence.side_by_side import RunPair
    from builder.lock.model import ImageName, Lock
    from builder.numbered.build_directory import BuildDirectory
    from builder.project import Project
    from builder.sources.git.mirror_reading import CommitFilter


@dataclass(frozen=True)
class ModChange:
    """A mod that was added, removed or changed, and its files that differ where both build directories have them."""

    name: str
    kind: Kind
    files: tuple[FileChange, ...]


@dataclass(frozen=True)
class ImageDifference:
    """All that differs between two images; ``sources`` has the upstream commits of the sources in ``changes``.
    ``unknown`` says what could not be compared, and why; ``runs`` are their last runs side by side. ``is_same`` is true
    of an adopted image that is byte for byte the other one."""

    before: ComparedImage
    after: ComparedImage
    changes: Changes
    sources: tuple[UpstreamCommits, ...]
    mods: tuple[ModChange, ...]
    dockerfiles: tuple[FileChange, ...]
    args: tuple[ValueChange, ...]
    unknown: tuple[str, ...]
    runs: tuple[RunPair, ...] = ()
    is_same: bool = False

    @property
    def nothing(self) -> bool:
        """True if no difference was found."""
        return not (self.changes or self.mods or self.dockerfiles or self.args)


def run(project: Project, before: str, after: str, commits: CommitFilter, report: Report) -> ImageDifference:
    """Compares the image called ``before`` with the one called ``after``; ``commits`` selects those to list.

    Raises UsageError where images.lock has no such image. The engine is not asked.
    """
    lock = reading.of(project)
    old, old_fault = compared_images.of(project, lock, names.numbered(project, lock, before)[0])
    new, new_fault = compared_images.of(project, lock, names.numbered(project, lock, after)[0])
    if compared_images.are_same(old, new):
        runs = _runs(project, lock, old.name, new.name)
        same = Changes((), (), (), (), None)
        return ImageDifference(old, new, same, (), (), (), (), (), runs, is_same=True)
    differing = changes.between(*compared_images.contents_of_both(lock, old, new))
    return ImageDifference(
        before=old,
        after=new,
        changes=differing,
        sources=upstream.commits_of(project, differing, commits, report),
        mods=tuple(_mods(old, new)),
        dockerfiles=tuple(_dockerfiles(old, new)),
        args=tuple(_args(old, new)),
        unknown=tuple(fault for fault in (old_fault, new_fault, *_beyond_adopted(old, new)) if fault),
        runs=_runs(project, lock, old.name, new.name),
    )


def _runs(project: Project, lock: Lock, before: ImageName, after: ImageName) -> tuple[RunPair, ...]:
    """The last runs of both images side by side; files that are no evidence are left to `list`."""
    if not project.evidence.is_dir():
        return ()
    from builder.evidence import overview, side_by_side
    from builder.measuring import present_sets

    evidence = overview.of(project, lock, [before, after], {}, present_sets.of(project))
    return side_by_side.of(evidence[before].last, evidence[after].last)


def _beyond_adopted(before: ComparedImage, after: ComparedImage) -> Iterator[str]:
    """Tells what cannot be compared because an image was built elsewhere."""
    if not (before.image.adopted or after.image.adopted):
        return
    names = " and ".join(str(side.name) for side in (before, after) if side.image.adopted)
    yield f"how {names} came about: an adopted image was built elsewhere"
    for side in (before, after):
        if side.directory and not side.knows_base:
            yield f"the packages of {side.name} that its base image has: only those that its build installed are known"


def _mods(before: ComparedImage, after: ComparedImage) -> Iterator[ModChange]:
    old, new = before.image.mods, after.image.mods
    for name in dict.fromkeys([*new, *old]):
        if old.get(name) == new.get(name):
            continue
        files: tuple[FileChange, ...] = ()
        if name in old and name in new and before.directory and after.directory:
            old_folder, new_folder = before.directory.mods.get(name), after.directory.mods.get(name)
            files = tuple(texts.of_folders(old_folder, new_folder)) if old_folder and new_folder else ()
        yield ModChange(name, changes.kind_of(old.get(name), new.get(name)), files)


def _dockerfiles(before: ComparedImage, after: ComparedImage) -> Iterator[FileChange]:
    if before.directory is None or after.directory is None:
        return
    definitions = [part.definition for side in (before, after) if side.directory for part in side.directory.parts]
    for definition in dict.fromkeys(definitions):
        name = f"{definition}/Dockerfile" if definition else "Dockerfile"
        if change := texts.of_files(before.directory.path / name, after.directory.path / name, name):
            yield change


def _args(before: ComparedImage, after: ComparedImage) -> Iterator[ValueChange]:
    if before.directory and after.directory:
        yield from changes.values(_args_of(before.directory), _args_of(after.directory))


def _args_of(directory: BuildDirectory) -> dict[str, str]:
    """The values of the templates' settings; those of a parent are prefixed by its name: ``dflash build_jobs``."""
    values = {}
    for part in directory.parts:
        args = build_metadata.read(part.folder).get("build_args")
        for name, value in args.items() if isinstance(args, dict) else ():
            text = value if isinstance(value, str) else json.dumps(value)
            values[f"{part.definition} {name}".strip()] = text
    return values
