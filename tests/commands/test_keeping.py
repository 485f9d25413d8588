"""What a prune plan frees, and when there is nothing to do; what goes is tested in an engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.commands.keeping import PrunePlan, RemovableImage
from builder.lab.checkpoints.conversion import RemovableCheckpoint
from builder.lock.model import ImageName
from builder.serving.compile_caches import CompileCache

NOTHING = PrunePlan((), {}, (), (), {}, 0)
NAME = ImageName("small", 1)
CACHE = CompileCache(NAME, Path("/caches/small/1"), 3)
CHECKPOINT = RemovableCheckpoint("tiny", "", (Path("/checkpoints/tiny"),), 5)


def test_where_nothing_would_go_the_plan_is_empty() -> None:
    assert NOTHING.is_empty
    assert NOTHING.frees == 0


@pytest.mark.parametrize(
    ("part", "frees"),
    [
        ({"going": (RemovableImage(NAME, "2026-11-20T12:00:00Z", 7),), "layers": 7}, 7),
        ({"nameless": ("sha256:1",)}, 0),
        ({"compiled": (CACHE, replace(CACHE, size=8))}, 11),
        ({"fetched": {Path("/wheels/x"): 2, Path("/downloads/x"): 4}}, 6),
        ({"checkpoints": (CHECKPOINT, CHECKPOINT)}, 10),
    ],
)
def test_each_part_of_a_plan_is_something_to_remove(part: dict[str, Any], frees: int) -> None:
    plan = replace(NOTHING, **part)
    assert not plan.is_empty
    assert plan.frees == frees
