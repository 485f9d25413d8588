"""The nodes of builder.yaml, worked on side by side."""

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
    """The engines of the nodes called so, of all nodes where none is named.

    Raises UsageError for a node that builder.yaml does not have, EngineError for a docker context that does not exist.
    """
    config = configuration.load(project)
    wanted = [config.node(name) for name in dict.fromkeys(names)] if names else config.nodes
    return {node.name: endpoints.of_node(environ, node.name, node.engine) for node in wanted}


def in_parallel(machines: Mapping[str, Endpoint], work: Callable[[str, Endpoint], T]) -> dict[str, T]:
    """What ``work`` returns for each node, all at once. What it raises ends this at once: let it return errors.

    The threads are daemons: after ^C nobody waits for a node that hangs, and its connection ends with the process.
    """
    results: queue.Queue[tuple[str, T | BaseException]] = queue.Queue()

    def one(node: str, engine: Endpoint) -> None:
        try:
            results.put((node, work(node, engine)))
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            results.put((node, error))

    for node, engine in machines.items():
        threading.Thread(target=one, args=(node, engine), daemon=True).start()
    found: dict[str, T] = {}
    for _ in machines:
        node, result = results.get()
        if isinstance(result, BaseException):
            raise result
        found[node] = result
    return {node: found[node] for node in machines}
