"""Looking up running servers, on the user's own engine and on the nodes, all of them or by name."""

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


@dataclass(frozen=True)
class RunningServers:
    """All servers, sorted by name. ``unreachable`` says of each node whose engine does not answer why."""

    servers: tuple[RunningServer, ...]
    unreachable: tuple[str, ...]


def engine_of_node(environ: Mapping[str, str], node: Node) -> ServingEngine:
    """The engine of a node. Raises EngineError for a docker context that does not exist."""
    return ServingEngine(endpoints.of_node(environ, node.name, node.engine), node.name)


def find_all(workspace: Workspace) -> RunningServers:
    """Finds the servers on this engine and on the nodes of builder.yaml. Raises EngineError if this engine does not
    answer; a node may be switched off."""
    from concurrent.futures import ThreadPoolExecutor

    config = configuration.load(workspace.project)
    with ThreadPoolExecutor(max_workers=8) as pool:
        lookups = [
            (node, pool.submit(_node_members, workspace.environment, node, config.node_timeout))
            for node in config.nodes
        ]
        members = {member.service.id: member for member in _members(ServingEngine(workspace.engine), 60)}
        unreachable = []
        for node, lookup in lookups:
            try:
                for member in lookup.result():
                    # A node may be this very machine, under a name of its own.
                    members.setdefault(member.service.id, member)
            except EngineError as error:
                unreachable.append(f"{node.name}: {error.message}")
    return RunningServers(_grouped(tuple(members.values())), tuple(unreachable))


def find(workspace: Workspace, text: str | None, hint: str = "`builder run RECIPE` serves one") -> RunningServer:
    """Finds the server called ``text``, or the only one if that is None. Raises UsageError if there is none, or more
    than one; ``hint`` is the advice where nothing is served at all."""
    running = find_all(workspace)
    if (match := pick(workspace.project, running, text)) is not None:
        return match
    names = ", ".join(server.name for server in running.servers)
    unreachable = f"; {'; '.join(running.unreachable)}" if running.unreachable else ""
    problem = f"`{text}` is not being served" if text else "this project serves nothing"
    raise UsageError(f"{problem}{unreachable}", hint=f"served now: {names}" if names else hint)


def pick(project: Project, running: RunningServers, text: str | None) -> RunningServer | None:
    """Returns the server called ``text``, or the only one if that is None; None if there is no such server. A server of
    another project is found by its own name or its container's only, as that project may have a recipe or a model of
    the same name. Raises UsageError if several match."""
    of_project = tuple(server for server in running.servers if server.labels.get(PROJECT) == str(project.root))
    exact = tuple(server for server in running.servers if text in {server.name, server.head.service.name})
    matches = exact or tuple(server for server in of_project if text is None or server.is_named(text))
    if len(matches) > 1:
        raise UsageError(
            f"`{text}` is served several times" if text else "several are served",
            hint=f"say which: {', '.join(server.name for server in matches)}",
        )
    return matches[0] if matches else None


def _node_members(environ: Mapping[str, str], node: Node, timeout: float) -> tuple[ServerMember, ...]:
    return _members(engine_of_node(environ, node), timeout)


def _members(engine: ServingEngine, timeout: float) -> tuple[ServerMember, ...]:
    return tuple(ServerMember(engine, service) for service in services.labelled(engine.endpoint, LABEL, timeout))


def _grouped(members: tuple[ServerMember, ...]) -> tuple[RunningServer, ...]:
    """Groups the containers that serve together: those with the same name and the same list of several nodes."""
    groups: dict[tuple[str, ...], list[ServerMember]] = {}
    for member in members:
        labels = member.service.labels
        together = "," in labels.get(NODES, "")
        key = (labels[LABEL], labels[NODES]) if together else (labels[LABEL], labels.get(NODES, ""), member.service.id)
        groups.setdefault(key, []).append(member)
    servers = [RunningServer(tuple(sorted(group, key=rank))) for group in groups.values()]
    return tuple(sorted(servers, key=lambda server: server.name))
