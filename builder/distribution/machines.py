"""The nodes of builder.yaml, and work on all of them in parallel."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, TypeVar

from builder.definitions import configuration
from builder.engine.client import endpoint as endpoints

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from builder.engine.client.endpoint import Endpoint
    from builder.project import Project

T = TypeVar("T")


def engines(project: Project, environ: Mapping[str, str], names: Sequence[str]) -> dict[str, Endpoint]:
    """The engines of the nodes with these names, or of all nodes if none is named.

    Raises UsageError for a node that builder.yaml does not have, EngineError for a docker context that does not exist.
    """
    config = configuration.load(project)
    nodes = [config.node(name) for name in dict.fromkeys(names)] if names else config.nodes
    return {node.name: endpoints.of_node(environ, node.name, node.engine) for node in nodes}


def in_parallel(machines: Mapping[str, Endpoint], work: Callable[[str, Endpoint], T]) -> dict[str, T]:
    """Runs ``work`` for all nodes in parallel and returns its results by node. The first exception is raised at once,
    so errors of a single node should be returned.

    The threads are daemons: after ^C nothing waits for a node that hangs, and its connection ends with the process.
    """
    results: queue.Queue[tuple[str, T | BaseException]] = queue.Queue()

    def run(node: str, engine: Endpoint) -> None:
        try:
            results.put((node, work(node, engine)))
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            results.put((node, error))

    for node, engine in machines.items():
        threading.Thread(target=run, args=(node, engine), daemon=True).start()
    collected: dict[str, T] = {}
    for _ in machines:
        node, result = results.get()
        if isinstance(result, BaseException):
            raise result
        collected[node] = result
    return {node: collected[node] for node in machines}
