"""A fault in one commit of vLLM, named where both numbers take vLLM as a wheel."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.commands import bisect_trials, commit_wheels
from tests.commands.commit_wheels import MISSING, PLANTED

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from builder.engine.client.endpoint import Endpoint
    from tests.commands.commit_wheels import WheelPlanting

pytestmark = pytest.mark.engine


def look(planting: WheelPlanting) -> dict[str, Any]:
    command = ["bisect", "trial", "--no-serve", "--good", "1", "--bad", "2", "--run", str(planting.judge), "--json"]
    answer: dict[str, Any] = json.loads(planting.builder(*command))
    return answer


def require_planted(planting: WheelPlanting, answer: dict[str, Any]) -> None:
    (culprit,) = answer["culprits"]
    assert (culprit["axis"], culprit["unit"]) == ("vllm", "vllm")
    assert culprit["bad"] == planting.commits[PLANTED]
    # The one before has no wheel, so that it may be that one as well.
    assert PLANTED - 1 in MISSING
    assert culprit["between"] == [planting.commits[PLANTED - 1]]
    assert culprit["good"] == planting.commits[PLANTED - 2]
    assert (culprit["title"], culprit["author"]) == ("[Core] Cache `answers`", "Somebody")
    assert culprit["files"] == ["vllm/number", "vllm/tools.py"]
    index = planting.index.replace("COMMIT", planting.commits[PLANTED - 2])
    assert f'`vllm: {{wheel: vllm, index: "{index}"}}`' in culprit["now"]


def test_between_two_releases(endpoint: Endpoint, bisect_base: str, tmp_path: Path) -> None:
    with commit_wheels.planting(endpoint, tmp_path, bisect_base) as planting:
        planting.build("{wheel: vllm==0.31.0}", 1)
        planting.build("{wheel: vllm==0.32.0}", 2)
        answer = look(planting)
        require_planted(planting, answer)
        assert bisect_trials.left_over(endpoint, planting.project) == []


@pytest.mark.full
def test_between_two_commits(endpoint: Endpoint, bisect_base: str, tmp_path: Path) -> None:
    with commit_wheels.planting(endpoint, tmp_path, bisect_base) as planting:
        planting.build(planting.of_commit(7), 1)
        planting.build(planting.of_commit(390), 2)
        require_planted(planting, look(planting))
        assert bisect_trials.left_over(endpoint, planting.project) == []
