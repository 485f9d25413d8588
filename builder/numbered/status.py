"""How the numbered images of images.lock stand in the engine: present, missing, moved, or pruned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from builder.errors import EngineError
from builder.lock.model import ImageName, Lock, NumberedImage
from builder.numbered import contents

if TYPE_CHECKING:
    from builder.workspace import Workspace

ImageState = Literal["present", "missing", "moved", "pruned", "unknown"]


@dataclass(frozen=True)
class ImageRow:
    """A numbered image with all that is known of it now."""

    name: ImageName
    image: NumberedImage
    current: bool
    state: ImageState
    models: tuple[str, ...]


@dataclass(frozen=True)
class ImageOverview:
    """All numbered images, the newest of a repository first. ``stray`` names the repositories whose ``latest`` tag is
    not the current number; ``engine_error`` says why every state is unknown, and is empty where an engine answered."""

    rows: tuple[ImageRow, ...]
    stray: tuple[str, ...]
    engine_error: str


def overview(workspace: Workspace, lock: Lock) -> ImageOverview:
    """Looks at every number in the lock; where no engine answers, every state is unknown."""
    try:
        known, tags = states(workspace, lock)
    except EngineError as error:
        return ImageOverview(_rows(lock, dict.fromkeys(_names(lock), "unknown")), (), error.message)
    stray = tuple(
        repo
        for repo, held in lock.images.items()
        if known.get(ImageName(repo, held.current or 0)) == "present"
        and tags.get(f"{repo}:latest") != tags[f"{repo}:{held.current}"]
    )
    return ImageOverview(_rows(lock, known), stray, "")


def states(workspace: Workspace, lock: Lock) -> tuple[dict[ImageName, ImageState], dict[str, str]]:
    """How every number in the lock stands, and the engine's id of the image behind each tag.

    Raises EngineError where none answers.
    """
    names = _names(lock)
    there = contents.look(workspace, lock.images, map(str, names))
    found: dict[ImageName, ImageState] = {}
    for name in names:
        content = there.fingerprints.get(str(name))
        image = lock.images[name.repository].numbers[name.number]
        if content is None:
            found[name] = "pruned" if image.pruned else "missing"
        else:
            found[name] = "present" if content == image.fingerprint else "moved"
    return found, there.tags


def _names(lock: Lock) -> list[ImageName]:
    return [ImageName(repo, number) for repo, held in lock.images.items() for number in held.numbers]


def _rows(lock: Lock, known: dict[ImageName, ImageState]) -> tuple[ImageRow, ...]:
    serving: dict[ImageName, list[str]] = {}
    for model, held in lock.models.items():
        serving.setdefault(held.pairing.image, []).append(model)
    rows = []
    for name in sorted(known, key=lambda name: (name.repository, -name.number)):
        repository = lock.images[name.repository]
        current = repository.current == name.number
        models = tuple(sorted(serving.get(name, ())))
        rows.append(ImageRow(name, repository.numbers[name.number], current, known[name], models))
    return tuple(rows)
