"""The data of the page, read from images.lock, builds/, evidence/ and the recipes that they name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder import humanize
from builder.events import Message
from builder.evidence import matrix, overview
from builder.lock import reading
from builder.lock.model import ImageName
from builder.measuring import present_sets
from builder.reporting import attention, images_shown, models_shown
from builder.reporting.page import PageCell, PageTable, ReportPage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.events import Report
    from builder.evidence.matrix import Matrix
    from builder.lock.model import Lock
    from builder.project import Project


def collect(project: Project, environ: Mapping[str, str], report: Report) -> ReportPage:
    """Reads all that the page shows. Raises LockError where images.lock is lost or cannot be read."""
    lock = reading.of(project)
    names = newest_first(lock)
    report(Message(f"reading the runs of {humanize.counted(len(names), 'image')}"))
    evidence = overview.of(project, lock, names, environ, present_sets.of(project))
    images = images_shown.of(project, lock, names, evidence, report)
    models = models_shown.of(lock, evidence)
    every = matrix.of(names, matrix.models_of(lock, evidence.values()), evidence)
    moments = [record.built for repository in lock.images.values() for record in repository.numbers.values()]
    moments += [each.run.started for image in evidence.values() for each in image.last]
    return ReportPage(
        as_of=max(moments, default=""),
        concerns=attention.of(project, lock, evidence, models, environ),
        models=models,
        table=table_of(every),
        images=images,
    )


def newest_first(lock: Lock) -> tuple[ImageName, ...]:
    """All numbers, the newest of each repository first."""
    names = (ImageName(name, number) for name, repository in lock.images.items() for number in repository.numbers)
    return tuple(sorted(names, key=lambda name: (name.repository, -name.number)))


def table_of(every: Matrix) -> PageTable:
    """The table of the page."""
    cells = (cell for tried in every.cells.values() for cell in tried)
    return PageTable(
        images=tuple(map(str, every.images)),
        models=every.models,
        proofs=every.proofs,
        cells=tuple(
            PageCell(str(cell.image), cell.model, cell.proof, cell.word, cell.file or cell.others_file, cell.others)
            for cell in cells
        ),
    )
