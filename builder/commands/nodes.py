"""The nodes command: the numbered images of each machine, the servers on it, and which of them are stale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.definitions import configuration
from builder.definitions.recipes.container import LABEL
from builder.distribution import machines
from builder.engine import containers, images
from builder.errors import BuilderError
from builder.lock import reading
from builder.lock.model import ImageName, Lock

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from builder.engine.client.endpoint import Endpoint
    from builder.events import Report
    from builder.numbered.status import ImageState
    from builder.project import Project


@dataclass(frozen=True)
class NodeImage:
    """A number that a node has. ``latest`` is true if the node's tag of that name points to it, ``current`` if it is
    the current number of images.lock."""

    image: ImageName
    state: ImageState
    latest: bool
    current: bool

    @property
    def stale(self) -> bool:
        """True if the node's ``latest`` points to it, though another number is current in this project."""
        return self.latest and not self.current


@dataclass(frozen=True)
class NodeServer:
    """A container that `run` started, with its image and its model. ``stale`` is true if the model is paired with
    another image now."""

    name: str
    image: str
    model: str
    state: str
    stale: bool


@dataclass(frozen=True)
class NodeState:
    """The images, the newest numbers first, and servers of a node; ``error`` says why nothing is known of it."""

    node: str
    host: str
    images: tuple[NodeImage, ...]
    serving: tuple[NodeServer, ...]
    error: str = ""


def run(project: Project, environ: Mapping[str, str], timeout: float | None, report: Report) -> tuple[NodeState, ...]:
    """Reads the state of all nodes of builder.yaml at once; one that has not answered within ``timeout`` seconds (that
    of builder.yaml where none is given) has an ``error``."""
    lock = reading.of(project)
    engines = machines.engines(project, environ, ())

    def state(node: str, engine: Endpoint) -> NodeState:
        node_images = _images(lock, engine, project.state / f"node-{node}.json")
        return NodeState(node, engine.host, node_images, _servers(lock, engine))

    answers = machines.ask(engines, state, timeout or configuration.load(project).node_timeout, report)
    return tuple(
        NodeState(node, engines[node].host, (), (), answer.message) if isinstance(answer, BuilderError) else answer
        for node, answer in answers.items()
    )


def _images(lock: Lock, engine: Endpoint, cache: Path) -> tuple[NodeImage, ...]:
    tags = images.tags(engine, lock.images) if lock.images else {}
    fingerprints = images.fingerprints(engine, tags.values(), cache)
    node_images = []
    for repository, record in lock.images.items():
        latest = tags.get(f"{repository}:latest")
        for number, image in record.numbers.items():
            name = ImageName(repository, number)
            if (engine_id := tags.get(str(name))) is None:
                continue
            state: ImageState = "present" if fingerprints.get(engine_id) == image.fingerprint else "moved"
            node_images.append(NodeImage(name, state, engine_id == latest, record.current == number))
    return tuple(sorted(node_images, key=lambda each: (each.image.repository, -each.image.number)))


def _servers(lock: Lock, engine: Endpoint) -> tuple[NodeServer, ...]:
    servers = []
    for container in containers.listing(engine, LABEL):
        labels = container["Labels"]
        image, model = labels.get(f"{LABEL}.image", ""), labels.get(f"{LABEL}.model", "")
        record = lock.models.get(model)
        stale = record is not None and str(record.pairing.image) != image
        servers.append(NodeServer(labels[LABEL], image, model, container.get("State", ""), stale))
    return tuple(sorted(servers, key=lambda server: server.name))
