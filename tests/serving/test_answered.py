"""How long the images of a model took to answer, and how long a candidate may take."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from builder.base.project import Project
from builder.lock.model import ImageName, Lock, Model, Pairing, Repository
from builder.serving import readiness
from tests import locks, projects

MODEL = "Org/Model-1B"
NAME = ImageName("app", 1)
NUMBERED = locks.numbered()
LOCK = Lock(
    images={"app": Repository(2, 1, numbers={1: NUMBERED})}, models={MODEL: Model(Pairing(NAME, "recipes/m.yaml"))}
)


@pytest.mark.parametrize(
    ("starts", "seconds"),
    [([], 3600), ([60.0], 900), ([600.0, 400.0], 3000)],  # the later start found its caches
)
def test_a_candidate_may_take_five_times_as_long_as_the_current_image(
    tmp_path: Path, starts: list[float], seconds: float
) -> None:
    project = Project(tmp_path)
    for each in starts:
        readiness.record_answered(project, MODEL, NUMBERED.fingerprint, "answered", each)
    assert readiness.start_limit(project, LOCK, MODEL) == seconds


def test_the_last_outcome_of_each_image_counts(tmp_path: Path) -> None:
    project = Project(tmp_path)
    assert readiness.recorded_starts(project, MODEL) == {}
    readiness.record_answered(project, MODEL, "sha256:1", "answered")
    readiness.record_answered(project, MODEL, "sha256:2", "answered")
    readiness.record_answered(project, MODEL, "sha256:2", "replaced")
    starts = readiness.recorded_starts(project, MODEL)
    assert [(name, start.outcome) for name, start in starts.items()] == [
        ("sha256:1", "answered"),
        ("sha256:2", "replaced"),
    ]


def _record_each(project: Project, models: Sequence[str], together: Barrier) -> None:
    for model in models:
        together.wait(60)
        readiness.record_answered(project, model, NUMBERED.fingerprint, "answered")


def test_servers_that_answer_at_once_are_all_recorded(tmp_path: Path) -> None:
    project = Project(tmp_path)
    models = [[f"Org/{side}-{number}" for number in range(20)] for side in "AB"]
    forks = multiprocessing.get_context("fork")
    together = forks.Barrier(2)
    sides = [forks.Process(target=_record_each, args=(project, each, together)) for each in models]
    for side in sides:
        side.start()
    for side in sides:
        side.join()
    assert [side.exitcode for side in sides] == [0, 0]
    assert [model for side in models for model in side if not readiness.recorded_starts(project, model)] == []


@pytest.mark.parametrize("planted", ["Infinity", "NaN", "-5", "1e300", "true", '"9"', "[]"])
def test_a_time_that_is_none_makes_no_limit(tmp_path: Path, planted: str) -> None:
    project = Project(tmp_path)
    readiness.record_answered(project, MODEL, "sha256:2", "replaced")
    entry = f'{{"outcome": "answered", "seconds": {planted}}}'
    project.answered.write_text(f'{{"{MODEL}": {{"{NUMBERED.fingerprint}": {entry}}}}}')
    assert readiness.start_limit(project, LOCK, MODEL) == 3600


def test_the_way_back_leads_to_no_image_that_failed(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    lock = locks.one_after_the_other("a" * 40)
    locks.write_lock(tmp_path, lock)
    assert readiness.rollback_hint(project, MODEL).startswith(f"`builder rollback {MODEL}` goes back to small:1")
    readiness.record_answered(project, MODEL, lock.images["small"].numbers[1].fingerprint, "replaced")
    assert readiness.rollback_hint(project, MODEL).startswith(
        f"the previous image small:1 did not serve {MODEL} either"
    )
