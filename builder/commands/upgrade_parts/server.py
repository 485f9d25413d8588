"""The server of a model that is upgraded: as it was until the upgrade is decided, then on the image that counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.building import work_folder
from builder.commands import restart
from builder.commands.shared import beside as shared
from builder.commands.upgrade_parts import target
from builder.serving.preparation import ServeRequest

if TYPE_CHECKING:
    from builder.definitions.recipes.recipe import Recipe
    from builder.upgrading.steps import Upgrade
    from builder.workspace import Workspace


def settle(workspace: Workspace, upgrade: Upgrade) -> tuple[str, ...]:
    """Leaves the server on what counts now, where one was running at the start; returns notes on that."""
    if upgrade.result != "promoted":
        serve_as_before(workspace, upgrade)
        return ()
    recipe = _without_candidates(workspace, upgrade)
    server = shared.server_of(workspace, recipe)
    if recipe is None or (server and server.image == upgrade.candidate and server.head.service.is_up):
        return ()
    back = restart.run(workspace, ServeRequest(recipe.file, {}), detach=False).put_back
    return (f"{back.model} was put back on {back.to}: {back.why}",) if back else ()


def serve_as_before(workspace: Workspace, upgrade: Upgrade) -> None:
    """Ends what a candidate left, and starts the model's own server again, as it was, where it ran at the start."""
    work_folder.remove_stale(workspace)
    if recipe := _without_candidates(workspace, upgrade):
        shared.serve_again(workspace, recipe)


def _without_candidates(workspace: Workspace, upgrade: Upgrade) -> Recipe | None:
    """Ends what is left of candidates; returns the recipe of the server that ran at the start, None where none did."""
    recipe = target.recipe_of_target(workspace, upgrade)
    if recipe:
        shared.stop_left_over(workspace, recipe, "the candidate of an upgrade")
    return recipe if upgrade.served else None
