"""A sample of `test_every_place`: each command that writes is ended once, at a place and in a way left to chance.

BUILDER_SEED chooses others; 0 takes the time for it.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

import pytest

from builder.engine.client import Endpoint
from tests.crash.scenarios import SCENARIOS, Scenario
from tests.crash.trial import fates

pytestmark = pytest.mark.slow


def _marked(scenario: Scenario) -> object:
    marks = [pytest.mark.engine] * scenario.engine + [pytest.mark.alone] * scenario.alone
    marks += [pytest.mark.long] * scenario.long
    return pytest.param(scenario, id=scenario.name, marks=marks)


@pytest.fixture
def chance() -> random.Random:
    seed = int(os.environ.get("BUILDER_SEED", "14")) or time.time_ns()
    sys.stdout.write(f"BUILDER_SEED={seed}\n")
    return random.Random(seed)  # noqa: S311


@pytest.mark.parametrize("scenario", [_marked(scenario) for scenario in SCENARIOS])
def test_a_place(scenario: Scenario, chance: random.Random, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    endpoint: Endpoint | None = request.getfixturevalue("endpoint") if scenario.engine else None
    with scenario.trial(tmp_path, endpoint) as trial:
        whole = trial.whole()
        number = chance.randrange(len(whole.places))
        name, fate = chance.choice(list(fates(whole.places[number])))
        outcome = trial.end_at(number, fate, name, whole)
        assert outcome is None or not outcome.broken, outcome
