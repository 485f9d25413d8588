"""The server of a candidate, for as long as it is looked at; the model's own is as before afterwards."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from builder.commands import stop
from builder.commands.shared import beside as shared
from builder.definitions import image
from builder.definitions.recipes import recipe as recipes
from builder.definitions.recipes.container import STOPPING_SECONDS
from builder.errors import FileProblemsError
from builder.serving import beside, readiness, starting
from builder.serving.image_selection import UnnumberedImage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.bisecting.session import Bisection
    from builder.definitions.recipes.recipe import Recipe
    from builder.serving.running import RunningServer
    from builder.workspace import Workspace

_LEFT = "which a bisection left"


def recipe_of(workspace: Workspace, bisection: Bisection, text: str = "") -> Recipe:
    """The recipe of a bisection, or what another ``text`` of it means. Raises FileProblemsError."""
    if not text:
        return recipes.load(workspace.project, workspace.project.root / bisection.recipe)
    parsed = recipes.parse(text, bisection.recipe)
    if parsed.recipe is None or parsed.problems:
        raise FileProblemsError(parsed.problems)
    return parsed.recipe


def start(workspace: Workspace, bisection: Bisection, recipe: Recipe, tag: str) -> RunningServer:
    """Starts the server of the image ``tag`` and waits until it answers. Raises what `readiness.wait` does."""
    request = shared.request_as_before(workspace, recipe)
    definition = image.of_repository(workspace.project, bisection.repository)
    selection = UnnumberedImage(replace(recipe, container=tag), definition)
    prepared = beside.prepare(workspace, request, selection)
    shared.make_room(workspace, request.text, prepared)
    started = starting.start(prepared, workspace.environment)
    readiness.wait(workspace.project, started, workspace.report, limit=shared.start_limit(workspace, prepared))
    return started.server


@contextmanager
def served(workspace: Workspace, bisection: Bisection, recipe: Recipe, tag: str) -> Iterator[RunningServer]:
    """The server of the image ``tag`` for the duration of the block."""
    server = start(workspace, bisection, recipe, tag)
    try:
        yield server
    finally:
        stop.end(server, STOPPING_SECONDS)


def stop_candidates(workspace: Workspace, bisection: Bisection) -> None:
    """Ends the server of a candidate that is there."""
    if bisection.recipe and (workspace.project.root / bisection.recipe).is_file():
        shared.stop_left_over(workspace, recipe_of(workspace, bisection), _LEFT)


def serve_as_before(workspace: Workspace, bisection: Bisection) -> None:
    """Ends what candidates left, and starts the model's own server again where it ran at the beginning."""
    if bisection.recipe and (workspace.project.root / bisection.recipe).is_file():
        stop_candidates(workspace, bisection)
        if bisection.served:
            shared.serve_again(workspace, recipe_of(workspace, bisection))
