"""The third step of a build: BuildKit makes all images in one go."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.building import baking, step_times, work_folder
from builder.distribution import registry, remote_builder
from builder.engine import images
from builder.engine.client import versions
from builder.errors import ImageStateError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from builder.building.planning import PlannedImage
    from builder.building.work_folder import Work
    from builder.engine.buildkit.bake import BakeResult
    from builder.engine.client.endpoint import Endpoint
    from builder.plan.model import Plan
    from builder.workspace import Workspace


@dataclass(frozen=True)
class BakedImage:
    """An image that BuildKit has made, in the engine under the temporary tag of its ``work``. ``host_platform`` is the
    engine's own; ``log`` names the file with the whole output."""

    planned: PlannedImage
    work: Work
    result: BakeResult
    details: images.ImageDetails
    host_platform: str
    log: str


@contextmanager
def baked_images(
    workspace: Workspace, planned: Sequence[PlannedImage], registry_address: str | None
) -> Iterator[Iterator[BakedImage]]:
    """Bakes the planned images, what they share once, and gives them one after the other; what has got no number by the
    end of the block is removed.

    What another BuildKit than the engine's own makes is loaded as a whole, or comes through a registry, where its
    address is given, so that each side moves only the layers that the other lacks. Raises BuildFailedError where a step
    fails, and UsageError and ImageStateError for a base image that is not what it was.
    """
    engine = workspace.engine
    host_platform = versions.require_supported(engine).platform
    work_folder.remove_stale(workspace)
    remote_builder.require_reachable_bases(engine, (image.plan for image in planned))
    for image in planned:
        _require_local_base(engine, image.plan)
    with ExitStack() as stack:
        jobs = []
        for image in planned:
            plan = image.plan
            work = stack.enter_context(work_folder.begin(workspace, plan.repository, plan.files))
            push_to = f"{registry_address}/{plan.repository}" if registry_address and engine.builds_elsewhere else ""
            jobs.append(baking.Job(work.directory, plan.definition.name, work, push_to))
        results, log = baking.bake(workspace, jobs)

        def one_by_one() -> Iterator[BakedImage]:
            for image, job, result in zip(planned, jobs, results, strict=True):
                step_times.keep(workspace.project, result.steps)
                if job.push_to:
                    registry.pull_by_digest(engine, job.push_to, result.id, job.work.tag, workspace.report)
                details = _details(engine, job.work.tag)
                yield BakedImage(image, job.work, result, details, host_platform, workspace.project.relative(log))

        yield one_by_one()


def _details(engine: Endpoint, tag: str) -> images.ImageDetails:
    details = images.inspect(engine, tag)
    if details is None:
        raise ImageStateError("the image was removed from the engine while it was being checked", hint="build again")
    return details


def _require_local_base(engine: Endpoint, plan: Plan) -> None:
    """Looks again at a base that only this engine has, since a tag says nothing about its content. Raises
    ImageStateError where it is another one."""
    from builder.engine import base_image

    pin = plan.chain[0].pins.base
    if pin is None or not pin.resolved.startswith("local:"):
        return
    found = base_image.local_fingerprint(engine, pin.requested)
    if found != pin.resolved.removeprefix("local:"):
        here = f"this engine has {found} under that name" if found else "this engine has no such image"
        raise ImageStateError(
            f"the base image {pin.requested} is pinned as {pin.resolved}, which no registry holds; {here}",
            hint="`--update base` pins the base anew",
        )
