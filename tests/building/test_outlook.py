"""The outlook of a build: from what earlier ones here took, else from what image.yaml says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.base.errors import ConflictError
from builder.base.events import ignore
from builder.base.project import Project
from builder.building import bake, outlook
from builder.building.outlook import BuildOutlook, Expectation
from builder.building.request import BuildRequest
from builder.building.resolve import Comparison, PlannedImage
from builder.engine.build_log import StepFinished
from builder.engine.client import Endpoint
from builder.lock.model import ImageName, Lock, NumberedImage
from builder.numbers.workspace import Workspace
from tests.plan import shipped

if TYPE_CHECKING:
    from pathlib import Path


GB = 1_000_000_000


def planned(name: str = "tf5", mode: str = "git", kept: int = 0, lock: Lock | None = None) -> PlannedImage:
    plan = shipped.plan(name, mode, "linux/arm64")
    comparison = Comparison(None, plan.steps[:kept], ("because",))
    return PlannedImage(plan, None, (), {}, lock or Lock(), {}, comparison)


def looked(root: Path, image: PlannedImage) -> BuildOutlook:
    """The outlook where the machine that builds is not known."""
    workspace = Workspace(Project(root), Endpoint("unix:///nowhere", (), "a test", instance="elsewhere"), {}, ignore)
    (ahead,) = outlook.of_images(workspace, BuildRequest(("tf5",)), [image])
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

    outlook.require_room([ahead("tf5", 70 * GB, 71 * GB), BuildOutlook("cpu")])
    outlook.require_room([ahead("tf5", 70 * GB, None)])
    with pytest.raises(ConflictError) as refused:
        outlook.require_room([ahead("tf5", 70 * GB, 100 * GB), ahead("dflash", 70 * GB, 100 * GB)])
    assert refused.value.message == (
        "building tf5 and dflash needs 140 GB of disk space (from image.yaml), but /var/lib/docker has only "
        "100 GB free. Nothing was built"
    )
    assert "--ignore-disk" in refused.value.hint
