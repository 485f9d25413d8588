"""The server of a model that is upgraded: as it was until the upgrade is decided, then on the image that counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.building import work_folder
from builder.commands import restart
from builder.commands.shared import beside as shared
from builder.commands.upgrade_parts import target
from builder.serving.preparation import ServeRequest
from builder.upgrading.steps import ServerSettled

if TYPE_CHECKING:
    from builder.upgrading.steps import Event, Upgrade
    from builder.workspace import Workspace


def settle(workspace: Workspace, upgrade: Upgrade) -> Event:
    """Leaves the server on what counts now, where one was running at the start."""
    if upgrade.result != "promoted":
        serve_as_before(workspace, upgrade)
        return ServerSettled()
    _stop_candidates(workspace, upgrade)
    recipe = target.recipe_of_target(workspace, upgrade)
    if not upgrade.served or recipe is None:
        return ServerSettled()
    server = shared.server_of(workspace, recipe)
    if server and server.image == upgrade.candidate and server.head.service.is_up:
        return ServerSettled()
    result = restart.run(workspace, ServeRequest(recipe.file, {}), detach=False)
    if back := result.put_back:
        return ServerSettled(f"{back.model} was put back on {back.to}: {back.why}")
    return ServerSettled()


def serve_as_before(workspace: Workspace, upgrade: Upgrade) -> None:
    """Ends what a candidate left, and starts the model's own server again, as it was, where it ran at the start."""
    if upgrade.stage in {"build", "prove"}:
        work_folder.remove_stale(workspace)
    _stop_candidates(workspace, upgrade)
    recipe = target.recipe_of_target(workspace, upgrade)
    if upgrade.served and recipe is not None:
        shared.serve_again(workspace, recipe)


def _stop_candidates(workspace: Workspace, upgrade: Upgrade) -> None:
    if recipe := target.recipe_of_target(workspace, upgrade):
        shared.stop_left_over(workspace, recipe, "which an interrupted upgrade left")
