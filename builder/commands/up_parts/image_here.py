"""The image that serves, brought into the engine where it is not: pulled, built, or built again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from builder.building.request import AlreadyBuilt, BuildRequest, Built
from builder.commands import bringing_back, build, copy
from builder.commands.up_parts.part import UpPart
from builder.distribution import retrieval
from builder.engine import images
from builder.errors import ImageStateError
from builder.lock import reading
from builder.serving import image_selection
from builder.serving.image_selection import SelectedImage, UnnumberedImage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.commands.up_parts.part import PartOutcome
    from builder.serving.image_selection import ServedImage
    from builder.workspace import Workspace


def ensure(workspace: Workspace, selection: ServedImage) -> UpPart:
    """Makes sure that the engine has the image. A number that was pruned or lost is brought back; where there is no
    number yet, the recipe's own image is built, and one that others build is pulled.

    Raises ImageStateError where there is no way to it, and what `build` and `bring_back` do.
    """
    started = time.monotonic()
    if isinstance(selection, SelectedImage):
        lock = reading.of(workspace.project)
        outcome: PartOutcome = bringing_back.bring_back(workspace, lock, selection.image)
        name = selection.name
    elif selection.definition:
        outcome, name = _build(workspace, selection)
    else:
        outcome, name = _of_others(workspace, selection), selection.name
    return UpPart("image", name, outcome, time.monotonic() - started)


def ensure_on_nodes(workspace: Workspace, selection: ServedImage, nodes: Sequence[str]) -> UpPart:
    """Makes sure that the nodes have a numbered image. Raises ImageStateError for one without a number, which cannot be
    copied, and the error of the first node that could not get it."""
    started = time.monotonic()
    if isinstance(selection, UnnumberedImage):
        raise ImageStateError(
            f"{selection.name} has no number, and only a numbered image is copied to nodes",
            hint=f"`builder adopt {selection.name}` gives it one",
        )
    copied = copy.run(workspace, selection.name, nodes)
    for outcome in copied.outcomes.values():
        if outcome.error:
            raise outcome.error
    was_there = all(outcome.layers is None for outcome in copied.outcomes.values())
    seconds = time.monotonic() - started
    return UpPart("nodes", ", ".join(copied.outcomes), "here" if was_there else "copied", seconds, selection.name)


def _build(workspace: Workspace, selection: UnnumberedImage) -> tuple[PartOutcome, str]:
    """Builds the image of a recipe, and returns the one that serves it then: a build whose evidence is missing gets a
    number and moves nothing. Raises ImageStateError where the recipe still has none."""
    made = [each for each in build.run(workspace, BuildRequest((selection.recipe.file,))) if not _is_pushed(each)]
    lock = reading.of(workspace.project)
    serves = image_selection.for_recipe(lock, selection.recipe)
    return ("built" if any(isinstance(each, Built) for each in made) else "here"), serves.name


def _is_pushed(result: object) -> bool:
    return not isinstance(result, AlreadyBuilt | Built)


def _of_others(workspace: Workspace, selection: UnnumberedImage) -> PartOutcome:
    if images.inspect(workspace.engine, selection.name) is not None:
        return "here"
    retrieval.pull_unnumbered(workspace, selection.name)
    return "pulled"
