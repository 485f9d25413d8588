"""The last step of a build: the image gets its number, and images.lock records it, paired with its models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.building.request import AlreadyBuilt, ModelOutcome
from builder.engine import images
from builder.lock import text
from builder.lock.model import ImageName, Lock, NumberedImage, Pairing
from builder.numbered import images_lock, reserved_slots
from builder.pinning import vendored
from builder.storage import plain_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.building.baked_image import BakedImage
    from builder.building.planning import PlannedImage
    from builder.workspace import Workspace


def commit(workspace: Workspace, baked: BakedImage, record: NumberedImage, *, promote: bool) -> ImageName:
    """Gives a verified image the next number of its repository, and pairs it with its models; ``promote`` makes it the
    current one, as the first of all is in any case. A failure leaves lock, tags and numbers as they were."""
    planned, directory = baked.planned, baked.work.directory
    _keep_patches(workspace, planned)
    candidate = images_lock.Candidate(baked.work.tag, directory, baked.details.id, record.fingerprint)
    with images_lock.transaction(workspace) as transaction:
        name = transaction.next_name(planned.plan.repository, record.fingerprint)
        # For the day that images.lock is lost.
        own_part = _recorded(Lock(), name, planned, record, promote=promote)
        plain_file.write(directory / images_lock.RECORD, text.dump(own_part).encode())
        transaction.place(name, candidate)
        lock = _recorded(transaction.lock, name, planned, record, promote=promote)
        transaction.commit(reserved_slots.added(workspace.project, lock))
    # The end of the transaction has set `latest`.
    return name


def commit_existing(workspace: Workspace, planned: PlannedImage, name: ImageName) -> AlreadyBuilt:
    """Records the pins of a plan whose image is already built, and pairs that image with those of its models that no
    image serves yet. A model that was rolled back stays where it is: building again does not undo that."""
    if not planned.is_recorded:
        _keep_patches(workspace, planned)
        with images_lock.transaction(workspace) as transaction:
            lock = _with_pins(transaction.lock, planned)
            transaction.commit(_with_pairings(lock, name, planned, planned.unpaired))
    repository = planned.lock.images[name.repository]
    return AlreadyBuilt(
        image=str(name),
        bad=repository.numbers[name.number].status == "bad",
        current="" if repository.current == name.number else f"{name.repository}:{repository.current}",
        models=tuple(_model_outcomes(planned, name)),
    )


def new_layers(workspace: Workspace, baked: BakedImage) -> int:
    """Counts the layers that the previous number does not have; all of them where there is none."""
    repository = baked.planned.lock.images.get(baked.planned.plan.repository)
    numbers = repository.numbers if repository else {}
    previous = f"{baked.planned.plan.repository}:{max(numbers)}" if numbers else None
    before = images.inspect(workspace.engine, previous) if previous else None
    return len(set(baked.details.layers) - set(before.layers if before else ()))


def _model_outcomes(planned: PlannedImage, name: ImageName) -> Iterator[ModelOutcome]:
    for model in planned.models:
        if model in planned.unpaired:
            yield ModelOutcome(model, "paired")
        elif model not in planned.lock.models:
            yield ModelOutcome(model, "unpaired")
        elif (pairing := planned.lock.models[model].pairing).image != name:
            yield ModelOutcome(model, "elsewhere", str(pairing.image))


def _keep_patches(workspace: Workspace, planned: PlannedImage) -> None:
    for part in planned.plan.chain:
        vendored.keep(workspace.project, part.definition.name, part.pins, planned.patches)


def _recorded(lock: Lock, name: ImageName, planned: PlannedImage, record: NumberedImage, *, promote: bool) -> Lock:
    lock = _with_pins(lock.with_image(name, record), planned)
    repository = lock.images[name.repository]
    if promote or repository.current is None:
        lock = lock.with_repository(name.repository, repository.with_current(name.number))
    return _with_pairings(lock, name, planned, planned.models)


def _with_pins(lock: Lock, planned: PlannedImage) -> Lock:
    for part in planned.plan.chain:
        lock = lock.with_pins(part.definition.name, part.definition.platform, part.pins)
    return lock


def _with_pairings(lock: Lock, name: ImageName, planned: PlannedImage, models: tuple[str, ...]) -> Lock:
    recipe = planned.recipe.file if planned.recipe else None
    for model in models:
        lock = lock.with_pairing(model, Pairing(name, recipe, planned.revisions.get(model)))
    return lock
