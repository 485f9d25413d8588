"""The build command makes a numbered image, and the rebuild command repeats a recorded build."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.base.errors import BaseGoneError, BuildFailedError, ConflictError, SourceError, UsageError
from builder.base.events import Message, task
from builder.building import result_cache
from builder.building.request import AlreadyBuilt, Built
from builder.definitions.image import BUILD_JOBS, build_jobs
from builder.engine import images, versions
from builder.lock import lock_file
from builder.numbers import status

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from builder.base.project import Project
    from builder.building.bake import BakedImage
    from builder.building.outlook import BuildOutlook
    from builder.building.repeating import FileDifference, RebuiltImage
    from builder.building.request import BuildRequest, HeldPointer
    from builder.building.resolve import PlannedImage
    from builder.commands.transfers import PushedImage
    from builder.evidence.store import Proof, ProvedImage
    from builder.lock.model import ImageName, Lock, NumberedImage
    from builder.numbers.workspace import Workspace


# The build command on one page: resolve, plan, bake, verify, commit.


def build_targets(workspace: Workspace, request: BuildRequest) -> Iterator[AlreadyBuilt | Built | PushedImage]:
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
        from builder.building import resolve

        local = replace(request, local_base=True)
        try:
            resolve.resolve_images(workspace, local)
        except SourceError:
            raise gone from None
        workspace.report(Message(f"{gone.message.splitlines()[0]}\nbuilding on this engine's own copy of the base"))
        yield from (result for result in _results(workspace, local) if result not in yielded)


def _results(workspace: Workspace, request: BuildRequest) -> Iterator[AlreadyBuilt | Built | PushedImage]:
    """The results of a build on the bases that are pinned.

    Raises what `resolve.resolve_images`, `resolve.plan_all` and `bake.baked_images` do, ConflictError where the
    engine's disk is too small, and BuildFailedError where a check fails; lock, tags and numbers are then as they were,
    but for the images yielded before. An image whose proof fails is yielded, too: it keeps its number, is not pushed,
    moves no pointer, and BuildFailedError is raised at the end.
    """
    key = result_cache.cache_key(workspace, request)
    if key and (remembered := result_cache.look_up(workspace, key)):
        yield from remembered
        return
    # Only now: these take longer to import than all of the above.
    from builder.building import bake, commit, outlook, resolve, verification, work_folder
    from builder.evidence.store import keep_proof
    from builder.lab.prove import prove

    work_folder.recover(workspace)
    registry = _registry(workspace) if request.push else None
    resolved = resolve.resolve_images(workspace, request)
    planned = resolve.plan_all(workspace, resolved)
    verification.require_known([image.plan for image in planned], request.without_checks)

    existing, to_build = resolve.split(planned, force=request.force)
    outcomes = [commit.commit_existing(workspace, image, number, request) for image, number in existing]
    yield from outcomes
    if key and not to_build:
        result_cache.store(key, planned, outcomes)

    results: list[AlreadyBuilt | Built] = [*outcomes]
    if to_build:
        workspace = bake.with_builder(workspace, request.builder)
        outlooks = outlook.of_images(workspace, request, to_build)
        for image, ahead in zip(to_build, outlooks, strict=True):
            _report_reasons(workspace, image, ahead)
        _advise(workspace, to_build)
        if not request.ignore_disk:
            outlook.require_room(outlooks)
        compilers = build_jobs(request.settings)
        started = time.monotonic()
        with (
            outlook.measured(workspace.project, outlooks[0].disk_kind, outlooks[0].data_root, len(outlooks)),
            bake.baked_images(workspace, to_build, registry, compilers) as baked_images,
        ):
            for baked in baked_images:
                record = verification.verify_image(workspace, baked, request.without_checks)
                proofs = prove.of_build(workspace, baked, record, request)
                moves = commit.moves_of(workspace, baked.planned, request, proofs)
                number = commit.commit_image(workspace, baked, record, moves)
                kept = tuple(keep_proof(workspace.project, number, each) for each in proofs)
                models_held = moves.waiting
                waiting = commit.move(workspace, baked.planned, number, request, models_held) if models_held else ()
                results.append(_built(workspace, baked, record, number, kept, waiting, time.monotonic() - started))
                yield results[-1]
    failed = {each.image: models for each in results if (models := _failed_for(each))}
    if registry:
        from builder.commands import transfers

        yield from transfers.push_images(workspace, tuple(each.image for each in results if each.image not in failed))
    if failed:
        raise _failed_evidence(failed, {each.image: each.current for each in results})


def preview_build(workspace: Workspace, request: BuildRequest) -> tuple[tuple[PlannedImage, BuildOutlook], ...]:
    """Plans as `build_targets` does, and tells what is ahead of each image; nothing is written. Raises what
    `resolve.resolve_images` and `resolve.plan_all` do."""
    from builder.building import bake, outlook, resolve, verification

    if request.push:
        _registry(workspace)
    planned = resolve.plan_all(workspace, resolve.resolve_images(workspace, request))
    verification.require_known([image.plan for image in planned], request.without_checks)
    workspace = bake.with_builder(workspace, request.builder)
    return tuple(zip(planned, outlook.of_images(workspace, request, planned), strict=True))


def write_directory(project: Project, planned: PlannedImage, folder: Path) -> None:
    """Writes the build directory of a plan to ``folder``, byte for byte as the build would have it, whole or not at
    all. What a number adds, its record in images.lock, is not there yet.

    Raises UsageError for a folder below builds/, and for one that cannot be written; ConflictError for one with files.
    """
    import errno
    import tempfile
    from pathlib import Path

    from builder.base import files
    from builder.building import work_folder

    target = folder.resolve()
    if target.is_relative_to(project.builds.resolve()):
        raise UsageError(f"{folder} lies in builds/, which has the folders of numbers", hint="name another folder")
    try:
        files.make_folder(target.parent)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as aside:
            work_folder.write_work_folder(Path(aside, "build"), planned.plan.files)
            files.put_folder_in_place(Path(aside, "build"), target)
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
    current = lock_file.read_project_lock(workspace.project).images[number.repository].current
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
        current=f"{number.repository}:{current}" if current else "",
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


def _reason_of_number(workspace: Workspace, lock: Lock, number: ImageName) -> tuple[str, ...]:
    """The reason why the first image of a repository in images.lock is not its number 1."""
    repository = lock.images.get(number.repository)
    if number.number == 1 or (repository and repository.numbers):
        return ()
    from builder.numbers import claims

    return (f"it is number {number.number}: {claims.reason(workspace, number)}",)


def _registry(workspace: Workspace) -> str:
    from builder.definitions import configuration

    return configuration.load_configuration(workspace.project).required_registry()


def _advise(workspace: Workspace, planned: Sequence[PlannedImage]) -> None:
    """Reports the advisories that apply to images, and to the recipes that they are built for."""
    from builder.lock.model import Lock
    from builder.serving import advice

    for image in planned:
        recipes = (image.recipe,) if image.recipe else ()
        pins = {part.definition.name: {part.definition.platform: part.pins} for part in image.plan.chain}
        chain = [part.definition for part in image.plan.chain]
        diagnoses = advice.of_plan(workspace.project, Lock(pins), chain, recipes)
        advice.report_advice(workspace.report, diagnoses)


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


# The rebuild command: builds a number again from its build directory, and compares the content.


@dataclass(frozen=True)
class Rebuilt:
    """The result of a rebuild. ``restored`` is true if the number was missing from the engine and has its tag again.

    Where the content is not ``same``: the image is ``kept`` under that tag, and ``layers`` names the steps whose layers
    differ; ``differences`` are by path, None where the first image is not here to compare with; ``proofs`` are those of
    the models with which the number was proven. ``accepted`` is true if the number stands for the new content now.
    """

    image: ImageName
    same: bool
    restored: bool
    fingerprint: str
    recorded: str
    seconds: float
    log: str
    kept: str = ""
    layers: tuple[str, ...] = ()
    differences: tuple[FileDifference, ...] | None = None
    proofs: tuple[Proof, ...] = ()
    accepted: bool = False


def rebuild_image(
    workspace: Workspace,
    text: str,
    settings: Mapping[str, str] | None = None,
    *,
    accept_equivalent: bool = False,
) -> Rebuilt:
    """Builds the image called ``text`` from ``builds/REPOSITORY/NUMBER`` alone, not from the templates and mods; of
    ``settings`` only the number of jobs may differ from those that the number was built with.

    A number that is missing gets its tag again where the content is the recorded one. Other content is kept under the
    tag ``REPOSITORY:N-rebuilt``, compared with the first image, and proven where the number was; ``accept_equivalent``
    takes it for the number where nothing but times of change and bytecode differ.

    Raises ImageStateError where the build directory is gone, or the image was adopted; FileProblemsError where it is
    damaged, or would do what no build of this program does; BuildFailedError where a step fails; ConflictError for
    content that cannot be accepted.
    """
    from builder.building import repeating
    from builder.numbers import images_lock

    started = time.monotonic()
    if other := [key for key in settings or {} if key != BUILD_JOBS]:
        raise UsageError(f"`--set {other[0]}` would make another image", hint="`builder build` makes it")
    compilers = build_jobs(settings or {})
    images_lock.recover_transaction(workspace)  # it may write nothing itself, where a killed one had tagged the number
    lock = lock_file.read_project_lock(workspace.project)
    name, recorded = status.named_number(workspace.project, lock, text)
    repeating.require_built_here(name, recorded)
    versions.require_supported(workspace.engine)
    with repeating.rebuilt_image(workspace, name, recorded, compilers=compilers) as built:
        same = built.fingerprint == recorded.fingerprint
        restored = same and images.inspect_image(workspace.engine, str(name)) is None
        if restored:
            images_lock.restore_tag(workspace, name, built.tag)
        result = Rebuilt(
            name, same, restored, built.fingerprint, recorded.fingerprint, time.monotonic() - started, built.log
        )
        if not same:
            return _other_content(workspace, lock, result, recorded, built, accept=accept_equivalent)
        return result


def _other_content(
    workspace: Workspace, lock: Lock, result: Rebuilt, recorded: NumberedImage, built: RebuiltImage, *, accept: bool
) -> Rebuilt:
    """The result for other content than the recorded one: kept, compared, proven, and accepted where that is asked."""
    from builder.building import repeating
    from builder.numbers import images_lock

    engine, name = workspace.engine, result.image
    kept = f"{name}-rebuilt"
    images.tag_image(engine, built.tag, kept)
    first = images.inspect_image(engine, str(name))
    is_here = first is not None and images.fingerprint(first) == recorded.fingerprint
    layers = first.layers if first and is_here else repeating.recorded_layers(workspace.project, name)
    differences = None
    if is_here:
        with task(workspace.report, f"comparing the files of {name} and {kept}"):
            differences = repeating.of_files(engine, str(name), kept, built.labels)
    result = replace(
        result,
        kept=kept,
        layers=repeating.differing_layers(engine, layers, built.details) if layers else (),
        differences=differences,
        proofs=_proofs(workspace, lock, result, built),
    )
    if not accept:
        return result
    if differences is None:
        raise ConflictError(
            f"{name} is missing from this engine, so nothing tells whether {kept} is equivalent: it was not accepted",
            hint=f"`builder adopt {kept}` gives it a number of its own",
        )
    counts = Counter(each.kind for each in differences)
    if beyond := [each for each in differences if each.kind not in repeating.HARMLESS]:
        raise ConflictError(
            f"{kept} differs from {name} in more than times and bytecode: {beyond[0].path} ({beyond[0].what}) and "
            f"{len(beyond) - 1} more; it was not accepted",
            hint=f"`builder rebuild {name}` lists all; `builder adopt {kept}` gives it a number of its own",
        )
    note = f"{counts['time']} times of change and {counts['bytecode']} files of bytecode differ"
    images_lock.accept_equivalent(workspace, name, kept, result.fingerprint, note)
    images.remove_image(engine, kept)
    return replace(result, accepted=True, kept="")


def _proofs(workspace: Workspace, lock: Lock, result: Rebuilt, built: RebuiltImage) -> tuple[Proof, ...]:
    """Proves an image that was built again for the models with which its number was proven. That it cannot be proven is
    told, and is no error."""
    import functools

    from builder.base.errors import FileProblemsError, ImageContentsError
    from builder.evidence import store
    from builder.evidence.run_record import Subject

    name = result.image
    runs = [each for each in store.of_image(workspace.project, name) if each.kind == "prove" and each.verdict == "pass"]
    revisions = {each.subject.model: each.subject.revision for each in runs if each.subject.model}
    if not revisions:
        return ()
    from builder.evidence import requirements
    from builder.lab.prove import judging, prove

    try:
        pairings = [
            prove.ProvedPairing(model, revision, recipe)
            for model, revision in revisions.items()
            if (recipe := requirements.recipe_of(workspace.project, lock, name, model))
        ]
        find = functools.partial(judging.find_reference, workspace.project, lock, name.repository, name.number)
        subject = Subject(str(name), result.fingerprint)
        return prove.prove_models(workspace, built.tag, subject, pairings, find, built.labels)
    except (BuildFailedError, FileProblemsError, ImageContentsError, UsageError) as error:
        workspace.report(Message(f"not proven: {error.message}"))
        return ()
