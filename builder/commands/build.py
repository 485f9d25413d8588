"""The build command on one page: resolve, plan, bake, verify, commit."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from builder.building import result_cache
from builder.building.request import AlreadyBuilt, Built
from builder.events import Message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.building.baked_image import BakedImage
    from builder.building.outlook import BuildOutlook
    from builder.building.planning import PlannedImage
    from builder.building.request import BuildRequest, HeldPointer
    from builder.commands.push import PushedImage
    from builder.lock.model import ImageName, Lock, NumberedImage
    from builder.proving.keeping import ProvedImage
    from builder.workspace import Workspace


def run(workspace: Workspace, request: BuildRequest) -> Iterator[AlreadyBuilt | Built | PushedImage]:
    """Builds the targets of a request, and yields the result of each, first of those with nothing to build.

    Raises what `resolution.resolve`, `planning.plan_all` and `baked_image.baked_images` do, ConflictError where the
    engine's disk is too small, and BuildFailedError where a check fails; lock, tags and numbers are then as they were,
    but for the images yielded before.
    """
    key = result_cache.cache_key(workspace, request)
    if key and (remembered := result_cache.look_up(workspace, key)):
        yield from remembered
        return
    # Only now: these take longer to import than all of the above.
    from builder.building import (
        baked_image,
        build_costs,
        commit,
        held_back,
        outlook,
        planning,
        proof,
        resolution,
        verification,
        work_folder,
    )
    from builder.definitions.image_chain import build_jobs
    from builder.distribution import remote_builder
    from builder.proving import keeping

    work_folder.recover(workspace)
    registry = _registry(workspace) if request.push else None
    resolved = resolution.resolve(workspace, request)
    planned = planning.plan_all(workspace, resolved)

    existing, to_build = planning.split(planned, force=request.force)
    outcomes = [commit.commit_existing(workspace, image, number, request) for image, number in existing]
    yield from outcomes
    if key and not to_build:
        result_cache.store(key, planned, outcomes)

    numbers = [number for _, number in existing]
    if to_build:
        workspace = remote_builder.with_builder(workspace, request.builder)
        outlooks = outlook.of_images(workspace, request, to_build)
        for image, ahead in zip(to_build, outlooks, strict=True):
            _report_reasons(workspace, image, ahead)
        if not request.ignore_disk:
            outlook.require_room(outlooks)
        compilers = build_jobs(request.settings)
        started = time.monotonic()
        with (
            build_costs.measured(workspace.project, outlooks[0].disk_kind, outlooks[0].data_root, len(outlooks)),
            baked_image.baked_images(workspace, to_build, registry, compilers) as baked_images,
        ):
            for baked in baked_images:
                record = verification.verify(workspace, baked)
                proofs = proof.of_build(workspace, baked, record, request)
                moves = commit.moves_of(workspace, baked.planned, request)
                number = commit.commit(workspace, baked, record, moves)
                numbers.append(number)
                kept = tuple(keeping.keep(workspace.project, number, each) for each in proofs)
                waiting = held_back.move(workspace, baked.planned, number, request) if moves.waiting else ()
                yield _built(workspace, baked, record, number, kept, waiting, time.monotonic() - started)
    if registry:
        from builder.commands import push

        yield from push.run(workspace, tuple(map(str, numbers)))


def preview(workspace: Workspace, request: BuildRequest) -> tuple[tuple[PlannedImage, BuildOutlook], ...]:
    """Plans as `run` does, and tells what is ahead of each image; nothing is written. Raises what `resolution.resolve`
    and `planning.plan_all` do."""
    from builder.building import outlook, planning, resolution
    from builder.distribution import remote_builder

    if request.push:
        _registry(workspace)
    planned = planning.plan_all(workspace, resolution.resolve(workspace, request))
    workspace = remote_builder.with_builder(workspace, request.builder)
    return tuple(zip(planned, outlook.of_images(workspace, request, planned), strict=True))


def _built(
    workspace: Workspace,
    baked: BakedImage,
    record: NumberedImage,
    number: ImageName,
    proofs: tuple[ProvedImage, ...],
    waiting: tuple[HeldPointer, ...],
    seconds: float,
) -> Built:
    from builder.building import commit

    steps = [step for step in baked.result.steps if not step.internal]
    models = tuple(model for model in baked.planned.models if model not in {each.what for each in waiting})
    lock = baked.planned.lock
    before = {model: lock.models[model].pairing.image for model in models if model in lock.models}
    return Built(
        image=str(number),
        models=models,
        taken_from={model: str(name) for model, name in before.items() if name.repository != number.repository},
        changes=(*baked.planned.comparison.reasons, *_reason_of_number(workspace, lock, number)),
        seconds=seconds,
        size=record.size,
        layers=len(baked.details.layers),
        new_layers=commit.new_layers(workspace, baked),
        steps=len(steps),
        cached_steps=sum(step.cached for step in steps),
        compiled=baked.result.compiled,
        log=baked.log,
        waiting=waiting,
        proofs=proofs,
        current=_current(workspace, number),
    )


def _current(workspace: Workspace, number: ImageName) -> str:
    """The current image of a number's repository; empty where there is none."""
    from builder.lock import reading

    current = reading.of(workspace.project).images[number.repository].current
    return f"{number.repository}:{current}" if current else ""


def _reason_of_number(workspace: Workspace, lock: Lock, number: ImageName) -> tuple[str, ...]:
    """The reason why the first image of a repository in images.lock is not its number 1."""
    repository = lock.images.get(number.repository)
    if number.number == 1 or (repository and repository.numbers):
        return ()
    from builder.numbered import next_number

    return (f"it is number {number.number}: {next_number.reason(workspace, number)}",)


def _registry(workspace: Workspace) -> str:
    from builder.definitions import configuration

    return configuration.load(workspace.project).required_registry()


def _report_reasons(workspace: Workspace, image: PlannedImage, ahead: BuildOutlook) -> None:
    plan, comparison = image.plan, image.comparison
    lines = list(plan.warnings)
    if comparison.existing:
        lines.append(f"building again, as asked: {comparison.existing} has the same inputs")
    else:
        lines.append(f"building {plan.repository} for {plan.definition.platform}, because")
        lines += [f"  {reason}" for reason in comparison.reasons]
    lines += ahead.lines
    for line in lines:
        workspace.report(Message(line))
