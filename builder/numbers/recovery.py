"""This page repairs the record of numbers after a merge or after the loss of images.lock.

Build directories after a merge come first, then the sources for a lost images.lock.
If a build directory and the labels of an image disagree, the build directory wins.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from builder.base import files, words
from builder.base.errors import LockError, NewerLockError
from builder.base.events import Message
from builder.base.project import Project, below_project
from builder.base.values import dataclass, replace
from builder.engine import images
from builder.engine.images import ImageDetails, split_tag
from builder.lock import lock_file, merging, model, text
from builder.lock.model import ImageName, Lock, Model, NumberedImage, Pairing
from builder.numbers import adopted, build_directory, claims
from builder.numbers.images_lock import RECORD
from builder.plan import making, plan_model
from builder.plan.plan_model import input_hash
from builder.sources import foreign_files

if TYPE_CHECKING:
    from builder.engine.client import Endpoint
    from builder.numbers.workspace import Workspace


# The build directories after a merge: both sides had one with the same number, and git checked out one of them.

# The revisions with the build directories of both sides: before the merge is committed, and after.
_REVISIONS = ("HEAD", "MERGE_HEAD", "HEAD^1", "HEAD^2", "CHERRY_PICK_HEAD", "REBASE_HEAD", "stash@{0}")
_SCRATCH = "merge"


def staged_locks(project: Project) -> tuple[Lock, Lock, Lock] | None:
    """The common version of images.lock, ours and theirs, from git's index during an unfinished merge; None if the
    index has only one version. A side without images.lock counts as empty, and so does a damaged common version. Raises
    LockError for a damaged side."""
    stages = foreign_files.unmerged_stages(project.root, RECORD)
    if not stages & {2, 3}:
        return None

    def load(path: str, digest: str) -> bytes | None:
        contents = (foreign_files.read_stage(project.root, stage, path) for stage in (0, 2, 3, 1))
        staged = (content for content in contents if content and words.sha256_of(content) == digest)
        return next(staged, None) or lock_file.files_below(project.root)(path, digest)

    def side(stage: int) -> Lock:
        content = foreign_files.read_stage(project.root, stage, RECORD) if stage in stages else None
        if not content:
            return Lock()
        try:
            return lock_file.parse_bytes(content, f"{RECORD} (stage {stage} of git's index)", load)
        except NewerLockError:
            raise
        except LockError as error:
            if stage == 1:  # without a readable common version, both sides are compared with an empty one
                return Lock()
            damaged, whole = ("ours", "theirs") if stage == 2 else ("theirs", "ours")
            hint = f"the side `{damaged}` is damaged: `git checkout --{whole} {RECORD}` keeps only the other side"
            raise LockError(error.message, hint=hint) from None

    return side(1), side(2), side(3)


def restore_both(project: Project, lock: Lock, origin: ImageName, to: ImageName) -> bool:
    """Puts the build directories of two images in their places: the image that keeps the number ``origin``, and the
    image that is ``to`` now. True if the build directory for ``to`` was found.

    Raises ValueError for a number that is not in ``lock``.
    """
    image, stayed = lock.image(to), lock.image(origin)
    if image is None or stayed is None:
        raise ValueError(f"{origin} and {to} are both already in the lock")
    scratch = project.state / _SCRATCH
    scratch.mkdir(parents=True, exist_ok=True)
    try:
        destination = project.build_directory(to.repository, to.number)
        candidates = [*_candidates(project, origin, scratch), destination]
        moved_from = _matching(candidates, image)
        if moved_from and moved_from != destination:
            with _new_directory(project, moved_from, to) as directory:
                if (directory / RECORD).is_file() and (record := lock_file.read_record(directory)).image(origin):
                    renamed = merging.renamed(record, origin, to.number)
                    files.write_atomically(directory / RECORD, text.dump_lock(renamed).encode())
        stayed_in = _matching(candidates, stayed)
        if stayed_in and stayed_in != candidates[0]:
            with _new_directory(project, stayed_in, origin):
                pass
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return moved_from is not None


def remove_unfinished(project: Project) -> None:
    """Removes what `restore_both` left when it was killed or could not remove something. The caller must hold
    images.lock."""
    shutil.rmtree(project.state / _SCRATCH, ignore_errors=True)
    for pattern in (".*.new", files.aside_of(Path("*")).name):
        for folder in project.builds.glob(f"*/{pattern}"):
            shutil.rmtree(below_project(project.builds, folder), ignore_errors=True)


def _candidates(project: Project, name: ImageName, folder: Path) -> list[Path]:
    directory = project.build_directory(name.repository, name.number)
    inside = directory.relative_to(project.root)
    candidates = [directory]
    for revision in _REVISIONS:
        into = folder / revision
        if foreign_files.extract_folder(project.root, revision, inside.as_posix(), into):
            candidates.append(into / inside)
    return candidates


def _matching(candidates: list[Path], image: NumberedImage) -> Path | None:
    return next((directory for directory in candidates if is_of(directory, image)), None)


def is_of(directory: Path, image: NumberedImage) -> bool:
    if image.adopted:
        contents = adopted.read_adopted(directory)
        return contents is not None and contents.fingerprint == image.fingerprint
    steps = build_directory.read_if_possible(directory)
    return steps is not None and input_hash(steps) == image.input_hash


@contextmanager
def _new_directory(project: Project, source: Path, name: ImageName) -> Iterator[Path]:
    """Yields a copy of ``source``. After the block, it becomes the build directory of a number in one step."""
    target = project.build_directory(name.repository, name.number)
    beside = target.with_name(f".{target.name}.new")
    shutil.rmtree(beside, ignore_errors=True)
    shutil.copytree(source, beside, symlinks=True)  # the target of a link is not part of the directory
    yield beside
    files.replace_folder(beside, target)


# The sources for a lost images.lock: build directories and the images in the engine. A build directory has the part of
# images.lock that its build wrote. If the directory is also lost, the image's labels have most of that part. If the two
# disagree about a number, the build directory wins.

_NUMBER = re.compile("[1-9][0-9]{0,17}")


@dataclass(frozen=True)
class RecoverableImage:
    """A number that can be recovered: the part of a lock that its build wrote, as far as it is known. ``unknown`` says
    what is missing."""

    name: ImageName
    part: Lock
    unknown: tuple[str, ...] = ()

    @property
    def image(self) -> NumberedImage:
        return self.part.images[self.name.repository].numbers[self.name.number]


def find_recoverable(workspace: Workspace) -> list[RecoverableImage]:
    """Finds every number of this project in build directories and in the engine, except numbers that images.lock cannot
    contain. The engine may also have images of other projects. A number there counts if its repository belongs to a
    definition or a build directory, and no other project in the engine records it. A definition that cannot be read is
    left out."""
    from builder.definitions import image

    project, engine = workspace.project, workspace.engine
    built = dict(in_builds(project))
    ours = {*image.definition_repositories(project), *(name.repository for name in built)}
    others = claims.of_others(engine, claims.existing_identity(project))
    recoverable = {name: _from_build(name, part, None) for name, part in built.items()}
    for details in images.all_images(engine):
        for repository, number in map(split_tag, details.tags):
            if repository not in ours or not _NUMBER.fullmatch(number):
                continue
            name = ImageName(repository, int(number))
            if name in built:
                recoverable[name] = _from_build(name, built[name], details)
            elif owner := others.get(name):
                workspace.report(Message(f"{name} is left out: it belongs to {owner}"))
            elif (own := making.read_labels(details.labels)) and own.repository == repository:
                tagged = images.last_tagged(engine, str(name)) or details.created
                part = _part(name, details, own, tagged, images.disk_size(engine, str(name)))
                unknown = "its build time is taken from its tag; its Python packages are not known"
                recoverable[name] = RecoverableImage(name, part, (f"{name} has no build directory: {unknown}",))
    for name, candidate in [*recoverable.items()]:
        if reason := merging.refused(candidate.part):
            workspace.report(Message(f"{name} is left out: {reason}"))
            del recoverable[name]
    return [recoverable[name] for name in sorted(recoverable)]


def current(endpoint: Endpoint, recoverable: list[RecoverableImage]) -> dict[str, int]:
    latest: dict[str, int] = {}
    for repository in sorted({number.name.repository for number in recoverable}):
        details = images.inspect_image(endpoint, f"{repository}:latest")
        content = images.fingerprint(details) if details else ""
        numbers = [
            number.name.number
            for number in recoverable
            if number.name.repository == repository and number.image.fingerprint == content
        ]
        latest |= {repository: max(numbers)} if numbers else {}
    return latest


def in_builds(project: Project) -> Iterator[tuple[ImageName, Lock]]:
    """The parts of images.lock in the build directories; a damaged part counts as missing."""
    for file in sorted(project.builds.glob(f"**/{RECORD}")):
        number = file.parent.name
        # A file inside the build directory of a number belongs to a mod, which may contain any file.
        above = [folder for folder in file.parent.parents if project.builds in folder.parents]
        is_of_a_mod = any((folder / name).exists() for folder in above for name in (making.FILE, plan_model.ADOPTED))
        if is_of_a_mod or not _NUMBER.fullmatch(number):
            continue
        name = ImageName(file.parent.parent.relative_to(project.builds).as_posix(), int(number))
        try:
            part = lock_file.read_record(file.parent)
        except (LockError, OSError):
            continue
        if part.image(name):
            # Anyone may have written the directory, so only the record of its own number counts.
            yield name, replace(part, models={m: kept for m, kept in part.models.items() if kept.pairing.image == name})


def _from_build(name: ImageName, part: Lock, local: ImageDetails | None) -> RecoverableImage:
    number = RecoverableImage(name, part)
    if local is None:
        pruned = replace(number.image, pruned=words.now())
        unknown = f"{name} is missing from this engine; the date is unknown, so images.lock records it as pruned today"
        return replace(number, part=number.part.with_image(name, pruned), unknown=(unknown,))
    if images.fingerprint(local) != number.image.fingerprint:
        return replace(
            number, unknown=(f"{name} has different content in this engine than when it was built: its tag was moved",)
        )
    return number


def _part(name: ImageName, details: ImageDetails, image_labels: making.ImageLabels, built: str, size: int) -> Lock:
    image = NumberedImage(
        built=built,
        definition=image_labels.definition,
        platform=details.platform,
        fingerprint=images.fingerprint(details),
        input_hash=image_labels.input_hash,
        size=size,
        recipe=image_labels.recipe,
        versions=model.shown_versions(image_labels.versions),
        mods=model.shown_mods(image_labels.mods),
        pulls=model.shown_pulls(image_labels.pins.values()),
        base=model.shown_base(next((pins.base for pins in image_labels.pins.values() if pins.base), None)),
    )
    part = Lock().with_image(name, image)
    for definition, pins in image_labels.pins.items():
        part = part.with_pins(definition, details.platform, pins)
    for position, served in enumerate(image_labels.models):
        # The recipe's own model comes first, and the revision belongs to it.
        revision = image_labels.revision if position == 0 else None
        part = part.with_model(served, Model(Pairing(name, image_labels.recipe, revision, since=built)))
    return part
