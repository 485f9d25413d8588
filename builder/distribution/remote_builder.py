"""Building elsewhere than in the engine: which buildx instance, and the build cache that machines share."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from builder.definitions import configuration
from builder.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from builder.engine.client.endpoint import Endpoint
    from builder.plan.model import Plan
    from builder.project import Project
    from builder.workspace import Workspace

_CACHE_TAG = "buildcache"


def with_instance(workspace: Workspace, name: str | None) -> Endpoint:
    """The engine with the buildx instance that builds for it: ``name``, or that of builder.yaml, or its own."""
    found = name or configuration.load(workspace.project).builder
    return replace(workspace.engine, instance=found) if found else workspace.engine


def require_reachable_bases(endpoint: Endpoint, plans: Iterable[Plan]) -> None:
    """Raises UsageError where another BuildKit is to build on a base image that only this engine has."""
    if not endpoint.builds_elsewhere:
        return
    for plan in plans:
        base = plan.chain[0].pins.base
        if base and base.resolved.startswith("local:"):
            raise UsageError(
                f"the buildx instance `{endpoint.instance}` cannot see {base.asked}, which only this engine has",
                hint="push that image to a registry and name it there in image.yaml, or build without --builder",
            )


def cache_options(project: Project, definition: str) -> dict[str, str]:
    """Where the build cache of a definition's images comes from and goes to; empty unless builder.yaml asks for it.

    A registry that does not answer is no reason for a build to fail.
    """
    config = configuration.load(project)
    if not config.cache:
        return {}
    place = f"type=registry,ref={config.required_registry()}/{definition}:{_CACHE_TAG}"
    return {"from": place, "to": f"{place},mode=max,ignore-error=true"}
