"""How long the images of a model took to answer, and how long a candidate may take."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.base.project import Project
from builder.lock.model import ImageName, Lock, Model, Pairing, Repository
from builder.serving import answered
from tests import locks

MODEL = "Org/Model-1B"
NAME = ImageName("app", 1)
NUMBERED = locks.numbered()
LOCK = Lock(
    images={"app": Repository(2, 1, numbers={1: NUMBERED})}, models={MODEL: Model(Pairing(NAME, "recipes/m.yaml"))}
)


@pytest.mark.parametrize(
    ("starts", "seconds", "reason"),
    [
        ([], 3600, "no start of the current image is recorded"),
        ([60.0], 900, "app:1 took 1 min 00 s"),
        ([600.0, 400.0], 3000, "5 times the 10 min 00 s of app:1"),  # the later start found its caches
    ],
)
def test_a_candidate_may_take_five_times_as_long_as_the_current_image(
    tmp_path: Path, starts: list[float], seconds: float, reason: str
) -> None:
    project = Project(tmp_path)
    for each in starts:
        answered.record_answered(project, MODEL, NUMBERED.fingerprint, "answered", each)
    assert answered.start_limit(project, LOCK, MODEL) == answered.StartLimit(seconds, reason)


def test_the_last_outcome_of_each_image_counts(tmp_path: Path) -> None:
    project = Project(tmp_path)
    assert answered.outcomes(project, MODEL) == {}
    answered.record_answered(project, MODEL, "sha256:1", "answered")
    answered.record_answered(project, MODEL, "sha256:2", "answered")
    answered.record_answered(project, MODEL, "sha256:2", "replaced")
    assert answered.outcomes(project, MODEL) == {"sha256:1": "answered", "sha256:2": "replaced"}


@pytest.mark.parametrize("planted", ["Infinity", "NaN", "-5", "1e300", "true", '"9"', "[]"])
def test_a_time_that_is_none_makes_no_limit(tmp_path: Path, planted: str) -> None:
    project = Project(tmp_path)
    answered.record_answered(project, MODEL, "sha256:2", "replaced")
    entry = f'{{"outcome": "answered", "seconds": {planted}}}'
    project.answered.write_text(f'{{"{MODEL}": {{"{NUMBERED.fingerprint}": {entry}}}}}')
    limit = answered.start_limit(project, LOCK, MODEL)
    assert limit == answered.StartLimit(3600, "no start of the current image is recorded")
