"""The outlook of a build before it begins: how many compilers will run at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder import humanize
from builder.definitions.image_chain import BUILD_JOBS
from builder.engine import build_machine
from builder.plan import compile_jobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.building.planning import PlannedImage
    from builder.building.request import BuildRequest
    from builder.plan.compile_jobs import CompileJobs
    from builder.workspace import Workspace


@dataclass(frozen=True)
class BuildOutlook:
    """The outlook of the build of one image: the jobs of each source that may have to be compiled."""

    jobs: tuple[CompileJobs, ...]

    @property
    def lines(self) -> tuple[str, ...]:
        """The outlook in words."""
        return tuple(_jobs_line(jobs) for jobs in self.jobs)


def requested_jobs(request: BuildRequest) -> int | None:
    """The number of jobs that a request sets (it was checked when the definitions were read); None for as many as
    fit."""
    text = request.settings.get(BUILD_JOBS)
    return int(text) if text else None


def of_images(workspace: Workspace, request: BuildRequest, planned: Sequence[PlannedImage]) -> tuple[BuildOutlook, ...]:
    """Returns the outlook of each planned image; one that is there already has nothing ahead of it."""
    to_build = [image for image in planned if request.force or image.comparison.existing is None]
    if not to_build:
        return tuple(BuildOutlook(()) for _ in planned)
    there = build_machine.look(workspace.engine)
    machine = compile_jobs.BuildMachine(*((there.processors, there.free, there.total) if there else ()))
    jobs = requested_jobs(request)
    return tuple(
        BuildOutlook(compile_jobs.of_plan(image.plan, image.kept_steps, machine, jobs) if image in to_build else ())
        for image in planned
    )


def _jobs_line(jobs: CompileJobs) -> str:
    if jobs.jobs is None:
        return f"{jobs.source} is compiled by {jobs.reason}"
    most = "at most " if jobs.at_most else ""
    return f"{jobs.source} is compiled by {most}{humanize.counted(jobs.jobs, 'job')}: {jobs.reason}"
