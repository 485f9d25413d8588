"""The evidence export command: the project's own runs in a file, for others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.errors import ConflictError, FileProblemsError, NothingToDoError
from builder.evidence import shared_file, traveling
from builder.evidence.shared_file import SharedRuns
from builder.lock import reading
from builder.lock.model import ImageName
from builder.numbered import names
from builder.storage import atomic_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from builder.lock.model import Lock
    from builder.project import Project


def run(project: Project, images: Sequence[str], output: Path) -> tuple[SharedRuns, ...]:
    """Writes the runs of the images that ``images`` name (numbers, repositories, definitions), or of all, into the file
    ``output``. Runs that came from others are left out: they are theirs to send.

    Raises UsageError for an image that there is not, FileProblemsError for evidence that is damaged, ConflictError
    where the file is there already, NothingToDoError where there is no run.
    """
    lock = reading.of(project)
    shared = tuple(_runs(project, lock, _named(project, lock, images)))
    if not shared:
        raise NothingToDoError("these images have no runs of the project's own", hint="`builder prove` makes one")
    if output.exists():
        raise ConflictError(f"{output} is there already", hint="name another file, or delete it")
    atomic_file.make_folder(output.parent)
    atomic_file.write(output, shared_file.dump(shared))
    return shared


def _named(project: Project, lock: Lock, images: Sequence[str]) -> list[ImageName]:
    every = [ImageName(name, number) for name, repository in lock.images.items() for number in repository.numbers]
    if not images:
        return sorted(every)
    chosen: set[ImageName] = set()
    for text in images:
        repository = names.repository(project, lock, text)
        of_repository = {name for name in every if name.repository == repository}
        chosen |= of_repository or {names.numbered(project, lock, text)[0]}
    return sorted(chosen)


def _runs(project: Project, lock: Lock, images: Sequence[ImageName]) -> Iterator[SharedRuns]:
    for name in images:
        fingerprint = lock.images[name.repository].numbers[name.number].fingerprint
        runs, problems = traveling.of_image(project, name, fingerprint)
        if problems:
            raise FileProblemsError(problems, hint="restore the committed file with git, or delete it")
        if own := tuple(run for run in runs if not run.foreign):
            yield SharedRuns(str(name), fingerprint, own)
