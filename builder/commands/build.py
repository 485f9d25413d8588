"""The build command on one page: resolve, plan, bake, verify, commit."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from builder.building import result_cache
from builder.building.request import AlreadyBuilt, Built
from builder.errors import BaseGoneError, BuildFailedError, ConflictError, SourceError, UsageError
from builder.events import Message

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from builder.building.baked_image import BakedImage
    from builder.building.outlook import BuildOutlook
    from builder.building.planning import PlannedImage
    from builder.building.request import BuildRequest, HeldPointer
    from builder.commands.push import PushedImage
    from builder.evidence.proof import ProvedImage
    from builder.lock.model import ImageName, Lock, NumberedImage
    from builder.project import Project
    from builder.workspace import Workspace


def run(workspace: Workspace, request: BuildRequest) -> Iterator[AlreadyBuilt | Built | PushedImage]:
    """Builds the targets of a request, and yields the result of each, first of those with nothing to build. Where the
    registry does not give a pinned base, this engine's own copy takes its place, and is what is pinned then.

    Raises what `_results` does.
    """
    yielded: list[AlreadyBuilt | Built | PushedImage] = []
    try:
        for result in _results(workspace, request):
            yielded.append(result)
            yield result
    except BaseGoneError as gone:
        if request.locked or request.local_base:
            raise
        from builder.building import resolution

        local = replace(request, local_base=True)
        try:
            resolution.resolve(workspace, local)
        except SourceError:
            raise gone from None
        workspace.report(Message(f"{gone.message.splitlines()[0]}\nbuilding on this engine's own copy of the base"))
        yield from (result for result in _results(workspace, local) if result not in yielded)


def _results(workspace: Workspace, request: BuildRequest) -> Iterator[AlreadyBuilt | Built | PushedImage]:
    """The results of a build on the bases that are pinned.

    Raises what `resolution.resolve`, `planning.plan_all` and `baked_image.baked_images` do, ConflictError where the
    engine's disk is too small, and BuildFailedError where a check fails; lock, tags and numbers are then as they were,
    but for the images yielded before. An image whose proof fails is yielded, too: it keeps its number, is not pushed,
    moves no pointer, and BuildFailedError is raised at the end.
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
        mod_checks,
        outlook,
        planning,
        proof,
        resolution,
        verification,
        work_folder,
    )
    from builder.definitions.image_chain import build_jobs
    from builder.distribution import remote_builder
    from builder.evidence.proof import keep_proof

    work_folder.recover(workspace)
    registry = _registry(workspace) if request.push else None
    resolved = resolution.resolve(workspace, request)
    planned = planning.plan_all(workspace, resolved)
    mod_checks.require_known([image.plan for image in planned], request.without_checks)

    existing, to_build = planning.split(planned, force=request.force)
    outcomes = [commit.commit_existing(workspace, image, number, request) for image, number in existing]
    yield from outcomes
    if key and not to_build:
        result_cache.store(key, planned, outcomes)

    results: list[AlreadyBuilt | Built] = [*outcomes]
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
                record = verification.verify(workspace, baked, request.without_checks)
                proofs = proof.of_build(workspace, baked, record, request)
                moves = commit.moves_of(workspace, baked.planned, request, proofs)
                number = commit.commit(workspace, baked, record, moves)
                kept = tuple(keep_proof(workspace.project, number, each) for each in proofs)
                models_held = moves.waiting
                waiting = held_back.move(workspace, baked.planned, number, request, models_held) if models_held else ()
                results.append(_built(workspace, baked, record, number, kept, waiting, time.monotonic() - started))
                yield results[-1]
    failed = {each.image: models for each in results if (models := _failed_for(each))}
    if registry:
        from builder.commands import push

        yield from push.run(workspace, tuple(each.image for each in results if each.image not in failed))
    if failed:
        raise _failed_evidence(failed, {each.image: each.current for each in results})


def preview(workspace: Workspace, request: BuildRequest) -> tuple[tuple[PlannedImage, BuildOutlook], ...]:
    """Plans as `run` does, and tells what is ahead of each image; nothing is written. Raises what `resolution.resolve`
    and `planning.plan_all` do."""
    from builder.building import mod_checks, outlook, planning, resolution
    from builder.distribution import remote_builder

    if request.push:
        _registry(workspace)
    planned = planning.plan_all(workspace, resolution.resolve(workspace, request))
    mod_checks.require_known([image.plan for image in planned], request.without_checks)
    workspace = remote_builder.with_builder(workspace, request.builder)
    return tuple(zip(planned, outlook.of_images(workspace, request, planned), strict=True))


def write_directory(project: Project, planned: PlannedImage, folder: Path) -> None:
    """Writes the build directory of a plan to ``folder``, byte for byte as the build would have it, whole or not at
    all. What a number adds, its record in images.lock, is not there yet.

    Raises UsageError for a folder below builds/, and for one that cannot be written; ConflictError for one with files.
    """
    import errno
    import tempfile
    from pathlib import Path

    from builder.building import work_folder
    from builder.storage import atomic_file, atomic_folder

    target = folder.resolve()
    if target.is_relative_to(project.builds.resolve()):
        raise UsageError(f"{folder} lies in builds/, which has the folders of numbers", hint="name another folder")
    try:
        atomic_file.make_folder(target.parent)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as aside:
            work_folder.write(Path(aside, "build"), planned.plan.files)
            atomic_folder.put_in_place(Path(aside, "build"), target)
    except OSError as error:
        if error.errno in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}:
            hint = "name a folder that is new or empty"
            raise ConflictError(f"{folder} already exists: nothing was written", hint=hint) from None
        raise UsageError(f"{folder} cannot be written: {error.strerror or error}") from None


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
        unchecked=record.unchecked,
    )


def _failed_for(result: AlreadyBuilt | Built) -> tuple[str, ...]:
    """The models that an image did not pass for."""
    if isinstance(result, Built):
        return tuple(each.what for each in result.waiting if each.is_model and each.failed)
    return tuple(each.model for each in result.models if each.failed)


def _failed_evidence(failed: Mapping[str, Sequence[str]], current: Mapping[str, str]) -> BuildFailedError:
    """The error for images that did not pass for some of their models; ``current`` is the current image beside each,
    empty or ``nothing`` where there is none."""
    lines = []
    remedies = []
    for image, models in failed.items():
        lines.append(f"{image} did not pass for {', '.join(models)}: the number is kept, and nothing was moved to it")
        if ":" in current[image]:
            remedies.append(f"`builder diff {current[image]} {image}` shows what changed")
        remedies += [f"`builder prove {image} {model}` proves it again" for model in models]
    anyway = "the same `builder build` with `--promote-anyway --note WHY` moves the pointers nevertheless"
    return BuildFailedError("\n".join(lines), hint="; ".join((*remedies, anyway)))


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
