"""What is being served: the containers that carry this program's label, on the person's own engine and on the nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from builder.definitions import arguments, configuration
from builder.definitions.cluster import RANK
from builder.definitions.container import LABEL
from builder.engine import endpoint as endpoints
from builder.engine import services
from builder.errors import EngineError, UsageError

if TYPE_CHECKING:
    from builder.definitions.configuration import Node
    from builder.engine.endpoint import Endpoint
    from builder.engine.services import Service
    from builder.project import Project

# How it was asked for, so that it can be started in the same way again, and what came of it.
ASKED = f"{LABEL}.asked"
DIGEST = f"{LABEL}.digest"
NODES = f"{LABEL}.nodes"
PROJECT = f"{LABEL}.project"

_NODE_WAIT = 10


@dataclass(frozen=True)
class Place:
    """An engine that serves; ``node`` is its name in builder.yaml, and None for the person's own."""

    endpoint: Endpoint
    node: str | None = None


@dataclass(frozen=True)
class Member:
    """One container, and where it is."""

    place: Place
    service: Service


@dataclass(frozen=True)
class Running:
    """What serves one recipe: one container, or one on each of several nodes, the first being the one that answers."""

    members: tuple[Member, ...]

    @property
    def head(self) -> Member:
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

    def node_of(self, member: Member) -> str:
        """The name of a member's node, empty where it was started on none."""
        return (_nodes(member) or ("",))[_rank(member)]

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
        engine = urlsplit(self.head.place.endpoint.host)
        said = host_inside(self.head.service)
        host = engine.hostname if said == arguments.LOOPBACK and engine.hostname else said
        return f"http://[{host}]:{self.port}/v1" if ":" in host else f"http://{host}:{self.port}/v1"

    def is_called(self, text: str) -> bool:
        """Whether ``text`` names it: its name, its recipe as a path or a name, or its model."""
        file = self.labels.get(f"{LABEL}.recipe", "")
        known = {self.name, self.labels[LABEL], self.model, file, PurePosixPath(file).stem}
        return bool(text) and text in known


@dataclass(frozen=True)
class Seen:
    """All that is served, by name. ``silent`` says of each node whose engine does not answer why."""

    running: tuple[Running, ...]
    silent: tuple[str, ...]


def node_place(environ: Mapping[str, str], node: Node) -> Place:
    """The engine of a node. Raises EngineError for a docker context that does not exist."""
    return Place(endpoints.of_node(environ, node.name, node.engine), node.name)


def look(project: Project, endpoint: Endpoint, environ: Mapping[str, str]) -> Seen:
    """What is served by this engine and the nodes of builder.yaml. Raises EngineError where the engine itself does not
    answer; a node may be switched off."""
    from concurrent.futures import ThreadPoolExecutor

    nodes = configuration.load(project).nodes
    with ThreadPoolExecutor(max_workers=8) as pool:
        looks = [(node, pool.submit(_on_node, environ, node)) for node in nodes]
        found = {member.service.id: member for member in _at(Place(endpoint), 60)}
        silent = []
        for node, one in looks:
            try:
                for member in one.result():
                    # A node may be this very machine, under a name of its own.
                    found.setdefault(member.service.id, member)
            except EngineError as error:
                silent.append(f"{node.name}: {error.message}")
    return Seen(_grouped(tuple(found.values())), tuple(silent))


def find(project: Project, endpoint: Endpoint, environ: Mapping[str, str], text: str | None) -> Running:
    """The one called ``text``; the only one there is where that is None. Raises UsageError where that is not one."""
    seen = look(project, endpoint, environ)
    if (running := pick(project, seen, text)) is not None:
        return running
    there = ", ".join(running.name for running in seen.running)
    silence = f"; {'; '.join(seen.silent)}" if seen.silent else ""
    what = f"`{text}` is not being served" if text else "this project serves nothing"
    raise UsageError(f"{what}{silence}", hint=f"served now: {there}" if there else "`builder run RECIPE` serves one")


def pick(project: Project, seen: Seen, text: str | None) -> Running | None:
    """The one called ``text``, or the only one; None where there is none. What this project did not start is meant by
    its own name alone: another project may have a recipe or a model that is called the same. Raises UsageError where it
    may be several."""
    own = tuple(one for one in seen.running if one.labels.get(PROJECT) == str(project.root))
    exact = tuple(one for one in seen.running if one.name == text)
    found = exact or tuple(one for one in own if text is None or one.is_called(text))
    if len(found) > 1:
        raise UsageError(
            f"`{text}` is served several times" if text else "several are served",
            hint=f"say which: {', '.join(running.name for running in found)}",
        )
    return found[0] if found else None


def host_inside(service: Service) -> str:
    """The address that the server listens on, as its own container reaches it."""
    return arguments.reached_at(service.labels.get(f"{LABEL}.host"))


def _on_node(environ: Mapping[str, str], node: Node) -> tuple[Member, ...]:
    return _at(node_place(environ, node), _NODE_WAIT)


def _at(place: Place, timeout: float) -> tuple[Member, ...]:
    return tuple(Member(place, service) for service in services.labelled(place.endpoint, LABEL, timeout))


def _grouped(members: tuple[Member, ...]) -> tuple[Running, ...]:
    """The members that serve together are those with the same name and the same several nodes."""
    groups: dict[tuple[str, ...], list[Member]] = {}
    for member in members:
        labels = member.service.labels
        together = "," in labels.get(NODES, "")
        key = (labels[LABEL], labels[NODES]) if together else (labels[LABEL], labels.get(NODES, ""), member.service.id)
        groups.setdefault(key, []).append(member)
    found = [Running(tuple(sorted(group, key=_rank))) for group in groups.values()]
    return tuple(sorted(found, key=lambda running: running.name))


def _nodes(member: Member) -> tuple[str, ...]:
    return tuple(filter(None, member.service.labels.get(NODES, "").split(",")))


def _rank(member: Member) -> int:
    said = member.service.labels.get(RANK, "")
    return int(said) if said.isdecimal() else 0
