"""The up command on one page: the image, the model, the server. Each part does what is missing, and nothing twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.commands import download
from builder.commands import run as serving
from builder.commands.up_parts import image_here, model_here
from builder.commands.up_parts.part import PartBegan, PartEnded, UpPart
from builder.definitions import configuration
from builder.definitions.mods import mod_reading
from builder.engine.client import endpoint
from builder.errors import UsageError
from builder.lock import reading
from builder.nodes import machine_shell
from builder.serving import image_selection
from builder.serving.image_selection import UnnumberedImage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.commands.run import ServeResult
    from builder.serving.preparation import ServeRequest
    from builder.workspace import Workspace


@dataclass(frozen=True)
class UpResult:
    """A model that was brought up: what each part came to, and its server."""

    parts: tuple[UpPart, ...]
    served: ServeResult


def lacking_mods(workspace: Workspace, text: str) -> tuple[str, ...]:
    """The mods that the image for ``text`` is still to be built with, and that the project lacks. Raises UsageError
    where ``text`` names nothing that can be served."""
    selection = image_selection.select_any(workspace.project, reading.of(workspace.project), text)
    if not isinstance(selection, UnnumberedImage) or selection.definition is None:
        return ()
    existing = mod_reading.names(workspace.project)
    return tuple(name for name in map(mod_reading.name_of, selection.recipe.mods) if name not in existing)


def run(workspace: Workspace, request: ServeRequest, *, detach: bool) -> UpResult:
    """Brings a recipe or a model up: pulls or builds its image, downloads the model, starts the server and waits for
    it. Reports a `PartBegan` and a `PartEnded` for each. Ended in between, the same again goes on from there.

    Raises UsageError where the request names nothing that can be served, and what `build`, `pull`, `copy`, `download`
    and `run` do; what was done before stays done.
    """
    lock = reading.of(workspace.project)
    selection = image_selection.select_any(workspace.project, lock, request.text)
    recipe = selection.recipe
    nodes = tuple(request.nodes)
    if recipe.cluster_only and not nodes:
        nodes = tuple(node.name for node in configuration.load(workspace.project).nodes)
        if not nodes:
            raise UsageError(f"{recipe.file} is for several nodes", hint="name them in builder.yaml, or with --node")
    parts = []

    def ended(part: UpPart) -> None:
        parts.append(part)
        workspace.report(PartEnded(part))

    workspace.report(PartBegan("image"))
    ended(image_here.ensure(workspace, selection))
    if nodes:
        workspace.report(PartBegan("nodes"))
        now = image_selection.select_any(workspace.project, reading.of(workspace.project), request.text)
        ended(image_here.ensure_on_nodes(workspace, now, nodes))
    workspace.report(PartBegan("model"))
    far = _far(workspace, nodes)
    ended(model_here.ensure(workspace, recipe, download.DownloadRequest(request.text, nodes=far)))
    workspace.report(PartBegan("server"))
    served = serving.run(workspace, request, detach=detach)
    ended(UpPart("server", served.server.name, "here" if served.already else "started", served.seconds or 0.0))
    return UpResult(tuple(parts), served)


def _far(workspace: Workspace, nodes: Sequence[str]) -> tuple[str, ...]:
    """Those of ``nodes`` that are other machines: this one's cache is where models are downloaded to."""
    configured = configuration.load(workspace.project)
    engines = {name: configured.node(name).engine for name in nodes}
    hosts = {name: endpoint.of_node(workspace.environment, name, engine).host for name, engine in engines.items()}
    return tuple(name for name, host in hosts.items() if not machine_shell.is_here(host))
