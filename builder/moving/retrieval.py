"""Retrieval of a numbered image from the registry into this engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.base.events import Message
from builder.engine import images, registry, transfer
from builder.engine.images import split_tag
from builder.numbers import claims, images_lock, named_registry

if TYPE_CHECKING:
    from builder.engine.client import Endpoint
    from builder.engine.transfer import PulledLayers
    from builder.lock.model import ImageName, Lock
    from builder.numbers.workspace import Workspace


def is_present(endpoint: Endpoint, lock: Lock, name: ImageName) -> bool:
    """True if the engine has the image that images.lock records for this number."""
    details = images.inspect_image(endpoint, str(name))
    recorded = lock.image(name)
    return details is not None and recorded is not None and images.fingerprint(details) == recorded.fingerprint


def pull_number(workspace: Workspace, address: str, lock: Lock, name: ImageName) -> PulledLayers:
    """Pulls a number by its digest, or by its tag where it was pushed with another images.lock; returns the layers that
    this engine lacked. The number is no longer pruned then, and ``latest`` follows if it is the current one. Raises
    TransferError where the pull failed, ImageStateError where it brought other content, or another project in this
    engine gave the number to other content."""
    repository = lock.images[name.repository]
    recorded = repository.numbers[name.number]
    version = recorded.digest or str(name.number)
    source = named_registry.Registry(address)
    images_lock.claim_number(workspace, name, recorded.fingerprint)
    workspace.report(Message(f"{name}: pulling from {source.repository(name)}"))
    layers = named_registry.pull(workspace.engine, source, name, recorded, version, workspace.report)
    if recorded.pruned:
        images_lock.restore_tag(workspace, name, str(name))
    if repository.current == name.number:
        claims.point_latest(workspace, name.repository, name.number)
    images_lock.tell_numbers(workspace, lock, name.repository)
    return layers


def pull_unnumbered(workspace: Workspace, reference: str) -> PulledLayers:
    """Pulls an image that others build, by the name that a recipe has; returns the layers that this engine lacked.
    Raises TransferError where the pull failed, or no registry has it."""
    name, at, digest = reference.partition("@")
    repository, version = (name, digest) if at else split_tag(reference)
    workspace.report(Message(f"{reference}: pulling"))
    login = registry.auth_headers(reference)
    return transfer.pull_layers(workspace.engine, repository, version, login, workspace.report)
