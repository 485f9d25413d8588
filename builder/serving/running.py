"""Running servers: containers that carry this program's label, and what their labels say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from builder.definitions.recipes import arguments, container
from builder.definitions.recipes.cluster import RANK
from builder.definitions.recipes.container import ADDRESS, LABEL, PORT_INSIDE
from builder.engine import containers
from builder.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.engine.client.endpoint import Endpoint
    from builder.engine.services import Service

# The request, so that the server can be started in the same way again, and a digest of the resulting settings.
REQUEST = f"{LABEL}.asked"
DIGEST = f"{LABEL}.digest"
NODES = f"{LABEL}.nodes"
PROJECT = f"{LABEL}.project"
# The program that starts and stops the container, where that is not this one: what `builder export` writes for it.
STARTED_BY = f"{LABEL}.by"

# A little longer than the probe itself waits.
_ANSWER_TIMEOUT = 10


@dataclass(frozen=True)
class ServingEngine:
    """An engine that serves; ``node`` is its name in builder.yaml, or None for the user's own engine."""

    endpoint: Endpoint
    node: str | None = None


@dataclass(frozen=True)
class ServerMember:
    """One container of a server, and the engine that it runs on."""

    engine: ServingEngine
    service: Service


@dataclass(frozen=True)
class RunningServer:
    """A server of one recipe: one container, or one on each of several nodes, of which the first answers requests."""

    members: tuple[ServerMember, ...]

    @property
    def head(self) -> ServerMember:
        return self.members[0]

    @property
    def labels(self) -> Mapping[str, str]:
        return self.head.service.labels

    @property
    def name(self) -> str:
        """Its name, with the nodes unless it runs on the user's own engine."""
        nodes = self.labels.get(NODES, "")
        return self.labels[LABEL] + (f"@{nodes}" if nodes else "")

    @property
    def missing(self) -> tuple[str, ...]:
        """The nodes that should take part, but whose container is gone or out of reach."""
        present = {self.node_of(member) for member in self.members}
        return tuple(node for node in _nodes(self.head) if node not in present)

    def node_of(self, member: ServerMember) -> str:
        """Returns the name of a member's node; empty if it was not started on a node."""
        return (_nodes(member) or ("",))[rank(member)]

    @property
    def image(self) -> str:
        """The numbered image that it was started from."""
        return self.labels.get(f"{LABEL}.image") or self.head.service.image

    @property
    def model(self) -> str:
        return self.labels.get(f"{LABEL}.model", "")

    @property
    def started_by(self) -> str:
        """The program that starts and stops it; empty where this one does."""
        return self.labels.get(STARTED_BY, "")

    @property
    def port(self) -> int | None:
        """The port of the machine that it answers on, if that is known."""
        label = self.labels.get(f"{LABEL}.port", "")
        return int(label) if label.isdecimal() else None

    @property
    def port_inside(self) -> int | None:
        """The port that it listens on in its container, if that is known."""
        label = self.labels.get(PORT_INSIDE, "")
        return int(label) if label.isdecimal() else self.port

    @property
    def address(self) -> str:
        """The address at which clients of the OpenAI API reach it from here; empty if its port is not known."""
        if self.port is None:
            return ""
        engine = urlsplit(self.head.engine.endpoint.host)
        listening = arguments.reached_at(self.labels.get(ADDRESS) or self.labels.get(f"{LABEL}.host"))
        host = engine.hostname if listening == arguments.LOOPBACK and engine.hostname else listening
        return f"http://[{host}]:{self.port}/v1" if ":" in host else f"http://{host}:{self.port}/v1"

    def is_named(self, text: str) -> bool:
        """True if ``text`` is its name, its container's, its recipe (path or name) or its model."""
        file = self.labels.get(f"{LABEL}.recipe", "")
        names = {self.name, self.labels[LABEL], self.head.service.name, self.model, file, PurePosixPath(file).stem}
        return bool(text) and text in names


def answers(server: RunningServer) -> bool:
    """Tells whether the server answers at this moment, with the probe of its health check; False if its port is not
    known."""
    if server.port_inside is None:
        return False
    head = server.head
    probe = container.probe(listening_host(head.service), server.port_inside)
    try:
        return containers.execute(head.engine.endpoint, head.service.id, probe, _ANSWER_TIMEOUT).exit_code == 0
    except EngineError:  # it has just ended, or is too busy to answer
        return False


def listening_host(service: Service) -> str:
    """Returns the address that the server listens on, as its own container reaches it."""
    return arguments.reached_at(service.labels.get(f"{LABEL}.host"))


def _nodes(member: ServerMember) -> tuple[str, ...]:
    return tuple(filter(None, member.service.labels.get(NODES, "").split(",")))


def rank(member: ServerMember) -> int:
    """Returns the rank of a container among those that serve together, from 0; 0 if it serves alone."""
    rank_label = member.service.labels.get(RANK, "")
    return int(rank_label) if rank_label.isdecimal() else 0
