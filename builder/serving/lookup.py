"""Finding what is being served now, on the person's own engine and on the nodes, and which of it somebody means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.definitions import configuration
from builder.definitions.recipes.container import LABEL
from builder.engine import services
from builder.engine.client import endpoint as endpoints
from builder.errors import EngineError, UsageError
from builder.serving.running import NODES, PROJECT, RunningServer, ServerMember, ServingEngine, rank

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.definitions.configuration import Node
    from builder.project import Project
    from builder.workspace import Workspace

_NODE_WAIT = 10  # seconds


@dataclass(frozen=True)
class RunningServers:
    """All that is served, by name. ``silent`` says of each node whose engine does not answer why."""

    servers: tuple[RunningServer, ...]
    unreachable: tuple[str, ...]


def engine_of_node(environ: Mapping[str, str], node: Node) -> ServingEngine:
    """The engine of a node. Raises EngineError for a docker context that does not exist."""
    return ServingEngine(endpoints.of_node(environ, node.name, node.engine), node.name)


def find_all(workspace: Workspace) -> RunningServers:
    """What is served by this engine and the nodes of builder.yaml. Raises EngineError where the engine itself does not
    answer; a node may be switched off."""
    from concurrent.futures import ThreadPoolExecutor

    nodes = configuration.load(workspace.project).nodes
    with ThreadPoolExecutor(max_workers=8) as pool:
        looks = [(node, pool.submit(_on_node, workspace.environment, node)) for node in nodes]
        found = {member.service.id: member for member in _at(ServingEngine(workspace.engine), 60)}
        silent = []
        for node, one in looks:
            try:
                for member in one.result():
                    # A node may be this very machine, under a name of its own.
                    found.setdefault(member.service.id, member)
            except EngineError as error:
                silent.append(f"{node.name}: {error.message}")
    return RunningServers(_grouped(tuple(found.values())), tuple(silent))


def find(workspace: Workspace, text: str | None) -> RunningServer:
    """The one called ``text``; the only one there is where that is None. Raises UsageError where that is not one."""
    seen = find_all(workspace)
    if (running := pick(workspace.project, seen, text)) is not None:
        return running
    there = ", ".join(running.name for running in seen.servers)
    silence = f"; {'; '.join(seen.unreachable)}" if seen.unreachable else ""
    what = f"`{text}` is not being served" if text else "this project serves nothing"
    raise UsageError(f"{what}{silence}", hint=f"served now: {there}" if there else "`builder run RECIPE` serves one")


def pick(project: Project, seen: RunningServers, text: str | None) -> RunningServer | None:
    """The one called ``text``, or the only one; None where there is none. What this project did not start is meant by
    its own name alone: another project may have a recipe or a model that is called the same. Raises UsageError where it
    may be several."""
    own = tuple(one for one in seen.servers if one.labels.get(PROJECT) == str(project.root))
    exact = tuple(one for one in seen.servers if one.name == text)
    found = exact or tuple(one for one in own if text is None or one.is_named(text))
    if len(found) > 1:
        raise UsageError(
            f"`{text}` is served several times" if text else "several are served",
            hint=f"say which: {', '.join(running.name for running in found)}",
        )
    return found[0] if found else None


def _on_node(environ: Mapping[str, str], node: Node) -> tuple[ServerMember, ...]:
    return _at(engine_of_node(environ, node), _NODE_WAIT)


def _at(place: ServingEngine, timeout: float) -> tuple[ServerMember, ...]:
    return tuple(ServerMember(place, service) for service in services.labelled(place.endpoint, LABEL, timeout))


def _grouped(members: tuple[ServerMember, ...]) -> tuple[RunningServer, ...]:
    """The members that serve together are those with the same name and the same several nodes."""
    groups: dict[tuple[str, ...], list[ServerMember]] = {}
    for member in members:
        labels = member.service.labels
        together = "," in labels.get(NODES, "")
        key = (labels[LABEL], labels[NODES]) if together else (labels[LABEL], labels.get(NODES, ""), member.service.id)
        groups.setdefault(key, []).append(member)
    found = [RunningServer(tuple(sorted(group, key=rank))) for group in groups.values()]
    return tuple(sorted(found, key=lambda running: running.name))
