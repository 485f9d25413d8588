"""Builds outside the engine: the buildx instance that runs them, and the build cache that machines share."""

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


def with_builder(workspace: Workspace, name: str | None) -> Workspace:
    """The workspace with the buildx instance that builds for its engine: ``name``, or that of builder.yaml, or the
    engine's own."""
    instance = name or configuration.load(workspace.project).builder
    return replace(workspace, engine=replace(workspace.engine, instance=instance)) if instance else workspace


def require_reachable_bases(endpoint: Endpoint, plans: Iterable[Plan]) -> None:
    """Raises UsageError where a BuildKit outside this engine needs a base image that only this engine has."""
    if not endpoint.builds_elsewhere:
        return
    for plan in plans:
        base = plan.chain[0].pins.base
        if base and base.resolved.startswith("local:"):
            raise UsageError(
                f"the buildx instance `{endpoint.instance}` cannot see {base.requested}, which only this engine has",
                hint="push that image to a registry and name it there in image.yaml, or build without --builder",
            )


def cache_options(project: Project, definition: str) -> dict[str, str]:
    """The options that import and export the build cache of a definition; empty unless builder.yaml enables it.

    A build does not fail because the registry does not answer.
    """
    config = configuration.load(project)
    if not config.cache:
        return {}
    cache = f"type=registry,ref={config.required_registry()}/{definition}:{_CACHE_TAG}"
    return {"from": cache, "to": f"{cache},mode=max,ignore-error=true"}
