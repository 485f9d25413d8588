"""The ``recipes show`` command: a recipe, the commands that it starts on one machine and on several, and its image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.commands import recipes_check, recipes_list
from builder.commands.recipes_check import CheckedRecipe
from builder.definitions import configuration, image, serving, target
from builder.definitions.configuration import Node
from builder.definitions.recipes import cluster, cluster_network, command, container
from builder.definitions.recipes import recipe as recipes
from builder.definitions.serving import ServeSettings
from builder.lock import reading

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builder.commands.recipes_list import RecipeRow
    from builder.definitions.recipes.arguments import Backend
    from builder.definitions.recipes.command import ServeCommand
    from builder.definitions.recipes.recipe import Recipe
    from builder.project import Project
    from builder.workspace import Workspace


@dataclass(frozen=True)
class ShowRequest:
    """A request to show the recipe called ``text``; ``overrides`` and ``extra`` change its command, ``nodes`` serve it.
    A node that builder.yaml does not have is one at the address that it is called by."""

    text: str
    overrides: Mapping[str, str]
    extra: Sequence[str] = ()
    nodes: Sequence[str] = ()
    backend: Backend | None = None


@dataclass(frozen=True)
class ShownNode:
    """A node and what runs on it: ``argv``, beside it ``ray`` on the head of Ray, in a container with the variables
    ``env`` and these devices and capabilities."""

    node: str
    argv: tuple[str, ...]
    ray: tuple[str, ...]
    env: dict[str, str]
    devices: tuple[str, ...]
    capabilities: tuple[str, ...]


@dataclass(frozen=True)
class ShownRecipe:
    """A recipe, the command that it starts, and the image that serves it. ``nodes`` are those that were asked for, the
    head first; ``note`` says which of them are left alone, or why one machine does not serve it."""

    row: RecipeRow
    command: ServeCommand
    nodes: tuple[ShownNode, ...]
    note: str


def run(workspace: Workspace, request: ShowRequest) -> tuple[ShownRecipe, str]:
    """Reads a recipe and renders its command, for one machine and for the nodes. The second value says why the state of
    its image is unknown, and is empty where it is known.

    Raises UsageError where there is no such recipe, FileProblemsError for an error in its file or the overrides.
    """
    recipe = target.find_recipe(workspace.project, request.text)
    rendered = command.render(recipe, request.overrides, request.extra)
    nodes, note = _nodes(workspace.project, recipe, rendered, request)
    parsed = recipes.read(workspace.project, workspace.project.root / recipe.file)
    lock = reading.of(workspace.project)
    checked = CheckedRecipe(recipe.file, recipe, (), recipes_check.notes(workspace.project, lock, parsed))
    overview = recipes_list.overview(workspace, lock, [checked])
    return ShownRecipe(overview.rows[0], rendered, nodes, note), overview.engine_error


def _nodes(
    project: Project, recipe: Recipe, rendered: ServeCommand, request: ShowRequest
) -> tuple[tuple[ShownNode, ...], str]:
    configured = {node.name: node for node in configuration.load(project).nodes} if request.nodes else {}
    nodes = [configured.get(name, Node(name, name, address=name)) for name in dict.fromkeys(request.nodes)]
    cluster.require_several(request.backend, len(nodes))
    definition = image.of_repository(project, recipe.repository)
    of_image = serving.of(project, definition) if definition else ServeSettings()
    own = container.environment(rendered, of_image)
    if len(nodes) < 2:
        note = "several machines serve it together: name them with --node" if recipe.cluster_only else ""
        return tuple(ShownNode(node.name, rendered.argv, (), own, (), ()) for node in nodes), note
    backend = cluster.backend_of(recipe, request.backend)
    together = cluster.of(recipe, request.overrides, request.extra, nodes, backend)
    shown = []
    for member in together.members:
        env = cluster_network.combined(own, member.node, member.address, backend)
        link = cluster_network.devices(member.node, gpus=of_image.gpus == "all")
        shown.append(ShownNode(member.node.name, member.argv, member.ray, env, *link))
    return tuple(shown), together.note
