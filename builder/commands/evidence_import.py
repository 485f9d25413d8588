"""The evidence import command: the runs of others, kept as theirs beside the images that have the same content here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.evidence import shared_file, traveling
from builder.lock import reading
from builder.lock.model import ImageName

if TYPE_CHECKING:
    from pathlib import Path

    from builder.project import Project


@dataclass(frozen=True)
class ImportedRuns:
    """The runs of one image in the file, ``count`` of them. ``image`` is the one of the same content here, None where
    there is none and so nothing was kept; ``new`` were not here before."""

    theirs: str
    image: ImageName | None
    count: int
    new: int


def run(project: Project, path: Path, origin: str = "") -> tuple[ImportedRuns, ...]:
    """Keeps the runs in the file ``path`` as those of others; ``origin`` says whose they are, the file's name where it
    is empty. They are shown, and count for nothing here. What the project has already stays as it is.

    Raises FileProblemsError for a file that is none, or with a run that is no evidence; nothing is kept then.
    """
    shared = shared_file.read(path)
    lock = reading.of(project)
    by_content: dict[str, list[ImageName]] = {}
    for repository, record in lock.images.items():
        for number, image in record.numbers.items():
            by_content.setdefault(image.fingerprint, []).append(ImageName(repository, number))
    results = []
    for each in shared:
        matching = by_content.get(each.fingerprint, [])
        if not matching:
            results.append(ImportedRuns(each.image, None, len(each.runs), 0))
        for name in sorted(matching):
            new = traveling.take(project, name, each.runs, origin or path.name)
            results.append(ImportedRuns(each.image, name, len(each.runs), new))
    return tuple(results)
