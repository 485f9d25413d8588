"""The build command makes a numbered image. It resolves, plans, bakes, verifies and commits."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from builder.base import files, records, words
from builder.base.errors import BuildFailedError, ConflictError, UsageError
from builder.base.events import Message
from builder.base.values import dataclass
from builder.building.request import BuildOutcome, BuildRequest, Built, HeldPointer, ModelOutcome
from builder.engine import images

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.building.bake import BakedImage, BuildOutlook
    from builder.building.resolve import PlannedImage
    from builder.commands.transfers import PushedImage
    from builder.evidence.run_record import ProvedImage
    from builder.lock.model import ImageName, NumberedImage
    from builder.numbers.workspace import Workspace


def build_targets(workspace: Workspace, request: BuildRequest) -> Iterator[BuildOutcome | PushedImage]:
    """Builds the targets of a request, and yields the result of each. Targets with nothing to build come first.

    Raises the errors of `resolve.plan_images` and `bake.baked_images`, ConflictError if the engine's disk is too small,
    and BuildFailedError if a check fails. Lock, tags and numbers are then unchanged, except for images that were
    already yielded. An image whose proof fails is also yielded. It keeps its number, is not pushed and moves no
    pointer; BuildFailedError is raised at the end."""
    key = cache_key(workspace, request)
    if key and (remembered := cached_outcomes(workspace, key)):
        yield from remembered
        return
    # Imported only here, because these modules take longer to import than all modules above.
    from builder.building import bake, commit, resolve, verification, work_folder
    from builder.definitions.image import build_jobs
    from builder.evidence.run_record import keep_proof
    from builder.lab.prove import prove

    work_folder.recover(workspace)
    registry = _registry(workspace) if request.push else None
    planned = resolve.plan_images(workspace, request)
    verification.require_known([image.plan for image in planned], request.without_checks)
    existing = [(image, image.comparison.existing) for image in planned if not request.force]
    results = [commit.commit_existing(workspace, image, number, request) for image, number in existing if number]
    yield from results
    to_build = [image for image in planned if request.force or not image.comparison.existing]
    if key and not to_build:
        store_outcomes(key, planned, results)

    if to_build:
        workspace = bake.with_builder(workspace, request.builder)
        outlooks = bake.build_outlooks(workspace, request, to_build)
        for image, ahead in zip(to_build, outlooks, strict=True):
            _report_reasons(workspace, image, ahead)
        _advise(workspace, to_build)
        if not request.ignore_disk:
            bake.require_room(outlooks)
        started = time.monotonic()
        with bake.baked_images(workspace, to_build, registry, build_jobs(request.settings)) as baked_images:
            for baked in baked_images:
                record = verification.verify_image(workspace, baked, request.without_checks)
                proofs = prove.of_build(workspace, baked, record, request)
                name, kept_back = commit.commit_image(workspace, baked, record, request, proofs)
                kept = tuple(keep_proof(workspace.project, name, each) for each in proofs)
                waiting = commit.move(workspace, baked.planned, name, request, kept_back) if kept_back else ()
                results.append(_built(workspace, baked, record, name, kept, waiting, time.monotonic() - started))
                yield results[-1]
    if registry:
        from builder.commands import transfers

        yield from transfers.push_images(workspace, tuple(each.image for each in results if not each.failed_models))
    if failed := [each for each in results if each.failed_models]:
        raise _failed_evidence(failed)


def preview_build(workspace: Workspace, request: BuildRequest) -> tuple[tuple[PlannedImage, BuildOutlook], ...]:
    """Plans like `build_targets`, and adds the outlook of each image. Raises the errors of `resolve.plan_images`."""
    from builder.building import bake, resolve, verification

    if request.push:
        _registry(workspace)
    planned = resolve.plan_images(workspace, request)
    verification.require_known([image.plan for image in planned], request.without_checks)
    workspace = bake.with_builder(workspace, request.builder)
    return tuple(zip(planned, bake.build_outlooks(workspace, request, planned), strict=True))


def write_directory(project: Project, planned: PlannedImage, folder: Path) -> None:
    """Writes the build directory of a plan to ``folder``, completely or not at all. The files are identical to the
    files of a build, except that the record in images.lock is missing, because there is no number. Raises UsageError if
    the folder is below builds/ or cannot be written, ConflictError if it contains files."""
    import errno
    import tempfile

    from builder.base import files
    from builder.building import work_folder

    target = folder.resolve()
    if target.is_relative_to(project.builds.resolve()):
        raise UsageError(f"{folder} is in builds/, which is reserved for numbered images", hint="name another folder")
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
    name: ImageName,
    proofs: tuple[ProvedImage, ...],
    waiting: tuple[HeldPointer, ...],
    seconds: float,
) -> Built:
    from builder.building import commit
    from builder.engine import images
    from builder.lock import lock_file

    planned, layers = baked.planned, baked.details.layers
    # Compare titles: if BuildKit starts a step again, the step has a new digest but the same title.
    steps = [step for step in baked.result.steps if not step.internal]
    titles, ran = {step.title for step in steps}, {step.title for step in steps if not step.cached}
    repository = planned.lock.images.get(name.repository)
    numbers = repository.numbers if repository else {}
    previous = images.inspect_image(workspace.engine, f"{name.repository}:{max(numbers)}") if numbers else None
    # Without an earlier build there is nothing that changed. The reason was reported before the build.
    reasons = planned.comparison.reasons if planned.comparison.before else ()
    lock = lock_file.read_project_lock(workspace.project)
    if 1 < name.number == min(lock.images[name.repository].numbers):
        from builder.numbers import claims

        reasons = (*reasons, f"it is number {name.number}: {claims.reason(workspace, name)}")
    return Built(
        image=str(name),
        current=commit.current_image(lock, name.repository),
        models=tuple(_paired(planned, name, {each.what for each in waiting})),
        waiting=waiting,
        unchecked=record.unchecked,
        changes=reasons,
        seconds=seconds,
        size=record.size,
        layers=len(layers),
        new_layers=len(set(layers) - set(previous.layers if previous else ())),
        steps=len(titles),
        cached_steps=len(titles - ran),
        compiled=baked.result.compiled,
        proofs=proofs,
        log=baked.log,
    )


def _paired(planned: PlannedImage, name: ImageName, kept_back: set[str]) -> Iterator[ModelOutcome]:
    for model in planned.models:
        if model not in kept_back:
            before = planned.lock.models[model].pairing.image if model in planned.lock.models else name
            taken_from = str(before) if before.repository != name.repository else None
            yield ModelOutcome(model, "paired", str(name), taken_from)


def _failed_evidence(failed: Iterable[BuildOutcome]) -> BuildFailedError:
    """The error for images whose proof failed for some of their models."""
    lines = []
    remedies = []
    for each in failed:
        names = ", ".join(each.failed_models)
        lines.append(f"required evidence of {each.image} failed for {names}: no pointer moved, but the number is kept")
        if each.current and each.current != each.image:
            remedies.append(f"`builder diff {each.current} {each.image}` shows what changed")
        failed_models = map(words.shell_word, each.failed_models)
        remedies += [f"`builder prove {each.image} {model}` proves it again" for model in failed_models]
    anyway = "the same `builder build` with `--promote-anyway --note WHY` moves the pointers anyway"
    return BuildFailedError("\n".join(lines), hint="; ".join((*remedies, anyway)))


def _registry(workspace: Workspace) -> str:
    from builder.definitions import configuration

    return configuration.load_configuration(workspace.project).required_registry()


def _advise(workspace: Workspace, planned: Sequence[PlannedImage]) -> None:
    """Reports the advisories for images and for the recipes that they are built for."""
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
        lines.append(f"building again, as requested: {comparison.existing} has the same inputs")
    else:
        lines.append(f"building {plan.repository} for {plan.definition.platform}, because")
        lines += [f"  {reason}" for reason in comparison.reasons]
    for line in [*lines, *ahead.lines]:
        workspace.report(Message(line))


# The results of builds that had nothing to do are cached, by the typed request and the state of all files.
#
# As in git's index, the state of a file is its time of change (ctime), its size and its inode: writing to a file or
# replacing it changes its ctime, which no program can set. The images in the engine are checked each time.

_LARGEST = 16 << 20
_MOST_FILES = 20_000  # checking more files takes longer than planning the build
_DIGITS = 2  # of a request's digest that name its file: at most 256 files
# Two writes within one tick of the file system's clock have the same ctime. A tick of Linux is at most 10 ms. Some file
# systems store whole seconds.
_TICK = 100_000_000
_COARSE_TICK = 2_000_000_000
_PROGRAM = Path(__file__).parent.parent


@dataclass(frozen=True)
class CacheKey:
    """A request with the state of the files. ``path`` is the file of its results, which another request may replace;
    ``files`` is a digest of the request and the files' states. ``settled``: every later change to the files changes the
    digest."""

    path: Path
    files: str
    settled: bool


@dataclass(frozen=True)
class CachedResults:
    """The results of a request for this state of ``files``. They are valid while the images of ``repositories`` in the
    engine include ``images``, which maps names to fingerprints."""

    files: str
    repositories: tuple[str, ...]
    images: Mapping[str, str]
    results: tuple[BuildOutcome, ...]


def cache_key(workspace: Workspace, request: BuildRequest) -> CacheKey | None:
    """Returns the key of ``request`` in the present project. None if the request always needs planning, if the project
    has too many files or an unreadable file, or if a build is running or was killed."""
    always = request.update or request.force or request.push or request.candidate
    if always or request.without_checks or request.promote_anyway or workspace.project.unfinished:
        return None
    states = hashlib.sha256()
    newest = 0
    try:
        typed = (request.targets, request.models, request.mods, request.platform, sorted(request.settings.items()))
        parts = (workspace.engine.host, Path.cwd(), *typed, request.locked, request.promote)
        name = hashlib.sha256(repr(parts).encode()).hexdigest()
        states.update(name.encode())
        for number, path in enumerate(_plan_files(workspace.project)):
            if number > _MOST_FILES:
                return None
            state = _file_state(path)
            newest = max(newest, state.st_ctime_ns)
            states.update(os.fsencode(path))
            states.update(f"\0{state.st_ctime_ns} {state.st_size} {state.st_ino} {state.st_dev}\0".encode())
    except OSError:
        return None
    tick = _TICK if newest % 1_000_000_000 else _COARSE_TICK
    place = workspace.project.state / "unchanged" / name[:_DIGITS]
    return CacheKey(place, states.hexdigest(), newest < time.time_ns() - tick)


def cached_outcomes(workspace: Workspace, key: CacheKey) -> tuple[BuildOutcome, ...] | None:
    """Returns the results stored under ``key``; None unless the files and the images in the engine are unchanged."""
    try:
        stored = records.read_file(key.path, CachedResults, largest=_LARGEST)
    except (OSError, records.RecordError):
        return None
    if stored.files != key.files:
        return None
    cache = workspace.project.engine_cache
    _, existing = images.find_images(workspace.engine, stored.repositories, stored.images, cache)
    return stored.results if existing == stored.images else None


def store_outcomes(key: CacheKey, planned: Sequence[PlannedImage], results: Sequence[BuildOutcome]) -> None:
    """Stores the ``results`` of plans that need no build, if they stay valid while nothing changes.

    They are not stored if something was just recorded, if a later number with the same inputs may return to the engine,
    if a recipe is outside recipes/, if a source is a local checkout, which is outside the project's state, or if
    evidence is missing, which may be recorded at any time.
    """
    fingerprints: dict[str, str] = {}
    definitions = [part.definition for image in planned for part in image.plan.chain]
    has_checkout = any(source.checkout for each in definitions for source in each.git_sources.values())
    if not key.settled or not planned or has_checkout or any(result.waiting for result in results):
        return
    for image in planned:
        name = image.comparison.existing
        if name is None or not image.is_recorded or (image.recipe and not image.recipe.file.startswith("recipes/")):
            return
        numbers = image.lock.images[name.repository].numbers
        if name.number != max(n for n, record in numbers.items() if record.input_hash == image.plan.input_hash):
            return
        fingerprints[str(name)] = numbers[name.number].fingerprint
    content = CachedResults(key.files, tuple(planned[0].lock.images), fingerprints, tuple(results))
    files.write_state(key.path, records.text_of(content, {}).encode())


def _plan_files(project: Project) -> Iterator[Path]:
    """Lists all files that a plan depends on, including the program. A new recipe changes the state of its folder."""
    settings = project.root / "builder.yaml"
    yield from (project.root, project.lock, *([settings] if settings.exists() else []))
    for top in (project.dockerfiles, project.mods, project.recipes, _PROGRAM):
        for path, folders, names in os.walk(top, followlinks=True):
            folders.sort()
            yield Path(path)
            yield from (Path(path, name) for name in sorted(names) if top != _PROGRAM or not name.endswith(".pyc"))


def _file_state(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except FileNotFoundError:
        return path.lstat()  # a dangling link
