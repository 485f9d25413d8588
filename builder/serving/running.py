"""What serves a recipe: containers that carry this program's label, and what their labels say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from builder.definitions.recipes import arguments, container
from builder.definitions.recipes.cluster import RANK
from builder.definitions.recipes.container import LABEL
from builder.engine import containers
from builder.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.engine.client.endpoint import Endpoint
    from builder.engine.services import Service

# How it was asked for, so that it can be started in the same way again, and what came of it.
REQUEST = f"{LABEL}.asked"
DIGEST = f"{LABEL}.digest"
NODES = f"{LABEL}.nodes"
PROJECT = f"{LABEL}.project"

# A little longer than what asks is willing to wait.
_ANSWER_WAIT = 10


@dataclass(frozen=True)
class ServingEngine:
    """An engine that serves; ``node`` is its name in builder.yaml, and None for the person's own."""

    endpoint: Endpoint
    node: str | None = None


@dataclass(frozen=True)
class ServerMember:
    """One container, and where it is."""

    engine: ServingEngine
    service: Service


@dataclass(frozen=True)
class RunningServer:
    """What serves one recipe: one container, or one on each of several nodes, the first being the one that answers."""

    members: tuple[ServerMember, ...]

    @property
    def head(self) -> ServerMember:
        return self.members[0]

    @property
    def labels(self) -> Mapping[str, str]:
        return self.head.service.labels

    @property
    def name(self) -> str:
        """Its name, with the nodes where it is not on the person's own engine."""
        nodes = self.labels.get(NODES, "")
        return self.labels[LABEL] + (f"@{nodes}" if nodes else "")

    @property
    def missing(self) -> tuple[str, ...]:
        """The nodes that should take part, and whose container is gone or cannot be seen."""
        there = {self.node_of(member) for member in self.members}
        return tuple(node for node in _nodes(self.head) if node not in there)

    def node_of(self, member: ServerMember) -> str:
        """The name of a member's node, empty where it was started on none."""
        return (_nodes(member) or ("",))[rank(member)]

    @property
    def image(self) -> str:
        """The numbered image that it was started from."""
        return self.labels.get(f"{LABEL}.image") or self.head.service.image

    @property
    def model(self) -> str:
        return self.labels.get(f"{LABEL}.model", "")

    @property
    def port(self) -> int | None:
        """The port that it answers on, where it is known."""
        said = self.labels.get(f"{LABEL}.port", "")
        return int(said) if said.isdecimal() else None

    @property
    def address(self) -> str:
        """Where clients of the OpenAI API reach it from here; empty where its port is not known."""
        if self.port is None:
            return ""
        engine = urlsplit(self.head.engine.endpoint.host)
        said = listening_host(self.head.service)
        host = engine.hostname if said == arguments.LOOPBACK and engine.hostname else said
        return f"http://[{host}]:{self.port}/v1" if ":" in host else f"http://{host}:{self.port}/v1"

    def is_named(self, text: str) -> bool:
        """Whether ``text`` names it: its name, its recipe as a path or a name, or its model."""
        file = self.labels.get(f"{LABEL}.recipe", "")
        known = {self.name, self.labels[LABEL], self.model, file, PurePosixPath(file).stem}
        return bool(text) and text in known


def answers(one: RunningServer) -> bool:
    """Whether the server answers at this moment, asked as its health check would; False where its port is not known."""
    if one.port is None:
        return False
    head = one.head
    probe = container.probe(listening_host(head.service), one.port)
    try:
        return containers.execute(head.engine.endpoint, head.service.id, probe, _ANSWER_WAIT).exit_code == 0
    except EngineError:  # it has ended in this moment, or is too busy to say
        return False


def listening_host(service: Service) -> str:
    """The address that the server listens on, as its own container reaches it."""
    return arguments.reached_at(service.labels.get(f"{LABEL}.host"))


def _nodes(member: ServerMember) -> tuple[str, ...]:
    return tuple(filter(None, member.service.labels.get(NODES, "").split(",")))


def rank(member: ServerMember) -> int:
    """Which of those that serve together it is, from 0 on; 0 where it serves alone."""
    said = member.service.labels.get(RANK, "")
    return int(said) if said.isdecimal() else 0
