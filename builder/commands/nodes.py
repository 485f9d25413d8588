"""The nodes verb: which machine has which numbered image, what it serves, and what is stale there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

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
    from builder.numbered.status import ImageState
    from builder.project import Project


@dataclass(frozen=True)
class NodeImage:
    """A number that a node has. ``latest`` where the node's tag of that name means it, ``current`` where images.lock
    says so."""

    image: ImageName
    state: ImageState
    latest: bool
    current: bool

    @property
    def stale(self) -> bool:
        """Whether the node's ``latest`` is another than this project's current number."""
        return self.latest and not self.current


@dataclass(frozen=True)
class NodeServer:
    """A container of `run`: the image and the model it serves. ``stale`` where the model is paired with another image
    by now."""

    name: str
    image: str
    model: str
    state: str
    stale: bool


@dataclass(frozen=True)
class NodeState:
    """What a node has, the newest numbers first; ``error`` says why nothing is known of it."""

    node: str
    host: str
    images: tuple[NodeImage, ...]
    serving: tuple[NodeServer, ...]
    error: str = ""


def run(project: Project, environ: Mapping[str, str]) -> tuple[NodeState, ...]:
    """All nodes of builder.yaml, asked side by side; one that does not answer has an ``error``."""
    lock = reading.of(project)
    engines = machines.engines(project, environ, ())

    def look(node: str, engine: Endpoint) -> NodeState:
        try:
            held = _held(lock, engine, project.state / f"node-{node}.json")
            return NodeState(node, engine.host, held, _serving(lock, engine))
        except BuilderError as error:
            return NodeState(node, engine.host, (), (), error.message)

    return tuple(machines.in_parallel(engines, look).values())


def _held(lock: Lock, engine: Endpoint, cache: Path) -> tuple[NodeImage, ...]:
    tags = images.tags(engine, lock.images) if lock.images else {}
    fingerprints = images.fingerprints(engine, tags.values(), cache)
    found = []
    for repository, held in lock.images.items():
        latest = tags.get(f"{repository}:latest")
        for number, image in held.numbers.items():
            name = ImageName(repository, number)
            if (content := tags.get(str(name))) is None:
                continue
            state: ImageState = "present" if fingerprints.get(content) == image.fingerprint else "moved"
            found.append(NodeImage(name, state, content == latest, held.current == number))
    return tuple(sorted(found, key=lambda one: (one.image.repository, -one.image.number)))


def _serving(lock: Lock, engine: Endpoint) -> tuple[NodeServer, ...]:
    found = []
    for container in containers.listing(engine, LABEL):
        labels = container["Labels"]
        image, model = labels.get(f"{LABEL}.image", ""), labels.get(f"{LABEL}.model", "")
        held = lock.models.get(model)
        stale = held is not None and str(held.pairing.image) != image
        found.append(NodeServer(labels[LABEL], image, model, container.get("State", ""), stale))
    return tuple(sorted(found, key=lambda one: one.name))
