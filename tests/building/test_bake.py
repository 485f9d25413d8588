"""A proxy's password is a secret of each step, and no build argument."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.base.project import Project
from builder.building import bake
from builder.building.work_folder import WorkFolder
from builder.engine.build_log import StepFinished

if TYPE_CHECKING:
    from pathlib import Path


MOUNTS = "--mount=type=secret,id=P,env=P --mount=type=secret,id=P,env=p "
DOCKERFILE = """\
# RUN comment
ARG A=1
FROM base AS one
RUN echo one
  run --mount=type=cache,target=/x \\
    # RUN a comment in between

    RUN=two echo \\
    RUN three
RUN <<'EOF' cat <<-"END" > /x
RUN not an instruction
EOF
RUN neither
\tEND
RUN ["list"]
COPY <<EOF /file
RUN content
EOF
RUN echo $((1<<A)) <<EOF2
RUN no
EOF2
SHELL ["RUN"]
RUN \\
  last"""


def test_each_step_gets_them_and_nothing_else_changes() -> None:
    mounted = bake.mounted(DOCKERFILE, ["P"])
    lines = mounted.split("\n")
    assert mounted.replace(MOUNTS, "") == DOCKERFILE
    assert [number for number, line in enumerate(lines, start=1) if MOUNTS in line] == [4, 5, 10, 15, 19, 23]
    assert lines[4].startswith(f"  run {MOUNTS}--mount=type=cache")


@pytest.mark.parametrize(
    ("address", "is_secret"),
    [
        ("http://proxy:3128", False),
        ("proxy:3128", False),
        ("10.0.0.0/8,.lan", False),
        ("http://ann:pw@proxy:3128", True),
        ("ann:pw@proxy:3128", True),
        ("http://token@proxy", True),
        ("socks5h://ann:p%40w@proxy", True),
    ],
)
def test_what_has_a_login_is_a_secret(address: str, is_secret: bool) -> None:
    arguments, logins = bake.split([("HTTPS_PROXY", address)])
    assert (arguments, logins) == (({}, {"HTTPS_PROXY": address}) if is_secret else ({"HTTPS_PROXY": address}, {}))


def test_each_image_of_a_build_has_its_own_cache_in_the_registry(tmp_path: Path) -> None:
    work = WorkFolder("w", tmp_path, "")
    jobs = [bake.BakeJob(name, {"image": {"context": "."}}, work) for name in ("small", "TF5")]
    common: dict[str, object] = {"args": {}, "secret": [], "contexts": {}}
    targets = bake._targets(jobs, common, {}, {}, "registry.lan/ann")
    places = [f"type=registry,ref=registry.lan/ann/{name}:buildcache" for name in ("small", "tf5")]
    assert [target["cache-from"] for target in targets.values()] == [[place] for place in places]
    assert [target["cache-to"] for target in targets.values()] == [
        [f"{place},mode=max,ignore-error=true"] for place in places
    ]
    assert not any("cache" in key for key in bake._targets(jobs, common, {}, {}, "")["small-1"])


# The times of steps, stored from build to build.


def test_the_latest_time_of_a_step_counts_wherever_it_stands(tmp_path: Path) -> None:
    project = Project(tmp_path)
    bake.store_step_times(
        project,
        [
            StepFinished("a", "[2/5] RUN make", seconds=40.0),
            StepFinished("a", "[3/5] RUN <<EOF (# mod x...)", seconds=2.5),
        ],
    )
    bake.store_step_times(project, [StepFinished("a", "[tf5-1 stage-0 4/9] RUN make", seconds=61.0)])
    assert bake.load_step_times(project).seconds == {"mod x": 2.5, "RUN make": 61.0}


def test_what_says_nothing_about_next_time_is_left_out(tmp_path: Path) -> None:
    project = Project(tmp_path)
    steps = [
        StepFinished("a", "[2/5] RUN quick", seconds=0.4),
        StepFinished("a", "[3/5] RUN kept", cached=True),
        StepFinished("a", "[4/5] RUN broken", seconds=30.0, error="exit code: 1"),
        StepFinished("a", "[internal] load build context", seconds=5.0),
    ]
    bake.store_step_times(project, steps)
    assert bake.load_step_times(project).seconds == {}
    assert not project.state.exists()


def test_a_damaged_memory_is_no_memory(tmp_path: Path) -> None:
    project = Project(tmp_path)
    bake.store_step_times(project, [StepFinished("a", "[1/1] RUN make", seconds=9.0)])
    (project.state / "steptimes.json").write_text("{")
    assert bake.load_step_times(project).seconds == {}
