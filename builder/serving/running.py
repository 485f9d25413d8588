"""Running servers are containers with this program's label: the content of their labels, and the lookup on all
engines."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from builder.base import processes, records
from builder.base.errors import EngineError, UsageError
from builder.base.values import dataclass, field
from builder.definitions import command, configuration, container
from builder.definitions.cluster import RANK
from builder.definitions.command import Backend  # noqa: TC001 (the type of a record)
from builder.definitions.configuration import NOTHING_REQUESTED, Node, RequestedOptions
from builder.definitions.container import ADDRESS, LABEL, PORT_INSIDE
from builder.engine import containers
from builder.engine.client import Endpoint, of_node

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.engine.containers import Service
    from builder.lock.model import ImageName, Lock, Pairing
    from builder.numbers.workspace import Workspace


_OPTIONS = f"{LABEL}.asked"
# A digest of the settings that resulted from the options.
DIGEST = f"{LABEL}.digest"
NODES = f"{LABEL}.nodes"
PROJECT = f"{LABEL}.project"
# Another program that starts and stops the container; `builder export` writes the label.
STARTED_BY = f"{LABEL}.by"
# The mods that are tried in the container, as a JSON list.
TRIED = f"{LABEL}.tried"

# The end of the project label of a candidate, so that nothing treats a candidate as the model's own server.
CANDIDATE = " (candidate)"

# The start of the note of a pairing from which its model was put back, because the image did not serve the model.
PUT_BACK = "put back on "

# A little longer than the timeout of the probe itself.
_ANSWER_TIMEOUT = 10


@dataclass(frozen=True)
class StartOptions:
    """The options that a server was started with, kept in a label for the next start."""

    overrides: Mapping[str, str] = field(default_factory=dict)
    extra: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    backend: Backend | None = None
    container: RequestedOptions = NOTHING_REQUESTED
    try_mods: tuple[str, ...] = ()

    @property
    def labels(self) -> dict[str, str]:
        return {_OPTIONS: json.dumps(records.plain(self))}

    @classmethod
    def of_labels(cls, labels: Mapping[str, str]) -> StartOptions:
        """The options in the labels of a server; empty if this program did not write them."""
        try:
            return records.parse(labels.get(_OPTIONS, "{}"), cls)
        except records.RecordError:
            return cls()


@dataclass(frozen=True)
class ServerMember:
    """One container of a server, and the engine that it runs on."""

    engine: Endpoint
    service: Service

    @property
    def rank(self) -> int:
        """The rank of the container among those that serve together, from 0; 0 if it serves alone."""
        label = self.service.labels.get(RANK, "")
        return int(label) if label.isdecimal() else 0

    @property
    def node(self) -> str:
        """The name of the container's node; empty if it was not started on a node."""
        return self.service.labels.get(NODES, "").split(",")[self.rank]


@dataclass(frozen=True)
class RunningServer:
    """A running server of one recipe: one container, or one on each of several nodes. The first container answers
    requests."""

    members: tuple[ServerMember, ...]

    @property
    def head(self) -> ServerMember:
        return self.members[0]

    @property
    def labels(self) -> Mapping[str, str]:
        return self.head.service.labels

    @property
    def name(self) -> str:
        """The server's name, with the nodes unless it runs on the user's own engine."""
        return _name(self.labels)

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(member.node for member in self.members if member.node)

    @property
    def missing(self) -> tuple[str, ...]:
        """The nodes whose container is gone or out of reach."""
        return tuple(node for node in self.labels.get(NODES, "").split(",") if node and node not in self.nodes)

    @property
    def image(self) -> str:
        """The numbered image that the server was started from."""
        return self.labels.get(f"{LABEL}.image") or self.head.service.image

    @property
    def tried(self) -> tuple[str, ...]:
        """The mods that are tried in the server: its results are no evidence about its image."""
        return tuple(json.loads(self.labels.get(TRIED, "[]")))

    @property
    def model(self) -> str:
        return self.labels.get(f"{LABEL}.model", "")

    @property
    def started_by(self) -> str:
        """Another program that starts and stops the server; empty for this program."""
        return self.labels.get(STARTED_BY, "")

    @property
    def port(self) -> int | None:
        """The port of the machine on which the server answers; None if unknown."""
        return _port(self.labels.get(f"{LABEL}.port"))

    @property
    def inside(self) -> tuple[str, int | None]:
        """The address and the port on which the server listens inside its container; None if unknown."""
        return command.reached_at(self.labels.get(f"{LABEL}.host")), _port(self.labels.get(PORT_INSIDE)) or self.port

    @property
    def address(self) -> str:
        """The address at which clients of the OpenAI API reach the server from here; empty if its port is unknown."""
        if self.port is None:
            return ""
        engine = urlsplit(self.head.engine.host)
        listening = command.reached_at(self.labels.get(ADDRESS) or self.labels.get(f"{LABEL}.host"))
        host = engine.hostname if listening == command.LOOPBACK and engine.hostname else listening
        return f"http://[{host}]:{self.port}/v1" if ":" in host else f"http://{host}:{self.port}/v1"


def _port(label: str | None) -> int | None:
    return int(label) if label and label.isdecimal() else None


def _name(labels: Mapping[str, str]) -> str:
    nodes = labels.get(NODES, "")
    return labels[LABEL] + (f"@{nodes}" if nodes else "")


def answers(server: RunningServer) -> bool:
    """True if the server answers the probe of its health check now; False if its port is unknown."""
    host, port = server.inside
    if port is None:
        return False
    probe, head = container.probe(host, port), server.head
    try:
        return containers.execute(head.engine, head.service.id, probe, _ANSWER_TIMEOUT).exit_code == 0
    except EngineError:  # the server has just ended, or is too busy to answer
        return False


# Servers that still serve a model from an image that is no longer paired with it.


@dataclass(frozen=True)
class SupersededServer:
    """The server ``name`` of a ``model``, started from ``image``, while the model is ``paired`` with another."""

    name: str
    model: str
    image: str
    paired: ImageName


def find_superseded(workspace: Workspace, lock: Lock, models: Collection[str]) -> tuple[SupersededServer, ...]:
    """The superseded servers of ``models`` on the user's own engine. Nodes are not asked, because they may be switched
    off."""
    if not models:
        return ()
    by_name = {
        superseded.name: superseded
        for service in containers.labelled(workspace.engine, LABEL)
        if service.is_up and (superseded := of_labels(workspace.project, lock, service.labels))
    }
    return tuple(by_name[name] for name in sorted(by_name) if by_name[name].model in models)


def of_labels(project: Project, lock: Lock, labels: Mapping[str, str]) -> SupersededServer | None:
    """The server with these labels if its model is paired with another image now. None for a server of another project,
    program or recipe."""
    model, image = labels.get(f"{LABEL}.model", ""), labels.get(f"{LABEL}.image", "")
    paired = lock.models.get(model)
    if paired is None or labels.get(PROJECT) != str(project.root) or str(paired.pairing.image) == image:
        return None
    if paired.pairing.recipe != labels.get(f"{LABEL}.recipe") or labels.get(STARTED_BY):
        return None
    return SupersededServer(_name(labels), model, image, paired.pairing.image)


def put_back_from(lock: Lock, model: str) -> Pairing | None:
    """The pairing from which a model was put back, if its pairing has not moved since."""
    paired = lock.models.get(model)
    last = paired.previous[0] if paired and paired.previous else None
    return last if last and last.note.startswith(PUT_BACK) and last.status == "bad" else None


# The lookup on the user's own engine and on the nodes.


@dataclass(frozen=True)
class RunningServers:
    """All servers, sorted by name. ``unreachable`` has a line for each node whose engine does not answer."""

    servers: tuple[RunningServer, ...]
    unreachable: tuple[str, ...]


def find_all(workspace: Workspace) -> RunningServers:
    """Finds the servers on this engine, which must answer, and on the nodes, which may be switched off."""

    def members_on(engine: Endpoint, timeout: float) -> dict[str, ServerMember]:
        return {service.id: ServerMember(engine, service) for service in containers.labelled(engine, LABEL, timeout)}

    def members_on_node(node: Node) -> dict[str, ServerMember]:
        return members_on(of_node(workspace.environment, node.name, node.engine), config.node_timeout)

    config = configuration.load_configuration(workspace.project)
    lookups = processes.in_threads({node.name: partial(members_on_node, node) for node in config.nodes})
    members = members_on(workspace.engine, 60)
    answers = dict(lookups.get() for _ in config.nodes)
    unreachable = []
    for node in config.nodes:
        answer = answers[node.name]
        if isinstance(answer, EngineError):
            unreachable.append(f"{node.name}: {answer.message}")
        elif isinstance(answer, BaseException):
            raise answer
        else:
            members = answer | members  # a node may be this machine
    # The containers that serve together have the same name and the same list of several nodes.
    groups: dict[tuple[str, ...], list[ServerMember]] = {}
    for member in members.values():
        labels = member.service.labels
        nodes = labels.get(NODES, "")
        groups.setdefault((labels[LABEL], nodes, "" if "," in nodes else member.service.id), []).append(member)
    servers = [RunningServer(tuple(sorted(group, key=lambda member: member.rank))) for group in groups.values()]
    return RunningServers(tuple(sorted(servers, key=lambda server: server.name)), tuple(unreachable))


def find_server(
    workspace: Workspace, text: str | None, hint: str = "`builder run RECIPE` starts a server"
) -> RunningServer:
    """Finds the server called ``text``, or the only one if ``text`` is None. Raises UsageError if no server matches
    (with ``hint`` if nothing is served), or more than one."""
    running = find_all(workspace)
    if match := pick(workspace.project, running, text):
        return match
    names = ", ".join(server.name for server in running.servers)
    unreachable = f"; {'; '.join(running.unreachable)}" if running.unreachable else ""
    problem = f"`{text}` is not being served" if text else "no server of this project is running"
    raise UsageError(f"{problem}{unreachable}", hint=f"served now: {names}" if names else hint)


def pick(project: Project, running: RunningServers, text: str | None) -> RunningServer | None:
    """The server called ``text`` (its name, its container's, its recipe or its model), or the only one if ``text`` is
    None. A server of another project is found only by its own name or its container's. Raises UsageError if several
    match."""

    def names(server: RunningServer) -> set[str]:
        file = server.labels.get(f"{LABEL}.recipe", "")
        return {server.labels[LABEL], server.model, file, PurePosixPath(file).stem} - {""}

    of_project = [server for server in running.servers if server.labels.get(PROJECT) == str(project.root)]
    exact = [server for server in running.servers if text in {server.name, server.head.service.name}]
    matches = exact or [server for server in of_project if text is None or text in names(server)]
    if len(matches) > 1:
        message = f"`{text}` matches several servers" if text else "several servers are running"
        raise UsageError(message, hint=f"name one: {', '.join(server.name for server in matches)}")
    return matches[0] if matches else None


def find_candidates(workspace: Workspace, recipe: str) -> tuple[RunningServer, ...]:
    """The running servers of candidates for the recipe at this path."""
    wanted = (f"{workspace.project.root}{CANDIDATE}", recipe)
    servers = find_all(workspace).servers
    return tuple(each for each in servers if (each.labels.get(PROJECT), each.labels.get(f"{LABEL}.recipe")) == wanted)
