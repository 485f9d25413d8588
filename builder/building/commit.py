"""The last step of a build gives the image its number and records it in images.lock.

Pointers that lack required evidence come first, then the commit.
A build records the number before its proof, and moves only the pointers that lack no evidence.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.base import files
from builder.building.request import AlreadyBuilt, HeldPointer, ModelOutcome
from builder.engine import images
from builder.evidence import requirements
from builder.lock import lock_file
from builder.lock.model import ImageName, Lock, NumberedImage, Pairing, Repository
from builder.numbers import images_lock
from builder.pins import vendored

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from builder.base.project import Project
    from builder.building.bake import BakedImage
    from builder.building.request import BuildRequest
    from builder.building.resolve import PlannedImage
    from builder.definitions.recipe import Recipe
    from builder.evidence.requirements import MissingEvidence
    from builder.evidence.store import Proof
    from builder.numbers.workspace import Workspace


# The pointers that a build leaves where they are: evidence that they require is not recorded, or its proof failed. A
# build records its number first and without them, then its proof, and moves what nothing is missing for. What is
# recorded later (by `prove`, `probe` or `bench`) moves no pointer: `promote` and `pair` do, and say what is missing.


def models(project: Project, planned: PlannedImage) -> tuple[str, ...]:
    """The models of a build that require evidence of its image. Raises FileProblemsError for a bad builder.yaml."""
    return tuple(
        model for model in planned.models if requirements.required(project, model, _recipe_for(planned, model))
    )


def missing(
    workspace: Workspace, lock: Lock, planned: PlannedImage, name: ImageName, model: str
) -> tuple[requirements.MissingEvidence, ...]:
    """The parts that ``name`` lacks of the evidence that a model of the build requires."""
    recipe = _recipe_for(planned, model)
    return requirements.missing(workspace.project, lock, name, model, recipe=recipe, environ=workspace.environment)


def move(
    workspace: Workspace, planned: PlannedImage, name: ImageName, request: BuildRequest, models_held: Iterable[str]
) -> tuple[HeldPointer, ...]:
    """Pairs ``name`` with the models of its build ``models_held`` back, and makes it current as requested, where
    nothing is missing, or the request says that they move anyway; returns what stays."""
    waiting: list[HeldPointer] = []
    with images_lock.transaction(workspace) as transaction:
        lock = transaction.lock
        for model in models_held:
            paired = lock.models.get(model)
            lacking = missing(workspace, lock, planned, name, model)
            if lacking and not request.promote_anyway:
                stays = str(paired.pairing.image) if paired else ""
                failed = any(each.failed for each in lacking)
                waiting.append(HeldPointer(model, True, stays, missing_evidence_texts(lacking, name, model), failed))
                continue
            note = f"{requirements.FORCED}{request.promote_anyway}" if lacking else ""
            recipe = planned.recipe.file if planned.recipe else None
            lock = lock.with_pairing(model, Pairing(name, recipe, planned.revisions.get(model), note=note))
            if note:
                lock = lock.with_image(name, replace(lock.images[name.repository].numbers[name.number], note=note))
        repository = lock.images[name.repository]
        if (request.promote or repository.current is None) and not waiting:
            lock = lock.with_repository(name.repository, repository.with_current(name.number))
        elif request.promote and waiting:
            stays = f"{name.repository}:{repository.current}" if repository.current else ""
            failed = any(each.failed for each in waiting)
            waiting.append(HeldPointer(f"{name.repository}:latest", False, stays, (), failed))
        transaction.commit(lock)
    return tuple(waiting)


def missing_evidence_texts(
    lacking: Iterable[requirements.MissingEvidence], name: ImageName, model: str
) -> tuple[tuple[str, str], ...]:
    """Each missing part as text, with the command that brings it."""
    return tuple((str(each), requirements.missing_command(each, name, model)) for each in lacking)


def _recipe_for(planned: PlannedImage, model: str) -> Recipe | None:
    """The recipe of the build, where it is the one that serves ``model``."""
    return planned.recipe if planned.recipe and planned.recipe.model == model else None


# The last step of a build: the image gets its number, and images.lock records it, paired with its models.


@dataclass(frozen=True)
class RecordedMoves:
    """The moves of a new number in images.lock: the ``pins`` of its definitions, the ``models`` that it is paired with,
    and ``latest`` if it is to be ``current``; the ``first`` of a repository is that in any case. ``waiting`` are the
    models that wait for evidence, or with which its proof failed."""

    pins: bool = True
    current: bool = True
    first: bool = True
    models: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()


NOTHING_MOVES = RecordedMoves(pins=False, current=False, first=False)


def moves_of(
    workspace: Workspace, planned: PlannedImage, request: BuildRequest, proofs: Sequence[Proof]
) -> RecordedMoves:
    """The moves as the number of a build is recorded: none that requires evidence, which is recorded after, and none of
    a model with which one of its ``proofs`` failed."""
    if request.candidate:
        return NOTHING_MOVES
    failed = [each.evidence.subject.model for each in proofs if each.evidence.verdict == "fail"]
    required = models(workspace.project, planned)
    waiting = tuple(model for model in planned.models if model in required or model in failed)
    free = tuple(model for model in planned.models if model not in waiting)
    return RecordedMoves(current=request.promote and not waiting, first=not waiting, models=free, waiting=waiting)


def commit_image(workspace: Workspace, baked: BakedImage, record: NumberedImage, moves: RecordedMoves) -> ImageName:
    """Gives a verified image the next number of its repository, and moves what ``moves`` says. A failure leaves lock,
    tags and numbers as they were."""
    planned, directory = baked.planned, baked.work.directory
    _keep_patches(workspace, planned)
    candidate = images_lock.Candidate(baked.work.tag, directory, baked.details.id, record.fingerprint)
    with images_lock.transaction(workspace) as transaction:
        name = transaction.next_name(planned.plan.repository, record.fingerprint)
        # For the day that images.lock is lost.
        own_part = _recorded(Lock(), name, planned, record, replace(moves, pins=True))
        for file, content in lock_file.record_files(own_part).items():
            files.write_plain_file(directory / file, content)
        transaction.place(name, candidate)
        transaction.commit(_recorded(transaction.lock, name, planned, record, moves))
    # The end of the transaction has set `latest`.
    return name


def commit_existing(
    workspace: Workspace, planned: PlannedImage, name: ImageName, request: BuildRequest
) -> AlreadyBuilt:
    """Records the pins of a plan whose image is already built, and pairs that image with those of its models that no
    image serves yet, unless evidence is missing or failed. A model that was rolled back stays where it is: building
    again does not undo that, unless the request says that the pointers move anyway."""
    lacking = {
        model: missing(workspace, planned.lock, planned, name, model)
        for model in planned.models
        if not planned.is_paired(model, name)
    }
    if not planned.is_recorded and not request.candidate:
        _keep_patches(workspace, planned)
        with images_lock.transaction(workspace) as transaction:
            lock = _with_pins(transaction.lock, planned)
            free = tuple(model for model in planned.unpaired if not lacking.get(model))
            transaction.commit(_with_pairings(lock, name, planned, free))
    repository = planned.lock.images[name.repository]
    if request.promote_anyway and not request.candidate:
        move(workspace, planned, name, request, lacking)
        repository = repository.with_current(name.number)
    return AlreadyBuilt(
        image=str(name),
        bad=repository.numbers[name.number].status == "bad",
        current=_current_elsewhere(repository, name),
        models=tuple(_model_outcomes(planned, name, lacking, anyway=bool(request.promote_anyway))),
        unchecked=repository.numbers[name.number].unchecked,
    )


def new_layers(workspace: Workspace, baked: BakedImage) -> int:
    """Counts the layers that the previous number does not have; all of them where there is none."""
    repository = baked.planned.lock.images.get(baked.planned.plan.repository)
    numbers = repository.numbers if repository else {}
    previous = f"{baked.planned.plan.repository}:{max(numbers)}" if numbers else None
    before = images.inspect_image(workspace.engine, previous) if previous else None
    return len(set(baked.details.layers) - set(before.layers if before else ()))


def _current_elsewhere(repository: Repository, name: ImageName) -> str:
    """The current image where that is another one, or ``nothing``; empty where it is ``name``."""
    if repository.current == name.number:
        return ""
    return f"{name.repository}:{repository.current}" if repository.current else "nothing"


def _model_outcomes(
    planned: PlannedImage, name: ImageName, lacking: Mapping[str, tuple[MissingEvidence, ...]], *, anyway: bool
) -> Iterator[ModelOutcome]:
    for model in planned.models:
        missing = lacking.get(model)
        if anyway and missing is not None:
            yield ModelOutcome(model, "paired")
        elif missing:
            paired = planned.lock.models.get(model)
            stays = str(paired.pairing.image) if paired else ""
            failed = any(each.failed for each in missing)
            yield ModelOutcome(model, "waiting", stays, missing_evidence_texts(missing, name, model), failed)
        elif model in planned.unpaired:
            yield ModelOutcome(model, "paired")
        elif model not in planned.lock.models:
            yield ModelOutcome(model, "unpaired")
        elif (pairing := planned.lock.models[model].pairing).image != name:
            yield ModelOutcome(model, "elsewhere", str(pairing.image))


def _keep_patches(workspace: Workspace, planned: PlannedImage) -> None:
    for part in planned.plan.chain:
        vendored.keep_vendored(workspace.project, part.definition.name, part.pins, planned.patches)


def _recorded(lock: Lock, name: ImageName, planned: PlannedImage, record: NumberedImage, moves: RecordedMoves) -> Lock:
    lock = lock.with_image(name, record)
    if moves.pins:
        lock = _with_pins(lock, planned)
    repository = lock.images[name.repository]
    if moves.current or (moves.first and repository.current is None):
        lock = lock.with_repository(name.repository, repository.with_current(name.number))
    return _with_pairings(lock, name, planned, moves.models, since=record.built)


def _with_pins(lock: Lock, planned: PlannedImage) -> Lock:
    for part in planned.plan.chain:
        lock = lock.with_pins(part.definition.name, part.definition.platform, part.pins)
    return lock


def _with_pairings(
    lock: Lock, name: ImageName, planned: PlannedImage, models: tuple[str, ...], since: str = ""
) -> Lock:
    recipe = planned.recipe.file if planned.recipe else None
    for model in models:
        lock = lock.with_pairing(model, Pairing(name, recipe, planned.revisions.get(model), since=since))
    return lock
