"""The state of the numbered images of images.lock in the engine: present, missing, moved, or pruned."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from builder.engine import tag_cache
from builder.errors import EngineError
from builder.lock.model import ImageName, Lock, NumberedImage
from builder.numbered import claims, identity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.workspace import Workspace

ImageState = Literal["present", "missing", "moved", "pruned", "unknown"]


@dataclass(frozen=True)
class ImageRow:
    """A numbered image with its state now, and the models that are paired with it."""

    name: ImageName
    image: NumberedImage
    current: bool
    state: ImageState
    models: tuple[str, ...]


@dataclass(frozen=True)
class ImageOverview:
    """All numbered images, the newest of a repository first. ``stray`` names the repositories whose ``latest`` tag is
    not the current number, though no other project has it; ``foreign`` those where another project has it, with that
    project. ``engine_error`` says why every state is unknown, and is empty where an engine answered."""

    rows: tuple[ImageRow, ...]
    stray: tuple[str, ...]
    engine_error: str
    foreign: Mapping[str, str] = field(default_factory=dict)


def overview(workspace: Workspace, lock: Lock) -> ImageOverview:
    """Looks at every number in the lock; where no engine answers, every state is unknown."""
    try:
        by_name, ids = states(workspace, lock)
        own = identity.existing(workspace.project)
        owners = {
            name: claims.owner_of_latest(workspace.engine, own, name)
            for name, repository in lock.images.items()
            if by_name.get(ImageName(name, repository.current or 0)) == "present"
            and ids.get(f"{name}:latest") != ids[f"{name}:{repository.current}"]
        }
    except EngineError as error:
        return ImageOverview(_rows(lock, dict.fromkeys(_names(lock), "unknown")), (), error.message)
    stray = tuple(name for name, owner in owners.items() if owner is None)
    foreign = {name: str(owner) for name, owner in owners.items() if owner}
    return ImageOverview(_rows(lock, by_name), stray, "", foreign)


def states(workspace: Workspace, lock: Lock) -> tuple[dict[ImageName, ImageState], dict[str, str]]:
    """Returns the state of every number in the lock, and the engine's id of the image behind each tag.

    Raises EngineError where none answers.
    """
    names = _names(lock)
    in_engine = tag_cache.find(workspace.engine, lock.images, map(str, names), workspace.project.engine_cache)
    by_name: dict[ImageName, ImageState] = {}
    for name in names:
        fingerprint = in_engine.fingerprints.get(str(name))
        image = lock.images[name.repository].numbers[name.number]
        if fingerprint is None:
            by_name[name] = "pruned" if image.pruned else "missing"
        else:
            by_name[name] = "present" if fingerprint == image.fingerprint else "moved"
    return by_name, in_engine.ids


def _names(lock: Lock) -> list[ImageName]:
    return [ImageName(name, number) for name, repository in lock.images.items() for number in repository.numbers]


def _rows(lock: Lock, by_name: dict[ImageName, ImageState]) -> tuple[ImageRow, ...]:
    serving: dict[ImageName, list[str]] = {}
    for model, record in lock.models.items():
        serving.setdefault(record.pairing.image, []).append(model)
    rows = []
    for name in sorted(by_name, key=lambda name: (name.repository, -name.number)):
        repository = lock.images[name.repository]
        current = repository.current == name.number
        models = tuple(sorted(serving.get(name, ())))
        rows.append(ImageRow(name, repository.numbers[name.number], current, by_name[name], models))
    return tuple(rows)
