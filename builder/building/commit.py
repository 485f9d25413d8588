"""The last step of a build gives the image its number and records it in images.lock.

A build first records its number, then the proof. It then moves the pointers whose evidence is complete. Later results
of `prove`, `probe` or `bench` move no pointer; `promote` and `pair` do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from builder.base import files
from builder.building.request import BuildOutcome, BuildRequest, HeldPointer, MissingPart, ModelOutcome
from builder.engine import installed
from builder.evidence import requirements
from builder.lock import lock_file
from builder.lock.model import ImageName, Lock, NumberedImage, Pairing, Repository
from builder.numbers import images_lock
from builder.pins import vendored

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.building.bake import BakedImage
    from builder.building.resolve import PlannedImage
    from builder.definitions.recipe import Recipe
    from builder.evidence.requirements import MissingEvidence
    from builder.evidence.run_record import Proof
    from builder.numbers.workspace import Workspace


def models(project: Project, planned: PlannedImage) -> tuple[str, ...]:
    """The models of a build that require evidence of its image. Raises FileProblemsError if builder.yaml is invalid."""
    return tuple(
        model for model in planned.models if requirements.required(project, model, _recipe_for(planned, model))
    )


def commit_image(
    workspace: Workspace, baked: BakedImage, record: NumberedImage, request: BuildRequest, proofs: Sequence[Proof]
) -> tuple[ImageName, tuple[str, ...]]:
    """Gives a verified image the next number of its repository, and moves the pointers that require no evidence. If the
    same inputs and content got a number since the plan was made, the image gets no further number. Returns the name,
    and the waiting models: they require evidence, or one of their ``proofs`` failed. After a failure, lock, tags and
    numbers are unchanged."""
    planned, directory = baked.planned, baked.work.directory
    failed = [each.evidence.subject.model for each in proofs if each.evidence.verdict == "fail"]
    kept_back = {*models(workspace.project, planned), *failed}
    waiting = tuple(model for model in planned.models if model in kept_back and not request.candidate)
    paired = tuple(model for model in planned.models if model not in kept_back and not request.candidate)
    moves_latest = not waiting and not request.candidate

    def recorded(lock: Lock, *, pins: bool) -> Lock:
        lock = lock if same else lock.with_image(name, record)
        if pins:
            lock = _with_pins(lock, planned)
        if moves_latest and (request.promote or lock.images[name.repository].current is None):
            lock = lock.with_current(name)
        return _with_pairings(lock, name, planned, paired, since=record.built)

    _keep_patches(workspace, planned)
    with images_lock.transaction(workspace) as transaction:
        same = None if request.candidate else _same_since(workspace, planned, record, transaction.lock)
        name = same or transaction.next_name(planned.plan.repository, record.fingerprint)
        if not same:
            # `lock --recover` reads it if images.lock is lost.
            for file, content in lock_file.record_files(recorded(Lock(), pins=True)).items():
                files.write_plain_file(directory / file, content)
            transaction.place(name, baked.work.tag, directory, baked.details.id, record.fingerprint)
        transaction.commit(recorded(transaction.lock, pins=not request.candidate))
    # The transaction has already set `latest`.
    return name, waiting


def move(
    workspace: Workspace, planned: PlannedImage, name: ImageName, request: BuildRequest, models_held: Iterable[str]
) -> tuple[HeldPointer, ...]:
    """Pairs ``name`` with the models ``models_held``, and makes it current if requested. A pointer stays if evidence is
    missing, unless the request moves it anyway. Returns the pointers that stay."""
    waiting: list[HeldPointer] = []
    with images_lock.transaction(workspace) as transaction:
        lock = transaction.lock
        for model in models_held:
            lacking = _missing(workspace, lock, planned, name, model)
            if lacking and not request.promote_anyway:
                waiting.append(_held(workspace.project, lock, planned, name, model, lacking))
                continue
            note = f"{requirements.FORCED}{request.promote_anyway}" if lacking else ""
            lock = _with_pairings(lock, name, planned, (model,), note=note)
            if note:
                lock = lock.with_image(name, replace(lock.images[name.repository].numbers[name.number], note=note))
        if (request.promote or lock.images[name.repository].current is None) and not waiting:
            lock = lock.with_current(name)
        elif request.promote and waiting:
            failed = any(each.failed for each in waiting)
            waiting.append(HeldPointer(name.repository, "repository", current_image(lock, name.repository), failed))
        transaction.commit(lock)
    return tuple(waiting)


def commit_existing(
    workspace: Workspace, planned: PlannedImage, name: ImageName, request: BuildRequest
) -> BuildOutcome:
    """Records the pins of a plan whose image already exists, and pairs the image with its models that no image serves
    yet, unless evidence is missing or failed. A model that was rolled back stays, unless the request moves the pointers
    anyway."""
    lacking = {
        model: _missing(workspace, planned.lock, planned, name, model)
        for model in planned.models
        if not planned.is_paired(model, name)
    }
    if not planned.is_recorded and not request.candidate:
        _keep_patches(workspace, planned)
        with images_lock.transaction(workspace) as transaction:
            lock = _with_pins(transaction.lock, planned)
            free = tuple(model for model in planned.unpaired if not lacking.get(model))
            transaction.commit(_with_pairings(lock, name, planned, free))
    current = current_image(planned.lock, name.repository)
    if request.promote_anyway and not request.candidate:
        move(workspace, planned, name, request, lacking)
        current = str(name)
    outcomes: list[ModelOutcome] = []
    waiting: list[HeldPointer] = []
    for model, missing in lacking.items():
        if missing and not request.promote_anyway:
            waiting.append(_held(workspace.project, planned.lock, planned, name, model, missing))
        elif request.promote_anyway or model in planned.unpaired:
            outcomes.append(ModelOutcome(model, "paired", str(name)))
        elif model not in planned.lock.models:
            outcomes.append(ModelOutcome(model, "unpaired", None))
        else:
            outcomes.append(ModelOutcome(model, "elsewhere", str(planned.lock.models[model].pairing.image)))
    record = planned.lock.images[name.repository].numbers[name.number]
    return BuildOutcome(
        str(name), current, tuple(outcomes), tuple(waiting), bad=record.status == "bad", unchecked=record.unchecked
    )


def current_image(lock: Lock, repository: str) -> str | None:
    """The name of the current image of a repository."""
    current = lock.images[repository].current
    return f"{repository}:{current}" if current else None


def _missing(
    workspace: Workspace, lock: Lock, planned: PlannedImage, name: ImageName, model: str
) -> tuple[MissingEvidence, ...]:
    recipe = _recipe_for(planned, model)
    return requirements.missing(workspace.project, lock, name, model, recipe=recipe, environ=workspace.environment)


def _held(
    project: Project,
    lock: Lock,
    planned: PlannedImage,
    name: ImageName,
    model: str,
    lacking: Sequence[MissingEvidence],
) -> HeldPointer:
    paired, recipe = lock.models.get(model), _recipe_for(planned, model)
    missing = tuple(
        MissingPart(str(each), requirements.missing_command(project, lock, each, name, model, recipe))
        for each in lacking
    )
    failed = any(each.failed for each in lacking)
    return HeldPointer(model, "model", str(paired.pairing.image) if paired else None, failed, missing)


def _recipe_for(planned: PlannedImage, model: str) -> Recipe | None:
    """The recipe of the build, if it serves ``model``."""
    return planned.recipe if planned.recipe and planned.recipe.model == model else None


def _same_since(workspace: Workspace, planned: PlannedImage, record: NumberedImage, lock: Lock) -> ImageName | None:
    """The number that another target of this build, or another process, has recorded since the plan for the same inputs
    and content. A number that came with images.lock from another machine does not count unless this engine has it."""
    repository = planned.plan.repository
    before = planned.lock.images.get(repository, Repository()).numbers
    for number, image in lock.images.get(repository, Repository()).numbers.items():
        is_same = (image.input_hash, image.fingerprint) == (record.input_hash, record.fingerprint)
        if number not in before and is_same and not image.pruned:
            name = ImageName(repository, number)
            if installed.local_fingerprint(workspace.engine, str(name)) == record.fingerprint:
                return name
    return None


def _keep_patches(workspace: Workspace, planned: PlannedImage) -> None:
    for part in planned.plan.chain:
        vendored.keep_vendored(workspace.project, part.definition.name, part.pins, planned.patches)


def _with_pins(lock: Lock, planned: PlannedImage) -> Lock:
    for part in planned.plan.chain:
        lock = lock.with_pins(part.definition.name, part.definition.platform, part.pins)
    return lock


def _with_pairings(
    lock: Lock, name: ImageName, planned: PlannedImage, paired: Iterable[str], *, since: str = "", note: str = ""
) -> Lock:
    recipe = planned.recipe.file if planned.recipe else None
    for model in paired:
        pairing = Pairing(name, recipe, planned.revisions.get(model), since=since, note=note)
        lock = lock.with_pairing(model, pairing)
    return lock
