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
from builder.reporting.page import Disclosure, PageCell, PageTable, ReportPage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.events import Report
    from builder.evidence.matrix import Matrix, MatrixCell
    from builder.lock.model import Lock
    from builder.project import Project


def collect(project: Project, environ: Mapping[str, str], report: Report, *, full: bool = False) -> ReportPage:
    """Reads all that the page shows; paths, names of machines and notes only where it is to be ``full``. Raises
    LockError where images.lock is lost or cannot be read."""
    lock = reading.of(project)
    names = newest_first(lock)
    report(Message(f"reading the runs of {humanize.counted(len(names), 'image')}"))
    evidence = overview.of(project, lock, names, environ, present_sets.of(project))
    every = matrix.of(names, matrix.models_of(lock, evidence.values()), evidence)
    disclosure = Disclosure(every.models, lock.images, full=full)
    images = images_shown.of(project, lock, names, evidence, disclosure, report)
    models = models_shown.of(lock, evidence, disclosure)
    moments = [record.built for repository in lock.images.values() for record in repository.numbers.values()]
    moments += [each.run.started for image in evidence.values() for each in image.last]
    return ReportPage(
        as_of=max(moments, default=""),
        concerns=attention.of(project, lock, evidence, models, disclosure, environ),
        models=models,
        table=table_of(every, disclosure),
        images=images,
        full=full,
    )


def newest_first(lock: Lock) -> tuple[ImageName, ...]:
    """All numbers, the newest of each repository first."""
    names = (ImageName(name, number) for name, repository in lock.images.items() for number in repository.numbers)
    return tuple(sorted(names, key=lambda name: (name.repository, -name.number)))


def table_of(every: Matrix, disclosure: Disclosure) -> PageTable:
    """The table of the page."""
    return PageTable(
        images=tuple(disclosure.name(str(image)) for image in every.images),
        models=tuple(map(disclosure.name, every.models)),
        proofs=every.proofs,
        cells=tuple(_cell(cell, disclosure) for tried in every.cells.values() for cell in tried),
    )


def _cell(cell: MatrixCell, disclosure: Disclosure) -> PageCell:
    image, model = disclosure.name(str(cell.image)), disclosure.name(cell.model)
    run = (cell.file or cell.others_file).rpartition("/")[2]
    return PageCell(image, model, cell.proof, cell.word, run, cell.others)
