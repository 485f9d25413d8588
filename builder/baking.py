"""One run of BuildKit over a build directory, with the person's certificates, package indexes, wheels and proxies."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from builder.engine import bake as engine_bake
from builder.errors import ImageStateError
from builder.plan import python
from builder.sources import environment, wheels

if TYPE_CHECKING:
    from pathlib import Path

    from builder.engine.endpoint import Endpoint
    from builder.events import Report
    from builder.plan.model import Plan
    from builder.project import Project
    from builder.work import Work


def bake(
    project: Project, endpoint: Endpoint, plan: Plan, work: Work, environ: Mapping[str, str], report: Report
) -> tuple[engine_bake.Baked, Path]:
    """Builds the plan whose directory ``work`` holds; returns what came of it and the file with the whole log.

    Raises BuildFailedError where a step fails, ImageStateError where the base is no longer the one that was pinned.
    """
    settings = environment.read(environ)
    _require_local_base(endpoint, plan)
    log = _log_file(project, work)
    baked = engine_bake.bake(
        endpoint,
        work.directory,
        name=work.tag,
        secrets=_secrets(settings),
        contexts=_contexts(plan, work, settings),
        # BuildKit knows the proxy arguments by name and keeps them out of the cache key and the image's history.
        args=dict(settings.proxies),
        log_path=log,
        on_event=report,
        environ={**environ, **_index_variables(settings)},
    )
    return baked, log


def _require_local_base(endpoint: Endpoint, plan: Plan) -> None:
    """A base that only this engine's store has is looked at again: a tag alone says nothing about its content."""
    from builder.engine import base

    pin = plan.pins.base
    if pin is None or not pin.resolved.startswith("local:"):
        return
    found = base.local_fingerprint(endpoint, pin.asked)
    if found != pin.resolved.removeprefix("local:"):
        here = f"this engine has {found} under that name" if found else "this engine has no such image"
        raise ImageStateError(
            f"the base image {pin.asked} is pinned as {pin.resolved}, which no registry holds; {here}",
            hint="`--update base` pins the base anew",
        )


def _contexts(plan: Plan, work: Work, settings: environment.Settings) -> dict[str, str]:
    pin, wants = plan.pins.python, plan.definition.python
    if pin and wants and wheels.stage(work.wheels, pin, python.groups(wants), settings):
        return {"find-links": str(work.wheels)}
    return {}


def _index_variables(settings: environment.Settings) -> dict[str, str]:
    extra = " ".join(settings.extra_index_urls)
    said = {"PIP_INDEX_URL": settings.index_url, "PIP_EXTRA_INDEX_URL": extra}
    return {name: value for name, value in said.items() if value}


def _secrets(settings: environment.Settings) -> tuple[engine_bake.Secret, ...]:
    """What the steps may use and must not keep; an index's address may hold a password."""
    files = [engine_bake.Secret("ca", src=str(settings.ca_file))] if settings.ca_file else []
    return (*files, *(engine_bake.Secret(name, env=name) for name in _index_variables(settings)))


def _log_file(project: Project, work: Work) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    return project.state / "logs" / f"{stamp}-{work.name}.log"
