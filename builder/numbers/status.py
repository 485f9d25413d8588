"""This page finds numbered images by name and reports their state in the engine.

Names as the user types them come first, then the states: present, missing, moved or pruned.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from builder.base import records
from builder.base.errors import EngineError, FileProblemsError, UsageError
from builder.base.values import asdict, dataclass, field
from builder.engine import images
from builder.lock import checking
from builder.lock.model import ImageName, Lock, NumberedImage

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.definitions.recipe import Recipe
    from builder.numbers.workspace import Workspace


# Names of numbered images as the user types them (``vllm-node-tf5:7``, ``tf5:7``), looked up in images.lock.

_HINT = "`builder list` shows the numbered images; `builder adopt IMAGE` gives a number to an image of the engine"


def named_repository(project: Project, lock: Lock, text: str) -> str | None:
    """The repository called ``text``, or the repository of the definition called ``text``; None if neither exists.
    Raises FileProblemsError if only a definition that cannot be read could have it, and no recipe is called so."""
    if text in lock.images:
        return text
    from builder.definitions import image, recipe

    if text in image.definition_names(project):
        return image.repository_of(project, text)
    if not checking.is_a("repository", text):  # such as a model
        return None
    try:
        return text if image.of_repository(project, text) else None
    except FileProblemsError:
        if recipe.find_recipe(project, text):
            return None
        raise


def named_number(project: Project, lock: Lock, text: str) -> tuple[ImageName, NumberedImage]:
    """The numbered image called ``text``. A name without a number means the current number. A model or a recipe means
    the image that serves it.

    Raises UsageError if images.lock has no such image, FileProblemsError for a recipe that cannot be read.
    """
    name, colon, number = text.rpartition(":")
    if name not in lock.images and (served := _serving(project, lock, text)) and (image := lock.image(served)):
        return served, image
    repository_name = named_repository(project, lock, name if colon else text)
    record = lock.images.get(repository_name) if repository_name else None
    if repository_name is None or record is None:
        builds = f"`builder build {name if colon else text}` builds the first one; " if repository_name else ""
        raise UsageError(f"images.lock has no image `{text}`", hint=builds + _HINT)
    if not colon or number == "latest":
        number = str(record.current or "")
    if not number.isdecimal() or len(number) > 18 or int(number) not in record.numbers:
        shown = sorted(record.numbers, reverse=True)
        numbers = ", ".join(map(str, shown[:10])) + (" …" if len(shown) > 10 else "")
        lacking = f"number {number[:20]}" if number else "current number"
        raise UsageError(f"{repository_name} has no {lacking}", hint=f"its numbers: {numbers}")
    return ImageName(repository_name, int(number)), record.numbers[int(number)]


def named_recipe(project: Project, lock: Lock, text: str) -> Recipe | None:
    """The recipe called ``text``; None if it does not exist, or if a repository or a definition has that name. Raises
    FileProblemsError if the recipe cannot be read."""
    from builder.definitions import recipe

    path = None if named_repository(project, lock, text) else recipe.find_recipe(project, text)
    return recipe.load_recipe(project, path) if path else None


def named_model(project: Project, lock: Lock, text: str) -> str | None:
    """The model of images.lock called ``text``, or the model of the recipe called ``text``; None if neither exists."""
    if text in lock.models:
        return text
    named = named_recipe(project, lock, text)
    return named.model if named and named.model in lock.models else None


def _serving(project: Project, lock: Lock, text: str) -> ImageName | None:
    """The image that serves the model or the recipe called ``text``: the paired image, else the recipe's number, else
    the current number of the recipe's repository."""
    if paired := named_model(project, lock, text):
        return lock.models[paired].pairing.image
    named = named_recipe(project, lock, text)
    current = lock.images[named.repository].current if named and named.repository in lock.images else None
    number = (named.number or current) if named else None
    return ImageName(named.repository, number) if named and number else None


# The state of the numbered images of images.lock in the engine: present, missing, moved, or pruned.

ImageState = Literal["present", "missing", "moved", "pruned", "unknown"]


@dataclass(frozen=True)
class ImageRow:
    """A numbered image with its present state, and the models that are paired with it. It is ``only_here`` if nobody
    else is known to have the image and it cannot be built again."""

    name: ImageName
    image: NumberedImage
    current: bool
    state: ImageState
    models: tuple[str, ...]
    only_here: bool = False


@dataclass(frozen=True)
class UpstreamAnswers:
    """The answers that `builder doctor --upstream` got ``at`` a time (RFC 3339 UTC, empty for never). ``gone`` are
    images of others that are missing upstream and that the owner had not copied, each with what uses it.
    ``only_here`` are the numbers that are such an image or are built on one."""

    at: str = ""
    gone: Mapping[str, str] = field(default_factory=dict)
    only_here: tuple[str, ...] = ()


_UPSTREAM = "upstream"


def record_upstream(project: Project, answers: UpstreamAnswers) -> None:
    images.store_cache(project.engine_cache, _UPSTREAM, asdict(answers))


@dataclass(frozen=True)
class ImageOverview:
    """All numbered images, the newest of a repository first. ``stray`` names the repositories whose ``latest`` tag is
    not the current number, although no other project owns the tag; true if an image without a number has the tag.
    ``foreign`` names the repositories whose tag another project owns, with that project. ``engine_error`` says why
    every state is unknown; empty if an engine answered."""

    rows: tuple[ImageRow, ...]
    stray: Mapping[str, bool]
    engine_error: str
    foreign: Mapping[str, str] = field(default_factory=dict)
    upstream: UpstreamAnswers = UpstreamAnswers()


def status_overview(workspace: Workspace, lock: Lock) -> ImageOverview:
    """Checks every number in the lock. If no engine answers, every state is unknown."""
    try:
        by_name, ids = image_states(workspace, lock)
        elsewhere = [
            name
            for name, repository in lock.images.items()
            if by_name.get(ImageName(name, repository.current or 0)) == "present"
            and ids.get(f"{name}:latest") != ids[f"{name}:{repository.current}"]
        ]
        owners = {}
        if elsewhere:
            from builder.numbers import claims

            own = claims.existing_identity(workspace.project)
            owners = {name: claims.owner_of_latest(workspace.engine, own, name) for name in elsewhere}
    except EngineError as error:
        return ImageOverview(_rows(lock, dict.fromkeys(_names(lock), "unknown"), ()), {}, error.message)
    numbered = {None, *(ids[str(name)] for name, state in by_name.items() if state == "present")}
    stray = {name: ids.get(f"{name}:latest") not in numbered for name, owner in owners.items() if owner is None}
    foreign = {name: str(owner) for name, owner in owners.items() if owner}
    upstream = UpstreamAnswers()
    with suppress(records.RecordError):
        upstream = records.record(UpstreamAnswers, images.load_cache(workspace.project.engine_cache).get(_UPSTREAM, {}))
    return ImageOverview(_rows(lock, by_name, upstream.only_here), stray, "", foreign, upstream)


def image_states(workspace: Workspace, lock: Lock) -> tuple[dict[ImageName, ImageState], dict[str, str]]:
    """Returns the state of every number in the lock, and the engine's id of the image behind each tag.

    Raises EngineError if no engine answers.
    """
    names = _names(lock)
    ids, fingerprints = images.find_images(
        workspace.engine, lock.images, map(str, names), workspace.project.engine_cache
    )
    by_name: dict[ImageName, ImageState] = {}
    for name in names:
        fingerprint = fingerprints.get(str(name))
        image = lock.images[name.repository].numbers[name.number]
        if fingerprint is None:
            by_name[name] = "pruned" if image.pruned else "missing"
        else:
            by_name[name] = "present" if fingerprint == image.fingerprint else "moved"
    return by_name, ids


def _names(lock: Lock) -> list[ImageName]:
    return [ImageName(name, number) for name, repository in lock.images.items() for number in repository.numbers]


def _rows(lock: Lock, by_name: dict[ImageName, ImageState], only_here: Collection[str]) -> tuple[ImageRow, ...]:
    rows = []
    for name in sorted(by_name, key=lambda name: (name.repository, -name.number)):
        repository = lock.images[name.repository]
        current = repository.current == name.number
        image = repository.numbers[name.number]
        # An adopted image without a name in a registry was never in one. An image that was pushed later has a copy.
        is_alone = str(name) in only_here or (image.adopted is not None and not image.adopted.digests)
        is_alone = is_alone and by_name[name] == "present" and not image.digest
        rows.append(ImageRow(name, image, current, by_name[name], lock.models_on(name), is_alone))
    return tuple(rows)
