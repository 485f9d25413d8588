"""A fault in one commit of vLLM, named where both numbers take vLLM as a wheel."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.commands import bisect_trials, commit_wheels
from tests.commands.commit_wheels import PLANTED
from tests.conftest import run_command

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from builder.engine.client import Endpoint
    from tests.commands.commit_wheels import WheelPlanting


pytestmark = pytest.mark.engine


def look(planting: WheelPlanting) -> dict[str, Any]:
    command = ["bisect", "trial", "--good", "1", "--bad", "2", "--run", str(planting.judge), "--json"]
    done = run_command(planting.project, *command, environ=planting.environ, timeout=600)
    answer: dict[str, Any] = json.loads(done.stdout)
    return {**answer, "reported": " ".join(done.stderr.split())}


def require_planted(planting: WheelPlanting, culprit: dict[str, Any], good: int, between: tuple[int, ...]) -> None:
    assert (culprit["axis"], culprit["unit"]) == ("vllm", "vllm")
    assert (culprit["good"], culprit["bad"]) == (planting.commits[good], planting.commits[PLANTED])
    assert culprit["between"] == [planting.commits[place] for place in between]
    assert (culprit["title"], culprit["author"]) == ("[Core] Cache `answers`", "Somebody")
    assert culprit["files"] == ["vllm/number", "vllm/tools.py"]
    index = planting.index.replace("COMMIT", planting.commits[good])
    assert f'`vllm: {{wheel: vllm, index: "{index}"}}`' in culprit["now"]


@pytest.mark.long
def test_between_two_releases(endpoint: Endpoint, bisect_base: str, tmp_path: Path) -> None:
    with commit_wheels.planting(endpoint, tmp_path, bisect_base) as planting:
        planting.build("{wheel: vllm==0.31.0}", 1)
        planting.build("{wheel: vllm==0.32.0}", 2)
        answer = look(planting)
        (culprit,) = answer["culprits"]
        require_planted(planting, culprit, PLANTED - 1, ())
        # Beside the ten for 398 commits, those that cannot be had.
        assert answer["steps"] - answer["reported"].count("cannot be obtained") <= 1 + 10
        assert bisect_trials.left_over(endpoint, planting.project) == []


@pytest.mark.full
def test_between_two_commits_that_need_another_torch(endpoint: Endpoint, bisect_base: str, tmp_path: Path) -> None:
    with commit_wheels.planting(endpoint, tmp_path, bisect_base, torch=True) as planting:
        planting.build(planting.of_commit(7), 1)
        planting.build(planting.of_commit(390), 2)
        answer = look(planting)
        require_planted(planting, answer["culprits"][-1], PLANTED - 2, (PLANTED - 1,))
        # A wheel from before is not put beside the torch from after, where its failure would tell nothing.
        assert ([each["unit"] for each in answer["culprits"]], answer["joint"]) == (["package torch", "vllm"], True)
        assert "requires torch==1.0, but the image has 2.0" in answer["reported"]
        assert bisect_trials.left_over(endpoint, planting.project) == []
