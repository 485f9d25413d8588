"""The options of a server's container in a project: those of builder.yaml, its recipe and the request together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from builder.definitions import configuration
from builder.definitions.recipes import container_options, earlyoom
from builder.engine import containers
from builder.errors import ImageStateError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builder.definitions.recipes.container import ContainerSettings
    from builder.definitions.recipes.container_options import ContainerOptions
    from builder.definitions.recipes.recipe import Recipe
    from builder.definitions.requested_options import RequestedOptions
    from builder.engine.client.endpoint import Endpoint
    from builder.project import Project

_CHECK = "builder.serve.check"
_CHECK_SECONDS = 60.0


def settle(
    project: Project, recipe: Recipe, typed: RequestedOptions, environ: Mapping[str, str], nodes: int = 1
) -> tuple[ContainerOptions, Recipe]:
    """The options for a container of ``recipe`` on each of so many ``nodes``, and the recipe without the variables that
    are typed in place of its own.

    Raises UsageError for an option that is wrong, or cannot be used with several nodes, FileProblemsError for a volume
    of the recipe that is wrong.
    """
    configured = configuration.load(project).container
    if nodes > 1:
        if typed.publish:
            raise UsageError(
                "ports can be published on one machine only: several nodes use the network of their machines",
                hint="`--port N` has the server listen on another port",
            )
        configured = replace(configured, publish=())
    return container_options.settle(configured, recipe, typed, environ, (project.root, Path.cwd()))


def completed(settings: ContainerSettings, options: ContainerOptions, typed: RequestedOptions) -> ContainerSettings:
    """``settings`` of a node's container with what counts after the node's own: the variables that are ``typed``, and
    earlyoom beside whatever runs there."""
    variables = container_options.typed_variables(typed)
    argv = earlyoom.beside(settings.argv) if options.earlyoom else settings.argv
    return replace(settings, argv=argv, env=container_options.with_variables(settings.env, variables))


def require_usable(containers: Sequence[tuple[ContainerSettings, Endpoint]], options: ContainerOptions) -> None:
    """Raises UsageError where a volume of a container is missing on this machine, ImageStateError where its image lacks
    earlyoom and is to run it."""
    for settings, endpoint in containers:
        require_volumes(settings, endpoint)
        if options.earlyoom:
            require_earlyoom(settings, endpoint)


def require_volumes(settings: ContainerSettings, endpoint: Endpoint) -> None:
    """Raises UsageError where a volume is missing on this machine; on another one the engine says so."""
    if not endpoint.host.startswith("unix://"):
        return
    for mount in settings.mounts:
        if not mount.ours and not Path(mount.source).exists():
            raise UsageError(
                f"the volume {mount} cannot be mounted: {mount.source} does not exist",
                hint=f"`mkdir -p {mount.source}` if an empty folder is wanted",
            )


def require_earlyoom(settings: ContainerSettings, endpoint: Endpoint) -> None:
    """Raises ImageStateError where the image of a container with earlyoom does not have it."""
    with containers.running(endpoint, settings.image, labels={_CHECK: "earlyoom"}) as container:
        result = container.run(["sh", "-c", f"command -v {earlyoom.PROGRAM}"], timeout=_CHECK_SECONDS)
    if result.exit_code:
        raise ImageStateError(
            f"{settings.image} has no {earlyoom.PROGRAM}: nothing was started",
            hint=f"install the package {earlyoom.PROGRAM} in its Dockerfile.j2 and build again, or run without it: "
            "`--no-earlyoom`, or no `earlyoom` in builder.yaml",
        )
