"""Retrieval of a numbered image from the registry into this engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.distribution import registry
from builder.engine import images
from builder.engine.reference import split_tag
from builder.engine.registry import credentials, transfer
from builder.events import Message
from builder.numbered import images_lock, latest_tag

if TYPE_CHECKING:
    from builder.engine.client.endpoint import Endpoint
    from builder.engine.registry.transfer import PulledLayers
    from builder.lock.model import ImageName, Lock
    from builder.workspace import Workspace


def is_present(endpoint: Endpoint, lock: Lock, name: ImageName) -> bool:
    """True if the engine has the image that images.lock records for this number."""
    details = images.inspect(endpoint, str(name))
    recorded = lock.image(name)
    return details is not None and recorded is not None and images.fingerprint(details) == recorded.fingerprint


def pull(workspace: Workspace, address: str, lock: Lock, name: ImageName) -> PulledLayers:
    """Pulls a number by its digest, or by its tag where it was pushed with another images.lock; returns the layers that
    this engine lacked. The number is no longer pruned then, and ``latest`` follows if it is the current one.

    Raises TransferError where the pull failed, ImageStateError where it brought other content, or another project in
    this engine gave the number to other content.
    """
    repository = lock.images[name.repository]
    recorded = repository.numbers[name.number]
    version = recorded.digest or str(name.number)
    source = registry.Registry(address)
    images_lock.claim(workspace, name, recorded.fingerprint)
    workspace.report(Message(f"{name}: pulling from {source.repository(name)}"))
    layers = registry.pull(workspace.engine, source, name, recorded, version, workspace.report)
    if recorded.pruned:
        images_lock.restore(workspace, name, str(name))
    if repository.current == name.number:
        latest_tag.point(workspace, name.repository, name.number)
    images_lock.tell_numbers(workspace, lock, name.repository)
    return layers


def pull_unnumbered(workspace: Workspace, reference: str) -> PulledLayers:
    """Pulls an image that others build, by the name that a recipe has; returns the layers that this engine lacked.
    Raises TransferError where the pull failed, or no registry has it."""
    name, at, digest = reference.partition("@")
    repository, version = (name, digest) if at else split_tag(reference)
    workspace.report(Message(f"{reference}: pulling"))
    login = credentials.auth_headers(reference)
    return transfer.pull(workspace.engine, repository, version, login, workspace.report)
