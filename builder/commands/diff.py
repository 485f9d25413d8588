"""The diff command compares two numbered images: their contents, the choices of vLLM, and their last runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from builder.base.errors import BuilderError
from builder.base.values import dataclass, field
from builder.commands import listing
from builder.definitions import recipe
from builder.evidence import run_record
from builder.lab import changes
from builder.lab.changes import Changes, ComparedImage, FileChange, Kind, UpstreamCommits
from builder.lock import lock_file
from builder.numbers import status
from builder.serving import image_words, readiness, selection, server_log

if TYPE_CHECKING:
    from builder.base.events import Report
    from builder.base.project import Project
    from builder.evidence.standing import RunPair
    from builder.lock.model import ImageName, Lock
    from builder.numbers.workspace import Workspace
    from builder.sources.mirror import CommitFilter


@dataclass(frozen=True)
class ModChange:
    """A mod that was added, removed or changed, and its changed files if both build directories contain the mod."""

    name: str
    kind: Kind
    files: tuple[FileChange, ...]


@dataclass(frozen=True)
class ImageDifference:
    """All differences between two images. ``sources`` has the upstream commits of the sources in ``changes``.
    ``unknown`` says what could not be compared, and why. ``runs`` are the last runs of both images, side by side.
    ``chosen`` are the changed choices of vLLM by model. ``is_same`` is true if one image is adopted, and is byte for
    byte the other image."""

    before: ComparedImage
    after: ComparedImage
    changes: Changes
    sources: tuple[UpstreamCommits, ...]
    mods: tuple[ModChange, ...]
    dockerfiles: tuple[FileChange, ...]
    unknown: tuple[str, ...]
    runs: tuple[RunPair, ...] = ()
    chosen: Mapping[str, tuple[server_log.ChoiceChange, ...]] = field(default_factory=dict)
    is_same: bool = False

    @property
    def nothing(self) -> bool:
        """True if no difference was found."""
        return not (self.changes or self.mods or self.dockerfiles)


def diff_images(
    project: Project, before: str, after: str, commits: CommitFilter | None, report: Report
) -> ImageDifference:
    """Compares the image called ``before`` with the image called ``after``. ``commits`` selects the commits to list; if
    it is None, the network is not used. Raises UsageError if images.lock has no such image. The engine is not used."""
    lock = lock_file.read_project_lock(project)
    old, old_fault = changes.compared_image(project, lock, status.named_number(project, lock, before)[0])
    new, new_fault = changes.compared_image(project, lock, status.named_number(project, lock, after)[0])
    runs = last_runs(project, lock, old.name, new.name)
    if changes.are_same(old, new):
        same = Changes((), (), (), (), None)
        return ImageDifference(old, new, same, (), (), (), (), runs, is_same=True)
    differing = changes.changes_between(*changes.contents_of_both(lock, old, new))
    return ImageDifference(
        before=old,
        after=new,
        changes=differing,
        sources=changes.commits_of(project, differing, commits, report),
        mods=tuple(_mods(old, new)),
        dockerfiles=tuple(_dockerfiles(old, new)),
        unknown=tuple(fault for fault in (old_fault, new_fault, *_beyond_adopted(old, new)) if fault),
        runs=runs,
        chosen=_chosen(project, lock, old, new),
    )


def recipes_lost(workspace: Workspace, difference: ImageDifference) -> tuple[str, ...]:
    """The flags and variables of recipes that the first image accepts, and the second image refuses or ignores. Reads
    the recipes that the two repositories serve. Empty if the engine lacks one of the images. The check takes
    seconds, and is skipped if the build directories show that vLLM is unchanged and no mod was removed."""
    differing = difference.changes
    named = {*(each.name for each in differing.sources), *(each.name for each in differing.packages)}
    is_other_vllm = "vllm" in named or differing.base or any(each.source == "vllm" for each in differing.patches)
    are_built = difference.before.directory and difference.after.directory
    if are_built and not is_other_vllm and all(mod.kind != "removed" for mod in difference.mods):
        return ()
    project, lock = workspace.project, lock_file.read_project_lock(workspace.project)
    repositories = {difference.before.name.repository, difference.after.name.repository}
    served = []
    for file in recipe.recipe_files(project.recipes):
        with suppress(BuilderError):
            loaded = recipe.load_recipe(project, file)
            if selection.for_recipe(lock, loaded).image.repository in repositories:
                served.append(loaded)
    return image_words.lost(workspace, str(difference.before.name), str(difference.after.name), served)


def _chosen(
    project: Project, lock: Lock, before: ComparedImage, after: ComparedImage
) -> dict[str, tuple[server_log.ChoiceChange, ...]]:
    """The choices of vLLM, by model, that differ between the last starts of the two images."""
    sides = ((_last_choices(project, model, side) for side in (before, after)) for model in lock.models)
    changes = (server_log.choice_changes(*side) for side in sides)
    return {model: change for model, change in zip(lock.models, changes, strict=True) if change}


def _last_choices(project: Project, model: str, side: ComparedImage) -> Mapping[str, tuple[str, ...]]:
    """The choices in the last start of an image on this machine, or else in its last run of evidence."""
    start = readiness.recorded_starts(project, model).get(side.image.fingerprint)
    if start and start.starts:
        return start.starts[-1].chosen
    runs = (run for run in reversed(run_record.look_for_runs(project, side.name).runs) if run.subject.model == model)
    return next((run.chosen for run in runs if run.chosen), {})


def last_runs(project: Project, lock: Lock, before: ImageName, after: ImageName) -> tuple[RunPair, ...]:
    """The last runs of both images, side by side. Damaged evidence is left out; `list` reports it."""
    from builder.evidence import standing

    if not (evidence := listing.present_evidence(project, lock, [before, after], {})):
        return ()
    return standing.pairs_side_by_side(evidence[before].last, evidence[after].last)


def _beyond_adopted(before: ComparedImage, after: ComparedImage) -> Iterator[str]:
    """Names what cannot be compared because an image was built elsewhere."""
    if not (before.image.adopted or after.image.adopted):
        return
    names = " and ".join(str(side.name) for side in (before, after) if side.image.adopted)
    yield f"the build of {names}: an adopted image was built elsewhere"
    for side in (before, after):
        if side.directory and not side.knows_base:
            yield f"the packages in the base of {side.name}: only the packages that its build installed are known"


def _mods(before: ComparedImage, after: ComparedImage) -> Iterator[ModChange]:
    old, new = before.image.mods, after.image.mods
    old_folders, new_folders = (side.directory.mods if side.directory else {} for side in (before, after))
    for name in {**new, **old}:
        if old.get(name) != new.get(name):
            old_folder, new_folder = old_folders.get(name), new_folders.get(name)
            files: tuple[FileChange, ...] = ()
            if name in old and name in new and old_folder and new_folder:
                files = tuple(changes.of_files(changes.read_files(old_folder), changes.read_files(new_folder)))
            yield ModChange(name, changes.kind_of(old.get(name), new.get(name)), files)


def _dockerfiles(before: ComparedImage, after: ComparedImage) -> Iterator[FileChange]:
    if before.directory is None or after.directory is None:
        return
    definitions = [part.definition for side in (before, after) if side.directory for part in side.directory.parts]
    for definition in dict.fromkeys(definitions):
        name = f"{definition}/Dockerfile" if definition else "Dockerfile"
        sides = (changes.read_files(side.path, [name]) for side in (before.directory, after.directory))
        yield from changes.of_files(*sides)
