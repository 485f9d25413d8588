"""The push command: pushes numbered images to the registry, and records their digests in images.lock."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.building import rebuild
from builder.definitions import configuration
from builder.distribution import registry
from builder.engine.buildkit import attestations
from builder.engine.client import endpoint as endpoints
from builder.engine.client import versions
from builder.errors import BuildFailedError, EngineError, TransferError
from builder.events import Message
from builder.lock import reading
from builder.numbered import images_lock, names

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from builder.engine.buildkit.attestations import Kind
    from builder.lock.model import ImageName, Lock
    from builder.project import Project
    from builder.workspace import Workspace


@dataclass(frozen=True)
class PushedImage:
    """An image in the registry, by ``reference`` and ``digest``. ``already`` is true if it was there before, ``latest``
    if that tag points to it, too."""

    image: ImageName
    reference: str
    digest: str
    already: bool
    latest: bool


def run(workspace: Workspace, texts: tuple[str, ...]) -> tuple[PushedImage, ...]:
    """Pushes the images called ``texts``, one after the other. Those that were pushed before one fails are recorded.

    Raises UsageError for an unknown image or where no registry is set, TransferError and ImageStateError as
    `registry.push` does.
    """
    lock, target, requested = _requested(workspace.project, texts)
    return tuple(push_image(workspace, target, lock, name) for name in requested)


def run_attested(workspace: Workspace, texts: tuple[str, ...], kinds: AbstractSet[Kind]) -> tuple[PushedImage, ...]:
    """Pushes as `run` does, with BuildKit's attestations of each image beside it in the registry.

    Raises EngineError where the engine's image store cannot hold attestations, BuildFailedError where they cannot be
    made, and TransferError where BuildKit now makes other content from the same inputs.
    """
    lock, target, requested = _requested(workspace.project, texts)
    if versions.require_supported(workspace.engine).store == "classic":
        raise EngineError(
            "the engine's image store holds no attestations",
            hint="turn on the containerd image store: https://docs.docker.com/engine/storage/containerd/",
        )
    return tuple(_push_attested(workspace, target, lock, name, kinds) for name in requested)


def push_image(workspace: Workspace, target: registry.Registry, lock: Lock, name: ImageName) -> PushedImage:
    """Pushes one image, sets ``latest`` in the registry where it is the current number, and records the digest."""
    pushed = registry.push(
        workspace.engine, target, name, lock.images[name.repository].numbers[name.number], workspace.report
    )
    return _finish(workspace, target, lock, name, str(name), pushed)


def _push_attested(
    workspace: Workspace, target: registry.Registry, lock: Lock, name: ImageName, kinds: AbstractSet[Kind]
) -> PushedImage:
    recorded = lock.images[name.repository].numbers[name.number]
    digest = registry.existing_digest(workspace.engine, target, name, recorded)
    present = attestations.attached(workspace.engine, f"{target.repository(name)}@{digest}") if digest else frozenset()
    if digest and kinds <= present:
        pushed = registry.Pushed(digest, already=True)
        return _finish(workspace, target, lock, name, str(name), pushed)
    # The builder of the image has its steps cached. Present attestations are made again: one index holds them all.
    instance = replace(workspace.engine, instance=recorded.builder or endpoints.OWN_BUILDER)
    options = attestations.bake_options(kinds | present, configuration.load(workspace.project).scanner)
    try:
        with rebuild.rebuilt_image(replace(workspace, engine=instance), name, recorded, options) as built:
            if built.fingerprint != recorded.fingerprint:
                raise TransferError(
                    f"{name} cannot be attested: built again, other content came out ({built.log})",
                    hint="BuildKit's cache no longer has all its steps; attest a number soon after it was built",
                )
            workspace.report(Message(f"{name}: pushing to {target.repository(name)}"))
            pushed = registry.Pushed(
                registry.upload(workspace.engine, target, name, recorded, built.tag, workspace.report), already=False
            )
            return _finish(workspace, target, lock, name, built.tag, pushed)
    except BuildFailedError as error:
        if "sbom" not in kinds or error.hint:
            raise
        hint = "an SBOM needs a scanner that BuildKit can get: `scanner:` of builder.yaml names another"
        raise BuildFailedError(error.message, log=error.log, hint=hint) from None


def _requested(project: Project, texts: tuple[str, ...]) -> tuple[Lock, registry.Registry, tuple[ImageName, ...]]:
    lock = reading.of(project)
    requested = tuple(dict.fromkeys(names.numbered(project, lock, text)[0] for text in texts))
    return lock, registry.Registry(configuration.load(project).required_registry()), requested


def _finish(
    workspace: Workspace, target: registry.Registry, lock: Lock, name: ImageName, source: str, pushed: registry.Pushed
) -> PushedImage:
    """Records the digest and sets ``latest``; ``source`` is the engine's name of the image that was pushed."""
    repository = lock.images[name.repository]
    if repository.numbers[name.number].digest != pushed.digest:
        _record(workspace, name, pushed.digest)
    latest = repository.current == name.number and registry.set_latest(
        workspace.engine, target, name, source, pushed.digest, workspace.report
    )
    reference = f"{target.repository(name)}:{name.number}"
    return PushedImage(name, reference, pushed.digest, pushed.already, latest)


def _record(workspace: Workspace, name: ImageName, digest: str) -> None:
    with images_lock.transaction(workspace) as transaction:
        image = transaction.lock.image(name)
        if image is None:  # the number was removed from images.lock meanwhile
            return
        transaction.commit(transaction.lock.with_image(name, replace(image, digest=digest)))
