"""The end of an upgrade: pins, pairings and ``latest`` move to the candidate, all in one transaction."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from builder.commands.upgrade_parts import candidate, target
from builder.lock import reading
from builder.lock.model import ImageName, Pairing
from builder.numbered import images_lock, pointers
from builder.numbered.pointers import PointerMove
from builder.storage import regular_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.lock.model import Lock
    from builder.lock.pins import Pins
    from builder.upgrading.steps import Upgrade
    from builder.workspace import Workspace

_LARGEST_RECORD = 16 << 20


def move(workspace: Workspace, upgrade: Upgrade) -> tuple[str, ...]:
    """Moves pins, pairings and ``latest`` in one transaction, or nothing at all: returns the reasons then."""
    name = upgrade.candidate_image
    pins = _pins(workspace, name)
    with images_lock.transaction(workspace) as transaction:
        lock = transaction.lock
        if are_moved(lock, upgrade):
            return ()
        reasons = _moved_meanwhile(lock, upgrade) or candidate.reasons(workspace, name, upgrade.models)
        if reasons:
            return reasons
        moves = _moves(lock, upgrade)
        pointers.require_allowed(workspace.engine, lock, moves, force=False)
        for definition, by_platform in pins.items():
            for platform, of_platform in by_platform.items():
                lock = lock.with_pins(definition, platform, of_platform)
        for move in moves:
            if move.is_model:
                recipe = target.recipe_of(workspace, upgrade, move.what)
                earlier = lock.models.get(move.what)
                pairing = pointers.pairing_with(earlier, name) if earlier else Pairing(name)
                lock = lock.with_pairing(move.what, replace(pairing, recipe=recipe.file if recipe else pairing.recipe))
            else:
                lock = pointers.apply(lock, (move,))
        transaction.commit(lock)
    return ()


def are_moved(lock: Lock, upgrade: Upgrade) -> bool:
    name = upgrade.candidate_image
    if not upgrade.models:
        return lock.images[name.repository].current == name.number
    return all(model in lock.models and lock.models[model].pairing.image == name for model in upgrade.models)


def _pins(workspace: Workspace, name: ImageName) -> Mapping[str, Mapping[str, Pins]]:
    """The pins that a number was built with, from its build directory."""
    path = workspace.project.build_directory(name.repository, name.number) / images_lock.RECORD
    return reading.parse_bytes(regular_file.read(path, _LARGEST_RECORD), images_lock.RECORD).pins


def _moves(lock: Lock, upgrade: Upgrade) -> tuple[PointerMove, ...]:
    """The moves to the candidate: of its models, and of ``latest`` where that is on the image before, or nowhere."""
    name = upgrade.candidate_image
    origin = upgrade.image_before
    moves = [PointerMove(model, True, origin, name) for model in upgrade.models]
    current = lock.images[name.repository].current
    if current is None or (origin and origin == ImageName(name.repository, current)):
        moves.append(PointerMove(name.repository, False, origin, name))
    return tuple(moves)


def _moved_meanwhile(lock: Lock, upgrade: Upgrade) -> tuple[str, ...]:
    """The reasons why an upgrade no longer fits: the user has moved the models that it began with."""
    paired = {model: lock.models[model].pairing.image for model in upgrade.models if model in lock.models}
    return tuple(
        f"{model} was moved to {image} meanwhile"
        for model, image in paired.items()
        if upgrade.before and str(image) != upgrade.before
    )
