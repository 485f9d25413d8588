"""Numbered images in the registry of builder.yaml: their names and states there, and how they are pushed and pulled.
The tag of a number is set once, and never moved to other content."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Literal

from builder.base.errors import BuilderError, ImageStateError, TransferError
from builder.base.events import Message
from builder.base.values import dataclass, replace
from builder.definitions import configuration
from builder.engine import archives, images, transfer
from builder.engine.registry import auth_headers, manifest_digest, manifest_fingerprint
from builder.numbers import adopted, claims, images_lock

if TYPE_CHECKING:
    from builder.engine.client import Endpoint
    from builder.engine.transfer import OnLayerProgress, PulledLayers
    from builder.lock.model import ImageName, Lock, NumberedImage
    from builder.numbers.workspace import Workspace


RegistryState = Literal["present", "missing", "moved"]

# Pushing layers takes minutes. They are pushed under this tag; setting the number's own tag is then instant.
_ARRIVING = "arriving"


@dataclass(frozen=True)
class Registry:
    """A registry at ``address`` (HOST[:PORT][/PATH]). A ``private`` registry was started for a copy and needs no
    login."""

    address: str
    private: bool = False

    def repository(self, name: ImageName) -> str:
        return f"{self.address}/{name.repository}"

    def login(self, name: ImageName) -> Mapping[str, str]:
        return {} if self.private else auth_headers(self.repository(name))


def mirror_of(address: str, reference: str) -> str:
    """The repository in the registry at ``address`` for a copy of someone else's image: its original registry and name,
    below `mirror/`."""
    return f"{address}/mirror/{images.with_registry(images.repository(reference)).replace(':', '-')}"


def mirrored(workspace: Workspace, reference: str) -> str | None:
    """The owner's copy of an image that is named with its digest, as a build context names it. The copy is in the
    folder or the registry of builder.yaml; None if there is no copy. Raises TransferError if the registry does not
    answer."""
    settings = configuration.load_configuration(workspace.project)
    digest = reference.rpartition("@")[2]
    if settings.mirror and archives.folder_has(settings.mirror, digest):
        return f"oci-layout://{settings.mirror}@{digest}"
    if settings.registry is None:
        return None
    copy = f"{mirror_of(settings.registry, reference)}@{digest}"
    return f"docker-image://{copy}" if manifest_digest(workspace.engine, copy) else None


def state(
    endpoint: Endpoint, registry: Registry, name: ImageName, recorded: NumberedImage
) -> tuple[RegistryState, str | None]:
    """The state of a number in the registry, and the digest of its manifest there: ``moved`` if its tag has other
    content than images.lock records.

    Usually the digest of the manifest decides. Only if it differs from the recorded digest, the configuration is also
    read: the same content has another digest if its layers are compressed differently. Raises TransferError if the
    registry does not answer.
    """
    reference = f"{registry.repository(name)}:{name.number}"
    digest = manifest_digest(endpoint, reference)
    if digest is None:
        return "missing", None
    is_same = digest == recorded.digest or (
        manifest_fingerprint(endpoint, reference, recorded.platform) == recorded.fingerprint
    )
    return "present" if is_same else "moved", digest


def push(
    endpoint: Endpoint, registry: Registry, name: ImageName, recorded: NumberedImage, on_progress: OnLayerProgress
) -> tuple[str, bool]:
    """Pushes a number to the registry unless the registry already has it. Returns the digest of its manifest there, and
    True if nothing had to be pushed.

    Registries cannot create a tag only if it does not exist. So the layers are pushed first, under another tag. The
    number's tag is read right before it is set, and again right after.

    Raises ImageStateError if the engine lacks the image or has other content under its tag. Raises TransferError if the
    registry has other content under the tag, got other content meanwhile, or refused the push.
    """
    try:
        if digest := _existing_digest(endpoint, registry, name, recorded):
            for tag in (_ARRIVING, name.number):  # names that a killed push left
                images.remove_extra_tag(endpoint, f"{registry.repository(name)}:{tag}")
            return digest, True
    except TransferError as error:
        # Docker Hub and Quay deny access to a repository until its first push. The tag is read again below.
        if not (transfer.is_denied(error.message) and adopted.is_present(endpoint, name, recorded)):
            raise
    adopted.require_present(endpoint, name, recorded)
    try:
        _push_under_name(endpoint, registry, name, f"{registry.repository(name)}:{_ARRIVING}", on_progress)
    except TransferError as error:
        # The second image under this tag is rejected by a registry that protects the numbers itself.
        if not keeps_tags(error):
            raise
    _existing_digest(endpoint, registry, name, recorded)
    reference = f"{registry.repository(name)}:{name.number}"
    digest = _push_under_name(endpoint, registry, name, reference, on_progress)
    actual = manifest_digest(endpoint, reference)
    if actual != digest:
        message = f"{reference} was pushed as {digest}, but the registry now has {actual or 'no such tag'}"
        hint = f"another machine may have pushed it: run `builder push {name}` again, which compares the content"
        raise TransferError(message, hint=hint)
    return digest, False


def push_for_copy(endpoint: Endpoint, registry: Registry, name: ImageName, on_progress: OnLayerProgress) -> str:
    """Pushes a number to a `private` registry; returns the digest by which a node pulls it. Only that digest is used,
    so the number gets no tag of its own, and what an earlier copy left there does not matter. Raises TransferError if
    the push failed."""
    return _push_under_name(endpoint, registry, name, f"{registry.repository(name)}:{_ARRIVING}", on_progress)


def _existing_digest(endpoint: Endpoint, registry: Registry, name: ImageName, recorded: NumberedImage) -> str | None:
    """The digest of a number in the registry; None if it is missing. Raises TransferError if its tag has other
    content."""
    registry_state, digest = state(endpoint, registry, name, recorded)
    if registry_state == "moved":
        reference = f"{registry.repository(name)}:{name.number}"
        message = f"{reference} has different content than images.lock records for {name}, and was not overwritten"
        hint = "if another project pushed that number, give this project its own path: `registry:` in builder.yaml"
        raise TransferError(message, hint=hint)
    return digest


def left_by_push(name: ImageName, tags: Iterable[str]) -> tuple[str, ...]:
    """The temporary names in ``tags``, the names of a number's image, that a killed push or copy left."""
    return tuple(tag for tag in tags if tag.endswith(f"/{name.repository}:{_ARRIVING}"))


def set_latest(
    endpoint: Endpoint, registry: Registry, name: ImageName, digest: str, on_progress: OnLayerProgress
) -> bool:
    """Points the registry's ``latest`` at a number that it has as ``digest``, by pushing the engine's image. Returns
    False if it already pointed there, or if this engine lacks the image."""
    reference = f"{registry.repository(name)}:latest"
    before = manifest_digest(endpoint, reference)
    if before == digest or images.inspect_image(endpoint, str(name)) is None:
        images.remove_extra_tag(endpoint, reference)  # a killed push left it
        return False
    return _push_under_name(endpoint, registry, name, reference, on_progress) != before


def keeps_tags(error: TransferError) -> bool:
    """True if a registry rejected a push because its tags are immutable (registries also write `immutability`)."""
    return "immutab" in error.message.lower()


def pull(
    endpoint: Endpoint,
    registry: Registry,
    name: ImageName,
    recorded: NumberedImage,
    version: str,
    on_progress: OnLayerProgress,
) -> PulledLayers:
    """Pulls a number from the registry into an engine by its ``version`` (a digest, or the number); returns the layers
    that the engine lacked. The number's tag is set last, after the content was compared with images.lock.

    Raises TransferError if the pull failed. Raises ImageStateError if the content differs, or if the engine has another
    image under that number.
    """
    adopted.is_present(endpoint, name, recorded)
    with _pulled(endpoint, registry.repository(name), version, registry.login(name), on_progress) as (pulled, layers):
        details = images.inspect_image(endpoint, pulled)
        if details is None or images.fingerprint(details) != recorded.fingerprint:
            message = f"{pulled} is not the image that images.lock records for {name}, so it was not kept"
            raise ImageStateError(message, hint=adopted.way_back(name, replace(recorded, digest=None)))
        images.tag_image(endpoint, pulled, str(name))
    return layers


def pull_by_digest(endpoint: Endpoint, repository: str, digest: str, tag: str, on_progress: OnLayerProgress) -> None:
    """Pulls an image that a builder pushed to ``repository`` (``HOST/NAME``) into an engine, and tags it ``tag``.

    Raises TransferError if the pull failed.
    """
    with _pulled(endpoint, repository, digest, auth_headers(repository), on_progress) as (pulled, _):
        images.tag_image(endpoint, pulled, tag)


@contextmanager
def _pulled(
    endpoint: Endpoint, repository: str, version: str, login: Mapping[str, str], on_progress: OnLayerProgress
) -> Iterator[tuple[str, PulledLayers]]:
    layers = transfer.pull_layers(endpoint, repository, version, login, on_progress)
    pulled = f"{repository}{'@' if version.startswith('sha256:') else ':'}{version}"
    try:
        yield pulled, layers
    finally:
        # By now this is only a second name, or an unwanted image.
        _remove_name(images.remove_image, endpoint, pulled)


def _push_under_name(
    endpoint: Endpoint, registry: Registry, name: ImageName, reference: str, on_progress: OnLayerProgress
) -> str:
    """Pushes an image under the temporary name ``reference``, which is then removed: `docker image ls` lists the image
    once. If this process is killed, the next `push` removes the name."""
    try:
        images.tag_image(endpoint, str(name), reference)
        return transfer.push_image(endpoint, reference, registry.login(name), on_progress)
    finally:
        _remove_name(images.remove_extra_tag, endpoint, reference)


def _remove_name(remove: Callable[[Endpoint, str], bool], endpoint: Endpoint, name: str) -> None:
    """Removes a temporary name. After ^C during the removal, the name is removed nevertheless."""
    with suppress(BuilderError):
        try:
            remove(endpoint, name)
        except KeyboardInterrupt:
            remove(endpoint, name)
            raise


# Pulling into this engine, with all further changes in this project.


def pull_number(workspace: Workspace, address: str, lock: Lock, name: ImageName) -> PulledLayers:
    """Pulls a number by its digest, or by its tag if it was pushed with another images.lock; returns the layers that
    this engine lacked. The number is then no longer pruned, and ``latest`` follows if it is the current number. Raises
    TransferError if the pull failed. Raises ImageStateError if the content differs, or if another project in this
    engine gave the number to other content."""
    repository = lock.images[name.repository]
    recorded = repository.numbers[name.number]
    version = recorded.digest or str(name.number)
    source = Registry(address)
    images_lock.claim_number(workspace, name, recorded.fingerprint)
    workspace.report(Message(f"{name}: pulling from {source.repository(name)}"))
    layers = pull(workspace.engine, source, name, recorded, version, workspace.report)
    if recorded.pruned:
        images_lock.restore_tag(workspace, name, str(name))
    if repository.current == name.number:
        claims.point_latest(workspace, name.repository, name.number)
    images_lock.tell_numbers(workspace, lock, name.repository)
    return layers


def pull_unnumbered(workspace: Workspace, reference: str) -> PulledLayers:
    """Pulls someone else's image, by its name in a recipe; returns the layers that this engine lacked. Raises
    TransferError if the pull failed, or no registry has the image."""
    repository, version = images.split_tag(reference)
    workspace.report(Message(f"{reference}: pulling"))
    login = auth_headers(reference)
    return transfer.pull_layers(workspace.engine, repository, version, login, workspace.report)
