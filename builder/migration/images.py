"""Images of the engine that a checkout's recipes name: those that could get a number, and the state of each name."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.definitions import image
from builder.engine import images, reference
from builder.errors import ImageStateError
from builder.lock import reading
from builder.serving import image_selection

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from builder.definitions.recipes.recipe import Recipe
    from builder.engine.images import ImageDetails
    from builder.lock.model import Lock
    from builder.project import Project
    from builder.workspace import Workspace

# The names that build-and-copy.sh gives its images, for scripts that start them without a recipe.
DEFAULT_NAMES = ("vllm-node", "vllm-node-tf5", "vllm-node-mxfp4", "vllm-node-b12x")
# What an engine takes for a name: for any other it refuses the whole question.
_NAME = re.compile(r"[a-z0-9]+(?:(?:[._/]|__|-+|:[0-9]+/)[a-z0-9]+)*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?")
# Numbers, and the names that images have while they get one.
_OURS = re.compile(r"[0-9]+|adopting-[0-9a-f]+")


@dataclass(frozen=True)
class AdoptableImage:
    """An image of the engine without a number, by one of its tags. ``promote`` if it would become the current one: it
    is ``latest``, and its repository has no numbers yet."""

    tag: str
    size: int
    created: str
    promote: bool

    @property
    def repository(self) -> str:
        return reference.repository(self.tag)


@dataclass(frozen=True)
class ContainerState:
    """A container that so many ``recipes`` name. What serves them, if anything: ``number`` is the current image of that
    repository, ``tag`` an image of the engine without a number; ``definition`` is what builds such images."""

    container: str
    recipes: int
    number: str = ""
    tag: str = ""
    definition: str = ""


def adoptable(workspace: Workspace, recipes: Sequence[Recipe]) -> tuple[AdoptableImage, ...]:
    """The images of the engine without a number that ``recipes`` and scripts start: all tags of such a repository, but
    of a registry's only the one that a recipe names. ``latest`` is the first of its repository, since whatever gets the
    first number becomes what that tag means.

    Raises EngineError where no engine answers, LockError for a damaged images.lock.
    """
    containers = {*DEFAULT_NAMES, *(recipe.container for recipe in recipes)}
    references = {
        ":".join(reference.split_tag(name)) if "/" in name else reference.repository(name)
        for name in containers
        if _NAME.fullmatch(name)
    }
    lock = reading.of(workspace.project)
    by_image: dict[tuple[str, str], list[str]] = {}
    for tag, identity in images.tags(workspace.engine, sorted(references)).items():
        repository, name = reference.split_tag(tag)
        if not _OURS.fullmatch(name):
            by_image.setdefault((repository, identity), []).append(tag)
    collected = []
    for (repository, _), same in by_image.items():
        tag = min(same, key=lambda tag: (not tag.endswith(":latest"), tag))
        details = images.inspect(workspace.engine, tag)
        if details is not None and not _is_numbered(lock, repository, details):
            is_first = repository not in lock.images or not lock.images[repository].numbers
            collected.append(AdoptableImage(tag, details.size, details.created, is_first and tag.endswith(":latest")))
    return tuple(sorted(collected, key=lambda each: (each.repository, not each.tag.endswith(":latest"), each.created)))


def states(
    workspace: Workspace, recipes: Sequence[Recipe], adoptable_images: Sequence[AdoptableImage]
) -> tuple[ContainerState, ...]:
    """The state of the container of each of ``recipes``. Raises as `adoptable` does."""
    lock = reading.of(workspace.project)
    collected = []
    for state, recipe in _by_container(workspace.project, recipes):
        number = _number(lock, recipe)
        tags = [each.tag for each in adoptable_images if each.tag == ":".join(reference.split_tag(state.container))]
        if not number and not tags and _NAME.fullmatch(state.container):
            tags = [state.container] if images.inspect(workspace.engine, state.container) else []
        collected.append(replace(state, number=number, tag="" if number else "".join(tags[:1])))
    return tuple(collected)


def without_engine(project: Project, recipes: Sequence[Recipe]) -> tuple[ContainerState, ...]:
    """The state of the container of each of ``recipes``, as far as files tell."""
    return tuple(state for state, _ in _by_container(project, recipes))


def _by_container(project: Project, recipes: Sequence[Recipe]) -> Iterator[tuple[ContainerState, Recipe]]:
    """Each container, with one of the recipes that name it."""
    counts = Counter(recipe.container for recipe in recipes)
    first = {recipe.container: recipe for recipe in recipes}
    for container, count in sorted(counts.items()):
        definition = image.of_repository(project, first[container].repository) or ""
        yield ContainerState(container, count, definition=definition), first[container]


def _number(lock: Lock, recipe: Recipe) -> str:
    """The number that serves a recipe, whichever model it has; empty where there is none."""
    try:
        return str(image_selection.for_recipe(lock, replace(recipe, model=None)).image)
    except ImageStateError:
        return ""


def _is_numbered(lock: Lock, repository: str, details: ImageDetails) -> bool:
    numbers = lock.images[repository].numbers if repository in lock.images else {}
    return any(record.fingerprint == images.fingerprint(details) for record in numbers.values())
