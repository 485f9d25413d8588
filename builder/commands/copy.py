"""The copy command: sends a numbered image to other machines, each of which gets the layers that it lacks."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder import humanize
from builder.commands import push
from builder.definitions import configuration
from builder.distribution import machines, registry, retrieval
from builder.engine.registry import loopback, tunnel
from builder.errors import BuilderError
from builder.events import Message, NodeEvent, Report
from builder.lock import reading
from builder.numbered import claims, identity, images_lock, latest_tag, names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from builder.engine.client.endpoint import Endpoint
    from builder.engine.registry.transfer import PulledLayers
    from builder.lock.model import ImageName, Lock, NumberedImage
    from builder.numbered.identity import ProjectIdentity
    from builder.workspace import Workspace


@dataclass(frozen=True)
class CopyOutcome:
    """The result on one node: the layers that it got, None where it had the image; ``error`` where it does not have the
    image now."""

    layers: PulledLayers | None
    seconds: float
    error: BuilderError | None = None

    def __str__(self) -> str:
        if self.error:
            return f"failed: {self.error.message}"
        if self.layers is None:
            return "has it already"
        return f"has it now, {self.layers} moved in {humanize.duration(self.seconds)}"


@dataclass(frozen=True)
class Copied:
    """The image, and the result on each node. ``latest`` where it is current, so that the nodes' tag follows it."""

    image: ImageName
    latest: bool
    outcomes: dict[str, CopyOutcome]


@dataclass(frozen=True)
class _CopyJob:
    lock: Lock
    name: ImageName
    own: ProjectIdentity
    report: Report

    @property
    def recorded(self) -> NumberedImage:
        return self.lock.images[self.name.repository].numbers[self.name.number]

    @property
    def current(self) -> bool:
        return self.lock.images[self.name.repository].current == self.name.number


def run(workspace: Workspace, text: str, nodes: Sequence[str]) -> Copied:
    """Copies the image called ``text`` to nodes of builder.yaml in parallel; one that fails stops no other.

    It goes through the registry of builder.yaml, or through a temporary one that is started on this machine. Raises
    UsageError for an unknown image or node, and what keeps the image from getting into the registry.
    """
    lock = reading.of(workspace.project)
    name, _ = names.numbered(workspace.project, lock, text)
    job = _CopyJob(lock, name, identity.of(workspace.project), workspace.report)
    engines = machines.engines(workspace.project, workspace.environment, nodes)
    address = configuration.load(workspace.project).registry
    early = machines.in_parallel(engines, lambda node, engine: _early_outcome(job, address, node, engine))
    outcomes = {node: outcome for node, outcome in early.items() if outcome}
    if lacking := {node: engine for node, engine in engines.items() if node not in outcomes}:
        with _source_registry(workspace, job, address) as (source, digest):
            outcomes |= machines.in_parallel(lacking, lambda node, engine: _pull(job, source, digest, node, engine))
    return Copied(job.name, job.current, {node: outcomes[node] for node in engines})


def fetch(workspace: Workspace, lock: Lock, name: ImageName, node: str) -> None:
    """Copies a number from a node that has it to this engine, through a temporary registry on this machine; only the
    layers that this engine lacks are transferred. Raises UsageError for an unknown node, and TransferError."""
    engine = machines.engines(workspace.project, workspace.environment, [node])[node]
    recorded = lock.images[name.repository].numbers[name.number]
    images_lock.claim(workspace, name, recorded.fingerprint)
    workspace.report(Message(f"{name}: copying it from {node}"))
    with loopback.serving(workspace.engine, workspace.environment, workspace.report) as port:
        with tunnel.to_loopback(engine, port) as reached:
            source = registry.Registry(f"127.0.0.1:{reached}", private=True)
            digest = registry.push(engine, source, name, recorded, workspace.report).digest
        here = registry.Registry(f"127.0.0.1:{port}", private=True)
        registry.pull(workspace.engine, here, name, recorded, digest, workspace.report)
    if recorded.pruned:
        images_lock.restore(workspace, name, str(name))


def _early_outcome(job: _CopyJob, address: str | None, node: str, engine: Endpoint) -> CopyOutcome | None:
    """The outcome where it is known without a transfer: the node has the image, does not answer, or cannot reach the
    registry that would be started where none has an ``address``."""
    began = time.monotonic()
    try:
        if not retrieval.is_present(engine, job.lock, job.name):
            if not address:
                tunnel.require_route(engine)
            return None
        _point_latest(job, engine)
        outcome = CopyOutcome(None, time.monotonic() - began)
    except BuilderError as error:
        outcome = CopyOutcome(None, time.monotonic() - began, error=error)
    job.report(NodeEvent(node, Message(str(outcome))))
    return outcome


@contextmanager
def _source_registry(
    workspace: Workspace, job: _CopyJob, address: str | None
) -> Iterator[tuple[registry.Registry, str]]:
    """A registry that has the image, and the digest it has there."""
    if address:
        source = registry.Registry(address)
        yield source, push.push_image(workspace, source, job.lock, job.name).digest
        return
    registry.require_present(workspace.engine, job.name, job.recorded)
    with loopback.serving(workspace.engine, workspace.environment, job.report) as port:
        source = registry.Registry(f"127.0.0.1:{port}", private=True)
        job.report(Message(f"{job.name}: through a registry on this machine, started for this copy"))
        yield source, registry.push(workspace.engine, source, job.name, job.recorded, job.report).digest


def _pull(job: _CopyJob, source: registry.Registry, digest: str, node: str, engine: Endpoint) -> CopyOutcome:
    began = time.monotonic()
    layers: PulledLayers | None = None
    failure: BuilderError | None = None
    try:
        claims.require_number(engine, job.own, job.name, job.recorded.fingerprint)
        with _as_reached_from(engine, source) as reachable:
            layers = registry.pull(
                engine, reachable, job.name, job.recorded, digest, lambda amount: job.report(NodeEvent(node, amount))
            )
        _point_latest(job, engine)
    except BuilderError as error:
        failure = error
    outcome = CopyOutcome(layers, time.monotonic() - began, error=failure)
    job.report(NodeEvent(node, Message(str(outcome))))
    return outcome


@contextmanager
def _as_reached_from(engine: Endpoint, source: registry.Registry) -> Iterator[registry.Registry]:
    """The registry under the address that it has for a node."""
    if not source.private:
        yield source
        return
    with tunnel.to_loopback(engine, int(source.address.rpartition(":")[2])) as port:
        yield registry.Registry(f"127.0.0.1:{port}", private=True)


def _point_latest(job: _CopyJob, engine: Endpoint) -> None:
    if not job.current:
        return
    latest = f"{job.name.repository}:latest at {engine.host}"
    if owner := claims.owner_of_latest(engine, job.own.id, job.name.repository):
        job.report(Message(f"{latest} stays as it is: {owner} has it"))
    elif kept := latest_tag.move(engine, job.name):
        job.report(Message(f"{latest} was an image without a number, which is {kept} now"))
