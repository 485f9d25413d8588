"""Planted faults that a bisection has to name: one in every run of the suite, all ten where there is the time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.commands import bisect_trials, planted_faults

if TYPE_CHECKING:
    from pathlib import Path

    from builder.engine.client import Endpoint
    from tests.commands.planted_faults import Fault


pytestmark = pytest.mark.engine
_SHORT = ("a template",)


@pytest.mark.long
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, id=fault.name, marks=[] if fault.name in _SHORT else [pytest.mark.full])
        for fault in planted_faults.FAULTS
    ],
)
def test_the_fault_is_named(fault: Fault, endpoint: Endpoint, bisect_base: str, tmp_path: Path) -> None:
    with planted_faults.planting(endpoint, tmp_path, bisect_base, fault) as planting:
        answer = bisect_trials.look(fault, planting, tmp_path)
        assert answer.is_right, answer
        if not fault.noise and not fault.holes:  # a wrong turn and a commit that does not build are steps, too
            assert answer.steps <= 4 + 10
        assert bisect_trials.left_over(endpoint, planting.project) == []


@pytest.mark.full
@pytest.mark.parametrize("name", ["a commit", "a mod"])
def test_killed_after_every_step_it_ends_the_same(
    name: str, endpoint: Endpoint, bisect_base: str, tmp_path: Path
) -> None:
    (fault,) = (each for each in planted_faults.FAULTS if each.name == name)
    with planted_faults.planting(endpoint, tmp_path, bisect_base, fault) as planting:
        answer = bisect_trials.look_killed(fault, planting, tmp_path)
        assert answer.is_right, answer
        assert answer.kills >= 6
        assert bisect_trials.left_over(endpoint, planting.project) == []
