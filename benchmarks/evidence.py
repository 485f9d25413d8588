"""Measures a proof, and the table and the page in a project with many runs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.measuring import Row, Table, in_turn, once
from builder.evidence import run_record
from builder.lock import text
from builder.lock.model import ImageName, Lock, Model, Pairing, Repository
from tests import locks
from tests.commands import prove_trials
from tests.evidence import runs as made

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.sandbox import Sandbox
    from builder.base.project import Project


NUMBERS, MODELS = 200, 20
MOST_PROOFS = 3


def tables(sandbox: Sandbox, runs: int) -> Iterator[Table]:
    """Measures a proof of an unchanged image, and compares `matrix` and `report` with the start of the program."""
    with prove_trials.made() as trials:
        first, *warm = [
            once(partial(trials.builder, "prove", str(trials.image), prove_trials.OWN))
            for _ in range(1 + min(runs, MOST_PROOFS))
        ]
    yield Table(
        "Proving the cpu image (vLLM, 5 GB)",
        "`builder prove` of one model, whose tokenizer is a tiny one. Warm: the same image was proven before.",
        [Row("the first proof", [first]), Row("an unchanged image, warm", warm, reach=30.0)],
    )
    project = _project(sandbox)
    page = project.root / "report.html"
    matrix, report, version = in_turn(
        runs,
        partial(sandbox.builder, project, "matrix"),
        partial(sandbox.builder, project, "report", "--output", str(page)),
        partial(sandbox.builder, project, "--version"),
    )
    start = "`builder --version`: the start of the program"
    yield Table(
        f"{NUMBERS} numbers and {MODELS} models",
        f"Every number was proven for every model: {NUMBERS * MODELS:,} files of runs. No engine is asked. "
        f"The page takes {page.stat().st_size / 1000:.0f} kB.",
        [Row("`matrix`", matrix, start, version, 1.0), Row("`report`", report, start, version)],
    )


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
    """Writes a run like `store.add`, but without a check of the existing runs."""
    subject = replace(made.SUBJECT, image=str(name), model=model, fingerprint=fingerprint, recipe=None)
    run = replace(made.proof(subject=subject, seconds=float(place)), sequence=place)
    (folder / run_record.file_name(run, made.identity(run))).write_text(run_record.evidence_text(run), encoding="utf-8")
