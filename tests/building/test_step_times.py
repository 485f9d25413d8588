"""The times of steps, stored from build to build."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.base.project import Project
from builder.building import bake
from builder.engine.build_log import BuildStep

if TYPE_CHECKING:
    from pathlib import Path


def test_the_latest_time_of_a_step_counts_wherever_it_stands(tmp_path: Path) -> None:
    project = Project(tmp_path)
    bake.store_step_times(
        project, [BuildStep("[2/5] RUN make", seconds=40.0), BuildStep("[3/5] RUN <<EOF (# mod x...)", seconds=2.5)]
    )
    bake.store_step_times(project, [BuildStep("[tf5-1 stage-0 4/9] RUN make", seconds=61.0)])
    assert bake.load_step_times(project).seconds == {"mod x": 2.5, "RUN make": 61.0}


def test_what_says_nothing_about_next_time_is_left_out(tmp_path: Path) -> None:
    project = Project(tmp_path)
    steps = [
        BuildStep("[2/5] RUN quick", seconds=0.4),
        BuildStep("[3/5] RUN kept", cached=True),
        BuildStep("[4/5] RUN broken", seconds=30.0, error="exit code: 1"),
        BuildStep("[internal] load build context", seconds=5.0),
    ]
    bake.store_step_times(project, steps)
    assert bake.load_step_times(project).seconds == {}
    assert not project.state.exists()


def test_a_damaged_memory_is_no_memory(tmp_path: Path) -> None:
    project = Project(tmp_path)
    bake.store_step_times(project, [BuildStep("[1/1] RUN make", seconds=9.0)])
    (project.state / "steptimes.json").write_text("{")
    assert bake.load_step_times(project).seconds == {}
