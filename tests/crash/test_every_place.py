"""Each command that writes, ended at every place: killed there, or with that call failing. docs/reliability.md has what
became of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.engine.client import Endpoint
from tests.crash.scenarios import SCENARIOS, Scenario
from tests.crash.trial import outcomes

pytestmark = [pytest.mark.full, pytest.mark.slow, pytest.mark.timeout(14_400)]


def _marked(scenario: Scenario) -> object:
    marks = [pytest.mark.engine] * scenario.engine + [pytest.mark.alone] * scenario.alone
    return pytest.param(scenario, id=scenario.name, marks=marks)


@pytest.mark.parametrize("scenario", [_marked(scenario) for scenario in SCENARIOS])
def test_every_place(scenario: Scenario, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    endpoint: Endpoint | None = request.getfixturevalue("endpoint") if scenario.engine else None
    with scenario.trial(tmp_path, endpoint) as trial:
        whole = trial.whole()
        broken = [str(outcome) for outcome in outcomes(trial, whole) if outcome.broken]
    assert not broken, "\n".join(broken)
