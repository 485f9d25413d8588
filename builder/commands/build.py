"""The build verb: from a prepared plan to a numbered image, recorded with the models it is for."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.building import baking, checks, step_times, work_folder
from builder.distribution import registry, remote_builder
from builder.engine import images
from builder.engine.client import versions
from builder.errors import ImageStateError
from builder.lock.model import ImageName, Lock, NumberedImage, Pairing
from builder.numbered import images_lock
from builder.pinning import vendored

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from builder.building.prepare import Prepared
    from builder.engine.buildkit.bake import BakeResult
    from builder.engine.client.endpoint import Endpoint
    from builder.events import Report
    from builder.project import Project
    from builder.workspace import Workspace


@dataclass(frozen=True)
class Built:
    """What a build came to. ``seconds`` is the whole time, ``size`` in bytes; ``changes`` and ``new_layers`` count
    against the number before."""

    image: ImageName
    models: tuple[str, ...]
    changes: tuple[str, ...]
    seconds: float
    size: int
    layers: int
    new_layers: int
    steps: int
    cached_steps: int
    log: str


def run(workspace: Workspace, wanted: Sequence[Prepared], through: str | None = None) -> Iterator[Built]:
    """Builds prepared plans in one bake, then checks and records each; yields what came of it.

    What another BuildKit than the engine's own built is loaded as a whole; or comes ``through`` a registry, so that
    each side moves only the layers that the other lacks. The checks want it in this engine in any case.

    Raises BuildFailedError where a step or a check fails; lock, tags and numbers are then as they were, but for the
    images yielded before.
    """
    started = time.monotonic()
    host = versions.require_supported(workspace.engine).platform
    work_folder.remove_stale(workspace)
    remote_builder.require_reachable_bases(workspace.engine, (prepared.plan for prepared in wanted))
    for prepared in wanted:
        checks.require_local_base(workspace.engine, prepared.plan)
    with ExitStack() as stack:
        jobs = []
        for prepared in wanted:
            plan = prepared.plan
            place = stack.enter_context(work_folder.begin(workspace, plan.repository, plan.files))
            push_to = f"{through}/{plan.repository}" if through and workspace.engine.builds_elsewhere else ""
            jobs.append(baking.Job(place.directory, plan.definition.name, place, push_to))
        baked, log = baking.bake(workspace, jobs)
        for prepared, job, one in zip(wanted, jobs, baked, strict=True):
            step_times.keep(workspace.project, one.steps)
            if job.push_to:
                registry.pull_by_digest(workspace.engine, job.push_to, one.id, job.work.tag, workspace.report)
            details = _details(workspace.engine, job.work.tag)
            image = _checked(workspace.engine, prepared, job.work, one, details, host, workspace.report)
            candidate = images_lock.Candidate(job.work.tag, job.work.directory, details.id)
            name = _numbered(workspace, prepared, candidate, image)
            steps = [step for step in one.steps if not step.internal]
            yield Built(
                image=name,
                models=prepared.models,
                changes=prepared.compared.reasons,
                seconds=time.monotonic() - started,
                size=image.size,
                layers=len(details.layers),
                new_layers=_new_layers(workspace.engine, prepared, details),
                steps=len(steps),
                cached_steps=sum(step.cached for step in steps),
                log=workspace.project.relative(log),
            )


def _checked(
    endpoint: Endpoint,
    prepared: Prepared,
    place: work_folder.Work,
    baked: BakeResult,
    details: images.ImageDetails,
    host: str,
    report: Report,
) -> NumberedImage:
    """The record of a built image that has passed every check."""
    plan = prepared.plan
    checks.require_pinned_base(endpoint, plan, baked, details)
    checks.run(endpoint, place.tag, plan, place.labels, host, report)
    return NumberedImage(
        built=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        definition=plan.definition.name,
        platform=plan.definition.platform,
        fingerprint=images.fingerprint(details),
        input_hash=plan.input_hash,
        size=images.disk_size(endpoint, place.tag),
        recipe=prepared.recipe.file if prepared.recipe else None,
        versions=plan.versions,
        mods={mod.name: mod.content_hash for mod in plan.mods},
        builder=endpoint.instance if endpoint.builds_elsewhere else None,
    )


def _numbered(
    workspace: Workspace, prepared: Prepared, candidate: images_lock.Candidate, image: NumberedImage
) -> ImageName:
    _keep_diffs(workspace.project, prepared)
    with images_lock.transaction(workspace) as transaction:
        return transaction.give_number(
            prepared.plan.repository, candidate, lambda lock, name: _recorded(lock, name, image, prepared)
        )


def record_without_building(workspace: Workspace, prepared: Prepared, name: ImageName) -> None:
    """Records what ``prepared`` brings beside an image that is already built: its pins, and pairings for those of its
    models that no image serves yet.

    A model that was rolled back stays where it is: building again does not undo that.
    """
    _keep_diffs(workspace.project, prepared)
    with images_lock.transaction(workspace) as transaction:
        lock = _paired(_pinned(transaction.lock, prepared), name, prepared, prepared.unpaired)
        transaction.commit(lock)


def _keep_diffs(project: Project, prepared: Prepared) -> None:
    for one in prepared.plan.chain:
        vendored.keep(project, one.definition.name, one.pins, prepared.frozen)


def _pinned(lock: Lock, prepared: Prepared) -> Lock:
    for one in prepared.plan.chain:
        lock = lock.with_pins(one.definition.name, one.definition.platform, one.pins)
    return lock


def _details(endpoint: Endpoint, tag: str) -> images.ImageDetails:
    details = images.inspect(endpoint, tag)
    if details is None:
        raise ImageStateError("the image was removed from the engine while it was being checked", hint="build again")
    return details


def _new_layers(endpoint: Endpoint, prepared: Prepared, built: images.ImageDetails) -> int:
    """How many layers the number before does not have; all of them where there is none."""
    held = prepared.lock.images.get(prepared.plan.repository)
    last = f"{prepared.plan.repository}:{max(held.numbers)}" if held and held.numbers else None
    before = images.inspect(endpoint, last) if last else None
    return len(set(built.layers) - set(before.layers if before else ()))


def _recorded(lock: Lock, name: ImageName, built: NumberedImage, prepared: Prepared) -> Lock:
    lock = _pinned(lock.with_image(name, built), prepared)
    repository = lock.images[name.repository]
    if prepared.request.promote or repository.current is None:
        lock = lock.with_repository(name.repository, repository.with_current(name.number))
    return _paired(lock, name, prepared, prepared.models)


def _paired(lock: Lock, name: ImageName, prepared: Prepared, models: tuple[str, ...]) -> Lock:
    recipe = prepared.recipe
    for model in models:
        pairing = Pairing(image=name, recipe=recipe.file if recipe else None, revision=prepared.revisions.get(model))
        lock = lock.with_pairing(model, pairing)
    return lock
