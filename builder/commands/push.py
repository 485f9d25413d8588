"""The push verb: numbered images into the registry, their digests into images.lock."""

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
    """One image in the registry, as ``reference`` and by ``digest``; ``latest`` where that tag was set to it too."""

    image: ImageName
    reference: str
    digest: str
    already: bool
    latest: bool


def run(workspace: Workspace, texts: tuple[str, ...]) -> tuple[PushedImage, ...]:
    """Pushes the images called so, one after the other. What was pushed before one failed is recorded.

    Raises UsageError for an unknown image or where no registry is set, TransferError and ImageStateError as
    `registry.push` does.
    """
    lock, place, wanted = _wanted(workspace.project, texts)
    return tuple(one(workspace, place, lock, name) for name in wanted)


def run_attested(workspace: Workspace, texts: tuple[str, ...], kinds: AbstractSet[Kind]) -> tuple[PushedImage, ...]:
    """As `run`, with what BuildKit attests of each image beside it in the registry.

    Raises EngineError where the engine's image store cannot hold that, BuildFailedError where it cannot be made, and
    TransferError where BuildKit makes other content of the same inputs by now.
    """
    lock, place, wanted = _wanted(workspace.project, texts)
    if versions.require_supported(workspace.engine).store == "classic":
        raise EngineError(
            "the engine's image store holds no attestations",
            hint="turn on the containerd image store: https://docs.docker.com/engine/storage/containerd/",
        )
    return tuple(_attested(workspace, place, lock, name, kinds) for name in wanted)


def one(workspace: Workspace, place: registry.Registry, lock: Lock, name: ImageName) -> PushedImage:
    """Pushes one image, sets ``latest`` in the registry where it is the current number, and records the digest."""
    pushed = registry.push(
        workspace.engine, place, name, lock.images[name.repository].numbers[name.number], workspace.report
    )
    return _finished(workspace, place, lock, name, str(name), pushed)


def _attested(
    workspace: Workspace, place: registry.Registry, lock: Lock, name: ImageName, kinds: AbstractSet[Kind]
) -> PushedImage:
    recorded = lock.images[name.repository].numbers[name.number]
    digest = registry.existing_digest(workspace.engine, place, name, recorded)
    has = attestations.attached(workspace.engine, f"{place.repository(name)}@{digest}") if digest else frozenset()
    if digest and kinds <= has:
        pushed = registry.Pushed(digest, already=True)
        return _finished(workspace, place, lock, name, str(name), pushed)
    # The steps are in the cache of what built it. What is attested already is made once more: one index holds all.
    instance = replace(workspace.engine, instance=recorded.builder or endpoints.OWN_BUILDER)
    asked = attestations.bake_options(kinds | has, configuration.load(workspace.project).scanner)
    try:
        with rebuild.rebuilt_image(replace(workspace, engine=instance), name, recorded, asked) as built:
            if built.fingerprint != recorded.fingerprint:
                raise TransferError(
                    f"{name} cannot be attested: built again, other content came out ({built.log})",
                    hint="BuildKit's cache no longer has all its steps; attest a number soon after it was built",
                )
            workspace.report(Message(f"{name}: pushing to {place.repository(name)}"))
            pushed = registry.Pushed(
                registry.upload(workspace.engine, place, name, recorded, built.tag, workspace.report), already=False
            )
            return _finished(workspace, place, lock, name, built.tag, pushed)
    except BuildFailedError as error:
        if "sbom" not in kinds or error.hint:
            raise
        hint = "an SBOM needs a scanner that BuildKit can get: `scanner:` of builder.yaml names another"
        raise BuildFailedError(error.message, log=error.log, hint=hint) from None


def _wanted(project: Project, texts: tuple[str, ...]) -> tuple[Lock, registry.Registry, tuple[ImageName, ...]]:
    lock = reading.of(project)
    wanted = tuple(dict.fromkeys(names.numbered(project, lock, text)[0] for text in texts))
    return lock, registry.Registry(configuration.load(project).required_registry()), wanted


def _finished(
    workspace: Workspace, place: registry.Registry, lock: Lock, name: ImageName, source: str, pushed: registry.Pushed
) -> PushedImage:
    """Records the digest and sets ``latest``; ``source`` is what the engine calls the image that was pushed."""
    held = lock.images[name.repository]
    if held.numbers[name.number].digest != pushed.digest:
        _record(workspace, name, pushed.digest)
    latest = held.current == name.number and registry.set_latest(
        workspace.engine, place, name, source, pushed.digest, workspace.report
    )
    return PushedImage(name, f"{place.repository(name)}:{name.number}", pushed.digest, pushed.already, latest)


def _record(workspace: Workspace, name: ImageName, digest: str) -> None:
    with images_lock.transaction(workspace) as transaction:
        image = transaction.lock.image(name)
        if image is None:  # removed from the record meanwhile
            return
        transaction.commit(transaction.lock.with_image(name, replace(image, digest=digest)))
