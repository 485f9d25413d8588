"""The build directories after a merge: both sides had one of the same number, and git checked out one of them."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from builder.lock import merging, reading, text
from builder.numbered import adopted, images_lock, plan_file
from builder.plan.model import input_hash
from builder.project import below
from builder.sources.git import project_history
from builder.storage import atomic_file, atomic_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.lock.model import ImageName, Lock, NumberedImage
    from builder.project import Project

# The revisions that hold the build directories of both sides: before the merge is committed, and after.
_REVISIONS = ("HEAD", "MERGE_HEAD", "HEAD^1", "HEAD^2", "CHERRY_PICK_HEAD", "REBASE_HEAD")


def restore_both(project: Project, lock: Lock, origin: ImageName, to: ImageName) -> bool:
    """Puts the build directories of both images in their places: of the one that keeps the number ``origin``, and of
    the one that is ``to`` now. True if that of the latter was found.

    Raises ValueError for a number that is not in ``lock``.
    """
    image, stayed = lock.image(to), lock.image(origin)
    if image is None or stayed is None:
        raise ValueError(f"{origin} and {to} are both in the lock by now")
    with _scratch_folder(project) as folder:
        destination = project.build_directory(to.repository, to.number)
        candidates = [*_candidates(project, origin, folder), destination]
        moved_from = _matching(candidates, image)
        if moved_from and moved_from != destination:
            with _new_directory(project, moved_from, to) as directory:
                _rename_record(directory, origin, to)
        stayed_in = _matching(candidates, stayed)
        if stayed_in and stayed_in != candidates[0]:
            with _new_directory(project, stayed_in, origin):
                pass
    return moved_from is not None


def remove_unfinished(project: Project) -> None:
    """Removes what a killed process left of `restore_both`, and what could not be removed then. images.lock must be
    held."""
    shutil.rmtree(_scratch(project), ignore_errors=True)
    for pattern in (_beside("*"), atomic_folder.aside_of(Path("*")).name):
        for folder in project.builds.glob(f"*/{pattern}"):
            shutil.rmtree(below(project.builds, folder), ignore_errors=True)


@contextmanager
def _scratch_folder(project: Project) -> Iterator[Path]:
    """An empty folder for the time of the block. Its name is always the same, since images.lock is held: what a killed
    process left there goes."""
    folder = _scratch(project)
    shutil.rmtree(folder, ignore_errors=True)
    try:
        yield _folder(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _candidates(project: Project, name: ImageName, folder: Path) -> list[Path]:
    """The build directory of a number as it is now, and, extracted into ``folder``, as it was on either side of a
    merge."""
    directory = project.build_directory(name.repository, name.number)
    inside = directory.relative_to(project.root)
    candidates = [directory]
    for revision in _REVISIONS:
        into = _folder(folder / revision)
        if project_history.extract_folder(project.root, revision, inside.as_posix(), into):
            candidates.append(into / inside)
    return candidates


def _matching(candidates: list[Path], image: NumberedImage) -> Path | None:
    return next((directory for directory in candidates if is_of(directory, image)), None)


def is_of(directory: Path, image: NumberedImage) -> bool:
    """True if a build directory is that of ``image``: by the input hash of its plan, or what an adopted one holds."""
    if image.adopted:
        contents = adopted.read(directory)
        return contents is not None and contents.fingerprint == image.fingerprint
    steps = plan_file.read_if_possible(directory)
    return steps is not None and input_hash(steps) == image.input_hash


@contextmanager
def _new_directory(project: Project, source: Path, name: ImageName) -> Iterator[Path]:
    """A copy of ``source``, which becomes the build directory of a number in one step, as the block left it."""
    target = project.build_directory(name.repository, name.number)
    beside = target.with_name(_beside(target.name))
    shutil.rmtree(beside, ignore_errors=True)
    shutil.copytree(source, beside, symlinks=True)  # what a link leads to is no part of it
    yield beside
    atomic_folder.replace(beside, target)


def _rename_record(directory: Path, origin: ImageName, to: ImageName) -> None:
    file = directory / images_lock.RECORD
    if not file.is_file():
        return
    record = reading.read(file)
    if record.image(origin):
        atomic_file.write_alone(file, text.dump(merging.renamed(record, origin, to.number)).encode())


def _scratch(project: Project) -> Path:
    return project.state / "renumber"


def _beside(name: str) -> str:
    return f".{name}.new"


def _folder(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path
