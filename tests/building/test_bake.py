"""A proxy's password is a secret of each step, and no build argument. The outlook comes from earlier builds, or else
from image.yaml."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.base.errors import ConflictError
from builder.base.events import ignore
from builder.base.project import Project
from builder.building import bake
from builder.building.bake import BuildOutlook, Expectation
from builder.building.request import BuildRequest
from builder.building.resolve import Comparison, PlannedImage
from builder.building.work_folder import WorkFolder
from builder.engine.build_log import StepFinished
from builder.engine.client import Endpoint
from builder.lock.model import ImageName, Lock, NumberedImage
from builder.numbers.workspace import Workspace
from tests.plan import shipped

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


GB = 1_000_000_000


def planned(name: str = "tf5", mode: str = "git", kept: int = 0, lock: Lock | None = None) -> PlannedImage:
    plan = shipped.plan(name, mode, "linux/arm64")
    comparison = Comparison(None, plan.steps[:kept], ("because",))
    return PlannedImage(plan, None, (), {}, lock or Lock(), {}, comparison)


def looked(root: Path, image: PlannedImage) -> BuildOutlook:
    """The outlook where the machine that builds is not known."""
    workspace = Workspace(Project(root), Endpoint("unix:///nowhere", (), "a test", instance="elsewhere"), {}, ignore)
    (ahead,) = bake.build_outlooks(workspace, BuildRequest(("tf5",)), [image])
    return ahead


def test_a_first_build_takes_what_the_definition_says(tmp_path: Path) -> None:
    ahead = looked(tmp_path, planned())
    assert ahead.lines == (
        "flashinfer is compiled by as many jobs as fit into the build machine's memory, at 8 GiB a job",
        "vllm is compiled by as many jobs as fit into the build machine's memory, at 8 GiB a job",
        "expected: 3 h 00 min (from image.yaml), 70.0 GB of disk (from image.yaml)",
    )


def test_a_later_one_takes_what_its_steps_took_here(tmp_path: Path) -> None:
    project = Project(tmp_path)
    times = {"the flashinfer wheel": 3000.0, "the vllm wheel": 4000.0, "the Python packages": 200.0, "mod other": 9.0}
    bake.store_step_times(
        project, [StepFinished("a", f"[x 1/2] RUN <<EOF (# {title})", seconds=t) for title, t in times.items()]
    )
    ahead = looked(tmp_path, planned())
    assert ahead.seconds == Expectation(7200.0, "as long as its steps took before")
    assert ahead.disk == Expectation(70 * GB, "from image.yaml")


def test_a_build_on_what_is_there_takes_at_least_what_the_number_before_has(tmp_path: Path) -> None:
    record = NumberedImage("2026-11-01T00:00:00Z", "tf5", "linux/arm64", "sha256:f", "sha256:i", size=21 * GB)
    lock = Lock().with_image(ImageName("vllm-node-tf5", 3), record)
    assert looked(tmp_path, planned(kept=1, lock=lock)).disk == Expectation(21 * GB, "the size of vllm-node-tf5:3")


def test_other_mods_take_nothing_worth_telling(tmp_path: Path) -> None:
    steps = [step.name for step in planned().plan.steps]
    assert looked(tmp_path, planned(kept=steps.index("Dockerfile") + 1)).lines == ()
    assert looked(tmp_path, planned("cpu", "wheel")).lines == ()


def test_what_does_not_fit_is_refused_with_the_figures() -> None:
    def ahead(definition: str, amount: int, free: int | None) -> BuildOutlook:
        disk = Expectation(amount, "from image.yaml")
        return BuildOutlook(definition, disk=disk, data_root="/var/lib/docker", free=free)

    bake.require_room([ahead("tf5", 70 * GB, 71 * GB), BuildOutlook("cpu")])
    bake.require_room([ahead("tf5", 70 * GB, None)])
    with pytest.raises(ConflictError) as refused:
        bake.require_room([ahead("tf5", 70 * GB, 100 * GB), ahead("dflash", 70 * GB, 100 * GB)])
    assert refused.value.message == (
        "building tf5 and dflash needs 140 GB of disk space (from image.yaml), but /var/lib/docker has only "
        "100 GB free. Nothing was built"
    )
    assert "--ignore-disk" in refused.value.hint
