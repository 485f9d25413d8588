"""The copy verb: a numbered image to other machines, of which each gets the layers that it lacks."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.commands import push
from builder.definitions import configuration
from builder.distribution import machines, registry, retrieval
from builder.engine import images
from builder.engine.registry import loopback, tunnel
from builder.errors import BuilderError
from builder.events import Message, Report
from builder.lock import reading
from builder.numbered import names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from builder.engine.client.endpoint import Endpoint
    from builder.engine.registry.transfer import PulledLayers
    from builder.lock.model import ImageName, Lock, NumberedImage
    from builder.workspace import Workspace


@dataclass(frozen=True)
class CopyOutcome:
    """How it ended on one node: what moved to it, None where it had the image; ``error`` where it does not have the
    image now."""

    moved: PulledLayers | None
    seconds: float
    error: BuilderError | None = None


@dataclass(frozen=True)
class NodeEvent:
    """Something that happens on a node: an amount that moved, or in the end its CopyOutcome."""

    node: str
    event: object


@dataclass(frozen=True)
class Copied:
    """The image, and how it ended on each node. ``latest`` where it is current, so that the nodes' tag follows it."""

    image: ImageName
    latest: bool
    outcomes: dict[str, CopyOutcome]


@dataclass(frozen=True)
class _CopyJob:
    lock: Lock
    name: ImageName
    report: Report

    @property
    def recorded(self) -> NumberedImage:
        return self.lock.images[self.name.repository].numbers[self.name.number]

    @property
    def current(self) -> bool:
        return self.lock.images[self.name.repository].current == self.name.number


def run(workspace: Workspace, text: str, nodes: Sequence[str]) -> Copied:
    """Copies the image called ``text`` to nodes of builder.yaml, side by side; one that fails stops no other.

    It goes through the registry of builder.yaml, or through one that is started on this machine for as long. Raises
    UsageError for an unknown image or node, and what keeps the image from getting into the registry.
    """
    lock = reading.of(workspace.project)
    job = _CopyJob(lock, names.numbered(workspace.project, lock, text)[0], workspace.report)
    engines = machines.engines(workspace.project, workspace.environment, nodes)
    through = configuration.load(workspace.project).registry
    compared = machines.in_parallel(engines, lambda node, engine: _compare(job, through, node, engine))
    outcomes = {node: outcome for node, outcome in compared.items() if outcome}
    if lacking := {node: engine for node, engine in engines.items() if node not in outcomes}:
        with _source(workspace, job, through) as (place, digest):
            outcomes |= machines.in_parallel(lacking, lambda node, engine: _fetch(job, place, digest, node, engine))
    return Copied(job.name, job.current, {node: outcomes[node] for node in engines})


def _compare(job: _CopyJob, through: str | None, node: str, engine: Endpoint) -> CopyOutcome | None:
    """The outcome where it is known without moving anything: the node has the image, does not answer, or has no way to
    what would be started where no registry is set to go ``through``."""
    began = time.monotonic()
    try:
        if not retrieval.is_present(engine, job.lock, job.name):
            if not through:
                tunnel.require_route(engine)
            return None
        _point_latest(job, engine)
        outcome = CopyOutcome(None, time.monotonic() - began)
    except BuilderError as error:
        outcome = CopyOutcome(None, time.monotonic() - began, error=error)
    job.report(NodeEvent(node, outcome))
    return outcome


@contextmanager
def _source(workspace: Workspace, job: _CopyJob, through: str | None) -> Iterator[tuple[registry.Registry, str]]:
    """A registry that has the image, and the digest it has there."""
    if through:
        place = registry.Registry(through)
        yield place, push.one(workspace, place, job.lock, job.name).digest
        return
    registry.require_present(workspace.engine, job.name, job.recorded)
    with loopback.serving(workspace.engine, workspace.environment, job.report) as port:
        place = registry.Registry(f"127.0.0.1:{port}", private=True)
        job.report(Message(f"{job.name}: through a registry on this machine, started for this copy"))
        yield place, registry.push(workspace.engine, place, job.name, job.recorded, job.report).digest


def _fetch(job: _CopyJob, place: registry.Registry, digest: str, node: str, engine: Endpoint) -> CopyOutcome:
    began = time.monotonic()
    moved: PulledLayers | None = None
    failed: BuilderError | None = None
    try:
        with _reached(engine, place) as reachable:
            moved = registry.pull(
                engine, reachable, job.name, job.recorded, digest, lambda amount: job.report(NodeEvent(node, amount))
            )
        _point_latest(job, engine)
    except BuilderError as error:
        failed = error
    outcome = CopyOutcome(moved, time.monotonic() - began, error=failed)
    job.report(NodeEvent(node, outcome))
    return outcome


@contextmanager
def _reached(engine: Endpoint, place: registry.Registry) -> Iterator[registry.Registry]:
    """The registry as the node sees it."""
    if not place.private:
        yield place
        return
    with tunnel.to_loopback(engine, int(place.address.rpartition(":")[2])) as port:
        yield registry.Registry(f"127.0.0.1:{port}", private=True)


def _point_latest(job: _CopyJob, engine: Endpoint) -> None:
    if job.current:
        images.tag(engine, str(job.name), f"{job.name.repository}:latest")
