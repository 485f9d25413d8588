"""The time that the table and the page take in a project with many runs: from its files alone, and from memory."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.measuring import Action, Row, Table, in_turn
from builder.evidence import records, store
from builder.lock import text
from builder.lock.model import ImageName, Lock, Model, Pairing, Repository
from tests import locks
from tests.evidence import runs as made

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.sandbox import Sandbox
    from builder.base.project import Project


NUMBERS, MODELS = 200, 20


def tables(sandbox: Sandbox, runs: int) -> Iterator[Table]:
    """Measures `matrix` and `report`, each with nothing remembered beside the same once more."""
    project = _project(sandbox)
    page = project.root / "report.html"
    matrix = partial(sandbox.builder, project, "matrix")
    report = partial(sandbox.builder, project, "report", "--output", str(page))
    first_matrix, later_matrix, first_report, later_report, version = in_turn(
        runs,
        partial(_forgotten, project, matrix),
        matrix,
        partial(_forgotten, project, report),
        report,
        partial(sandbox.builder, project, "--version"),
    )
    once_more = "the same once more, from memory"
    yield Table(
        f"{NUMBERS} numbers and {MODELS} models",
        f"Every number was proven for every model: {NUMBERS * MODELS:,} files of runs. No engine is asked. "
        f"The page takes {page.stat().st_size / 1000:.0f} kB.",
        [
            Row("`matrix`, with nothing remembered", first_matrix, once_more, later_matrix, 1.0),
            Row("`report`, with nothing remembered", first_report, once_more, later_report),
            Row("`matrix`, from memory", later_matrix, "`builder --version`: the start of the program", version),
        ],
    )


def _forgotten(project: Project, action: Action) -> None:
    """Runs an action in a project whose state folder is gone."""
    shutil.rmtree(project.state, ignore_errors=True)
    action()


def _project(sandbox: Sandbox) -> Project:
    project = sandbox.project("runs")
    numbered = {number: locks.numbered() for number in range(1, NUMBERS + 1)}
    models = {f"Org/Model-{n}": Model(Pairing(ImageName("small", NUMBERS - n), None)) for n in range(MODELS)}
    repository = Repository(NUMBERS + 1, NUMBERS, numbers=numbered)
    project.lock.write_text(text.dump_lock(Lock(images={"small": repository}, models=models)), encoding="utf-8")
    for number, image in numbered.items():
        folder = project.evidence / "small" / str(number)
        folder.mkdir(parents=True)
        for place, model in enumerate(models, start=1):
            _write(folder, ImageName("small", number), model, place, image.fingerprint)
    return project


def _write(folder: Path, name: ImageName, model: str, place: int, fingerprint: str) -> None:
    """Writes a run as `store.add` does, without looking at those that are there."""
    subject = replace(made.SUBJECT, image=str(name), model=model, fingerprint=fingerprint, recipe=None)
    run = replace(made.proof(subject=subject, seconds=float(place)), sequence=place)
    (folder / store.file_name(run)).write_text(records.evidence_text(run), encoding="utf-8")
