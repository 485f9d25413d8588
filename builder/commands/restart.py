"""The restart verb: starts what serves once more, as it was asked for, from the image that is paired with it now."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from builder.commands import run, stop
from builder.definitions.recipes.container import LABEL, STOPPING_SECONDS
from builder.events import Message
from builder.serving import lookup, preparation
from builder.serving.running import REQUEST

if TYPE_CHECKING:
    from builder.commands.run import Started
    from builder.serving.preparation import ServeRequest
    from builder.serving.running import RunningServer
    from builder.workspace import Workspace


def restart(workspace: Workspace, request: ServeRequest) -> Started:
    """Ends what is called ``request.text`` and starts it anew, as it was asked for then and as ``request`` says beyond
    that. What is not being served is started.

    All that can be wrong is found before anything is ended. Raises as `wanted.prepare` and `run.start` do.
    """
    now = lookup.pick(workspace.project, lookup.find_all(workspace), request.text)
    prepared = preparation.prepare(workspace, _as_before(now, request) if now else request)
    if now:
        run.require_free_port(prepared, leaving=[member.service.name for member in now.members])
        workspace.report(Message(f"stopping {now.name}, which serves from {now.image}"))
        stop.run(now, STOPPING_SECONDS)
    return run.start(prepared, workspace.environment)


def _as_before(now: RunningServer, request: ServeRequest) -> ServeRequest:
    """What was asked for when it was started, with what is asked for now."""
    asked = json.loads(now.labels.get(REQUEST, "{}"))
    return replace(
        request,
        # By its recipe: a model may have been paired by another one since.
        text=now.labels.get(f"{LABEL}.recipe") or request.text,
        overrides={**asked.get("overrides", {}), **request.overrides},
        extra=request.extra or asked.get("extra", ()),
        nodes=request.nodes or asked.get("nodes", ()),
    )
