"""The third step of a build: BuildKit bakes all images in one run."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.building import bake_run, step_times, work_folder
from builder.distribution import registry, remote_builder
from builder.engine import images
from builder.engine.client import versions
from builder.errors import ImageStateError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from builder.building.planning import PlannedImage
    from builder.building.work_folder import WorkFolder
    from builder.engine.buildkit.bake import BakeResult
    from builder.engine.client.endpoint import Endpoint
    from builder.plan.model import Plan
    from builder.workspace import Workspace


@dataclass(frozen=True)
class BakedImage:
    """An image that BuildKit has made, in the engine under the temporary tag of its ``work`` folder. ``host_platform``
    is the engine's own; ``log`` names the file with the whole output."""

    planned: PlannedImage
    work: WorkFolder
    result: BakeResult
    details: images.ImageDetails
    host_platform: str
    log: str


@contextmanager
def baked_images(
    workspace: Workspace, planned: Sequence[PlannedImage], registry_address: str | None, compilers: int | None
) -> Iterator[Iterator[BakedImage]]:
    """Bakes the planned images, what they share only once, and yields an iterator over the results; an image that has
    no number by the end of the block is removed.

    Images built by another BuildKit than the engine's own are loaded as a whole or, where ``registry_address`` is
    given, go through that registry, so that only the layers that either side lacks are transferred. ``compilers`` as
    for `bake_run.bake`. Raises BuildFailedError where a step fails, and UsageError and ImageStateError for a base image
    that has changed.
    """
    engine = workspace.engine
    host_platform = versions.require_supported(engine).platform
    work_folder.remove_stale(workspace)
    remote_builder.require_reachable_bases(engine, (image.plan for image in planned))
    for image in planned:
        _require_local_base(engine, image.plan)
        work_folder.require_writable(workspace.project, image.plan.repository)
    with ExitStack() as stack:
        jobs = []
        for image in planned:
            plan = image.plan
            work = stack.enter_context(work_folder.create(workspace, plan.repository, plan.files))
            push_to = f"{registry_address}/{plan.repository}" if registry_address and engine.builds_elsewhere else ""
            jobs.append(bake_run.BakeJob(work.directory, plan.definition.name, plan.targets, work, push_to))
        results, log = bake_run.bake(workspace, jobs, compilers=compilers)

        def baked_one_by_one() -> Iterator[BakedImage]:
            for image, job, result in zip(planned, jobs, results, strict=True):
                step_times.store(workspace.project, result.steps)
                if job.push_to:
                    registry.pull_by_digest(engine, job.push_to, result.id, job.work.tag, workspace.report)
                details = _details(engine, job.work.tag)
                yield BakedImage(image, job.work, result, details, host_platform, workspace.project.relative(log))

        yield baked_one_by_one()


def _details(engine: Endpoint, tag: str) -> images.ImageDetails:
    details = images.inspect(engine, tag)
    if details is None:
        raise ImageStateError("the image was removed from the engine while it was being checked", hint="build again")
    return details


def _require_local_base(engine: Endpoint, plan: Plan) -> None:
    """Checks a base that only this engine has, since its tag may have moved. Raises ImageStateError where its content
    is not what is pinned."""
    from builder.engine import base_image

    pin = plan.chain[0].pins.base
    if pin is None or not pin.resolved.startswith("local:"):
        return
    fingerprint = base_image.local_fingerprint(engine, pin.requested)
    if fingerprint != pin.resolved.removeprefix("local:"):
        here = f"this engine has {fingerprint} under that name" if fingerprint else "this engine has no such image"
        raise ImageStateError(
            f"the base image {pin.requested} is pinned as {pin.resolved}, which no registry holds; {here}",
            hint=f"`builder lock {plan.definition.name} --update base` pins the base again",
        )
