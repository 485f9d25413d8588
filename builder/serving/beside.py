"""A candidate's server: under a name and on a port of its own, so that nobody takes it for the model's.

What is measured of it belongs to the recipe all the same: the command is the recipe's but for the port, and no setting
of that start is recorded as the user's. It ends with the machine: the engine never starts it again.
"""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import TYPE_CHECKING

from builder.base.errors import ConflictError
from builder.definitions.container import LABEL
from builder.lock.model import ImageName
from builder.serving import memory, preparation, starting
from builder.serving.running import PROJECT, StartOptions, find_all

if TYPE_CHECKING:
    from builder.numbers.workspace import Workspace
    from builder.serving.preparation import PreparedServer, ServeRequest
    from builder.serving.running import RunningServer
    from builder.serving.selection import ServedImage


_SUFFIX = "-candidate"
_MARK = " (candidate)"


def prepare(workspace: Workspace, request: ServeRequest, image: ImageName | ServedImage) -> PreparedServer:
    """Plans the server of ``image``, a number or one that was selected with its recipe, beside that of ``request``."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    # The published ports of the machine are the model's own server's.
    container = replace(request.container, publish=())
    beside = replace(request, overrides={**request.overrides, "port": port}, container=container)
    if isinstance(image, ImageName):
        prepared = preparation.prepare(workspace, replace(beside, image=image))
    else:
        prepared = preparation.prepare(workspace, beside, image)
    candidates = []
    for planned in prepared.containers:
        settings = planned.settings
        labels = {
            **settings.labels,
            LABEL: f"{settings.labels[LABEL]}{_SUFFIX}",
            PROJECT: f"{settings.labels[PROJECT]}{_MARK}",
            **replace(StartOptions.of_labels(settings.labels), overrides=request.overrides).labels,
        }
        settings = replace(settings, name=f"{settings.name}{_SUFFIX}", labels=labels, restart="no")
        candidates.append(replace(planned, settings=settings))
    return replace(prepared, containers=tuple(candidates))


def fits(prepared: PreparedServer) -> bool:
    """True if it may run beside what is being served. Where the memory is not known (on a node, or a GPU's own), it may
    not."""
    for planned in prepared.containers:
        settings, endpoint = planned.settings, planned.engine.endpoint
        if planned.engine.node or (settings.gpus and memory.shared_with_gpu(endpoint, settings.image) is None):
            return False
    try:
        starting.require_room(prepared, (), lambda _: None)
    except ConflictError:
        return False
    return True


def running(workspace: Workspace, recipe: str) -> tuple[RunningServer, ...]:
    """The servers of candidates that run by the recipe with this path."""
    wanted = (f"{workspace.project.root}{_MARK}", recipe)
    return tuple(
        server
        for server in find_all(workspace).servers
        if (server.labels.get(PROJECT), server.labels.get(f"{LABEL}.recipe")) == wanted
    )
