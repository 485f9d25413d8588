"""The nodes of builder.yaml, and work on all of them in parallel."""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING, TypeVar

from builder.base.errors import BuilderError, NodeError
from builder.base.events import Message, ignore
from builder.definitions import configuration
from builder.engine import client as endpoints

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from builder.base.events import Report
    from builder.base.project import Project
    from builder.engine.client import Endpoint


_SILENT_SECONDS = 1.0
T = TypeVar("T")


def engines(project: Project, environ: Mapping[str, str], names: Sequence[str]) -> dict[str, Endpoint]:
    """The engines of the nodes with these names, or of all nodes if none is named. Raises UsageError for a node that
    builder.yaml does not have, EngineError for a docker context that does not exist."""
    config = configuration.load_configuration(project)
    nodes = [config.node(name) for name in dict.fromkeys(names)] if names else config.nodes
    return {node.name: endpoints.of_node(environ, node.name, node.engine) for node in nodes}


def ask_machines(
    engines: Mapping[str, Endpoint],
    work: Callable[[str, Endpoint], T],
    seconds: float = threading.TIMEOUT_MAX,
    report: Report = ignore,
) -> dict[str, T | BuilderError]:
    """Runs ``work`` for all nodes at once; returns by node its result or its BuilderError. A node that has not answered
    after so many ``seconds`` is left: its thread ends with the process, as it does after ^C. Reports which nodes are
    waited for."""
    results: queue.Queue[tuple[str, T | BaseException]] = queue.Queue()

    def work_on(node: str, engine: Endpoint) -> None:
        try:
            results.put((node, work(node, engine)))
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            results.put((node, error))

    for node, engine in engines.items():
        threading.Thread(target=work_on, args=(node, engine), daemon=True).start()
    began = time.monotonic()
    answers: dict[str, T | BuilderError] = {}
    moments = [moment for moment in (_SILENT_SECONDS, seconds) if moment <= seconds]
    while len(answers) < len(engines) and moments:
        try:
            node, result = results.get(timeout=max(began + moments[0] - time.monotonic(), 0))
        except queue.Empty:
            if moments.pop(0) == _SILENT_SECONDS and moments:
                waited_for = ", ".join(name for name in engines if name not in answers)
                report(Message(f"waiting for {waited_for}, for at most {seconds:g} s"))
            continue
        if isinstance(result, BaseException) and not isinstance(result, BuilderError):
            raise result
        answers[node] = result
    overdue = NodeError(
        f"it did not answer within {seconds:g} s",
        hint=f"`--timeout SECONDS` waits longer, as does `node_timeout` in {configuration.FILE}",
    )
    return {node: answers.get(node, overdue) for node in engines}
