"""The outlook of a build estimates its duration, its compilers and its disk space before it starts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from builder.base import words
from builder.base.errors import ConflictError
from builder.base.values import dataclass
from builder.building import bake
from builder.definitions.image import build_jobs
from builder.engine.machine import free_disk, read_build_machine
from builder.plan import rules

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.building.request import BuildRequest
    from builder.building.resolve import PlannedImage
    from builder.numbers.workspace import Workspace
    from builder.plan.rules import CompileJobs


_GB = 1_000_000_000
_WORTH_TELLING = 10 * _GB
_TITLE = re.compile(r"<<'EOF'\n# (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Expectation:
    """An amount that a build is expected to take, and the origin of the estimate."""

    amount: float
    origin: str


@dataclass(frozen=True)
class BuildOutlook:
    """The outlook of the build of one image: the jobs of each source that may have to be compiled; the expected seconds
    and bytes, None if unknown; and the folder of the engine's images with its free bytes, empty and None if the folder
    is not on this machine."""

    definition: str
    jobs: tuple[CompileJobs, ...] = ()
    seconds: Expectation | None = None
    disk: Expectation | None = None
    data_root: str = ""
    free: int | None = None

    @property
    def lines(self) -> tuple[str, ...]:
        costs = []
        if self.seconds:
            costs.append(f"{words.duration_text(self.seconds.amount)} ({self.seconds.origin})")
        if self.disk:
            free = "" if self.free is None else f"; {self.data_root} has {words.size_text(self.free)} free"
            costs.append(f"{words.size_text(int(self.disk.amount))} of disk ({self.disk.origin}{free})")
        expected = (f"expected: {', '.join(costs)}",) if costs else ()
        return (*map(str, self.jobs), *expected)


def of_images(workspace: Workspace, request: BuildRequest, planned: Sequence[PlannedImage]) -> tuple[BuildOutlook, ...]:
    """Returns the outlook of each planned image. For an existing image, the outlook is empty."""
    is_ahead = [request.force or image.comparison.existing is None for image in planned]
    there = read_build_machine(workspace.engine) if any(is_ahead) else None
    machine, data_root = (rules.BuildMachine(*there[:3]), there[3]) if there else (rules.BuildMachine(), "")
    free, compilers = free_disk(data_root), build_jobs(request.settings)
    return tuple(
        BuildOutlook(
            definition=image.plan.definition.name,
            jobs=rules.of_plan(image.plan, image.kept_steps, machine, compilers),
            seconds=_seconds(workspace.project, image),
            disk=_disk(image),
            data_root=data_root,
            free=free,
        )
        if ahead
        else BuildOutlook(image.plan.definition.name)
        for image, ahead in zip(planned, is_ahead, strict=True)
    )


def require_room(outlooks: Sequence[BuildOutlook]) -> None:
    """Raises ConflictError if the engine's disk probably has no room for all images together."""
    expected = [outlook for outlook in outlooks if outlook.disk and outlook.free is not None]
    if not expected:
        return
    needed = sum(int(outlook.disk.amount) for outlook in expected if outlook.disk)
    free, data_root = expected[0].free or 0, expected[0].data_root
    if needed <= free:
        return
    names = " and ".join(outlook.definition for outlook in expected)
    origins = ", ".join(dict.fromkeys(outlook.disk.origin for outlook in expected if outlook.disk))
    raise ConflictError(
        f"building {names} needs {words.size_text(needed)} of disk space ({origins}), but {data_root} has only "
        f"{words.size_text(free)} free. Nothing was built",
        hint="make room with `builder prune` and `docker buildx prune`; to build anyway, add `--ignore-disk` to"
        " `builder build`",
    )


def _seconds(project: Project, image: PlannedImage) -> Expectation | None:
    """The total duration of the steps that may have to run; unknown if a compiling step never ran here."""
    parts = rules.changed_parts(image.plan, image.kept_steps)
    titles = [title for part in parts for title in _TITLE.findall(part.files["Dockerfile"].content.decode())]
    compiling, times = set(filter(bake.compiles, titles)), bake.load_step_times(project).seconds
    if compiling and compiling <= times.keys():
        return Expectation(sum(times.get(title, 0.0) for title in titles), "as long as its steps took before")
    minutes = sum(part.definition.first_build.minutes or 0 for part in parts)
    return Expectation(minutes * 60.0, "from image.yaml") if minutes else None


def _disk(image: PlannedImage) -> Expectation | None:
    """The space that image.yaml gives for the first build; for a later build, at least the size of the previous number.
    A few gigabytes are not reported."""
    parts = rules.changed_parts(image.plan, image.kept_steps)
    if not parts:
        return None
    figures = sum(part.definition.first_build.disk_gb or 0 for part in parts) * _GB
    repository = image.lock.images.get(image.plan.repository)
    if figures and not image.kept_steps:
        expected = Expectation(figures, "from image.yaml")
    elif repository and repository.numbers:
        last = max(repository.numbers)
        expected = Expectation(repository.numbers[last].size, f"the size of {image.plan.repository}:{last}")
    else:
        return None
    return expected if expected.amount >= _WORTH_TELLING else None
