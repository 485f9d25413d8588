"""Numbered images in the registry of builder.yaml: where one is called what, whether it is there, getting it there and
back. The tag of a number is given once, and never to other content."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from builder.engine import images
from builder.engine.registry import credentials, transfer
from builder.engine.registry import manifests as engine_registry
from builder.errors import BuilderError, ImageStateError, TransferError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from builder.engine.client.endpoint import Endpoint
    from builder.engine.registry.transfer import OnLayerProgress, PulledLayers
    from builder.lock.model import ImageName, NumberedImage

RegistryState = Literal["present", "missing", "moved"]

# What moves to a registry takes minutes, and has this tag when it is there; a number's own is then given at once.
_ARRIVING = "arriving"


@dataclass(frozen=True)
class Registry:
    """A registry: ``address`` is HOST[:PORT][/PATH]; a ``private`` one was started for a copy and has no logins."""

    address: str
    private: bool = False

    def repository(self, name: ImageName) -> str:
        """What the image's repository is called there."""
        return f"{self.address}/{name.repository}"

    def login(self, name: ImageName) -> Mapping[str, str]:
        """The person's login for it, as a header for the engine."""
        return {} if self.private else credentials.headers(self.repository(name))


@dataclass(frozen=True)
class Pushed:
    """``digest`` is that of the manifest in the registry; ``already`` where it was there and nothing moved."""

    digest: str
    already: bool


def state(endpoint: Endpoint, place: Registry, name: ImageName, recorded: NumberedImage) -> RegistryState:
    """How a number stands in the registry: ``moved`` where its tag has other content than images.lock records.

    The manifest is asked for by its digest; only where that is another one than recorded, the configuration is read
    too, since layers that are packed differently give another digest for the same content. Raises TransferError where
    the registry does not answer.
    """
    reference = f"{place.repository(name)}:{name.number}"
    found = engine_registry.digest(endpoint, reference)
    if found is None:
        return "missing"
    if found == recorded.digest:
        return "present"
    content = engine_registry.fingerprint(endpoint, reference, recorded.platform)
    return "present" if content == recorded.fingerprint else "moved"


def push(
    endpoint: Endpoint, place: Registry, name: ImageName, recorded: NumberedImage, on_progress: OnLayerProgress
) -> Pushed:
    """Brings a number into the registry, where it is not there yet.

    Raises ImageStateError where the engine lacks the image or has other content under its tag, TransferError where the
    registry has other content under it, or did not take it.
    """
    if digest := existing_digest(endpoint, place, name, recorded):
        return Pushed(digest, already=True)
    require_present(endpoint, name, recorded)
    return Pushed(upload(endpoint, place, name, recorded, str(name), on_progress), already=False)


def existing_digest(endpoint: Endpoint, place: Registry, name: ImageName, recorded: NumberedImage) -> str | None:
    """The digest under which the registry has a number; None where it does not have it. Raises TransferError where its
    tag holds other content."""
    reference = f"{place.repository(name)}:{name.number}"
    found = state(endpoint, place, name, recorded)
    if found == "moved":
        raise TransferError(
            f"{reference} holds other content than images.lock records for {name}: not overwritten",
            hint="another project pushed that number? Give this one a path of its own in `registry:` of builder.yaml",
        )
    return engine_registry.digest(endpoint, reference) if found == "present" else None


def upload(
    endpoint: Endpoint,
    place: Registry,
    name: ImageName,
    recorded: NumberedImage,
    source: str,
    on_progress: OnLayerProgress,
) -> str:
    """Pushes the engine's image ``source``, which has the content of a number, and gives it the number's tag; returns
    its digest there.

    A registry knows no "put this tag where there is none". So all layers move first, under another tag; the number's is
    looked at again right before it is set, and right after. Raises TransferError where somebody else was faster.
    """
    _push_layers(endpoint, place, name, source, on_progress)
    existing_digest(endpoint, place, name, recorded)
    reference = f"{place.repository(name)}:{name.number}"
    digest = push_under_name(endpoint, place, name, source, reference, on_progress)
    there = engine_registry.digest(endpoint, reference)
    if there is None:
        raise TransferError(f"{reference} was pushed, and the registry does not have it")
    if there != digest:
        raise TransferError(
            f"somebody else pushed {reference} at the same moment: it stands for {there} now, and not for {digest}",
            hint=f"`builder push {name}` again says whether that is the same content",
        )
    return digest


def _push_layers(
    endpoint: Endpoint, place: Registry, name: ImageName, source: str, on_progress: OnLayerProgress
) -> None:
    try:
        push_under_name(endpoint, place, name, source, f"{place.repository(name)}:{_ARRIVING}", on_progress)
    except TransferError as error:
        # A registry that lets no tag be moved refuses the second image under this one, and guards the numbers itself.
        if "immutable" not in error.message.lower():
            raise


def set_latest(
    endpoint: Endpoint, place: Registry, name: ImageName, source: str, digest: str, on_progress: OnLayerProgress
) -> bool:
    """Makes the registry's ``latest`` mean a number that is there as ``digest``, by pushing the engine's image
    ``source`` of the same content; False where it does, or where this engine has no such image."""
    reference = f"{place.repository(name)}:latest"
    before = engine_registry.digest(endpoint, reference)
    if before == digest or images.inspect(endpoint, source) is None:
        return False
    return push_under_name(endpoint, place, name, source, reference, on_progress) != before


def pull(
    endpoint: Endpoint,
    place: Registry,
    name: ImageName,
    recorded: NumberedImage,
    version: str,
    on_progress: OnLayerProgress,
) -> PulledLayers:
    """Gets a number into an engine from the registry, where it is called ``version`` (a digest, or the number); returns
    what the engine lacked. The number's tag is set last, when the content is what images.lock records.

    Raises TransferError where it did not come, ImageStateError where something else came.
    """
    with _pulled(endpoint, place.repository(name), version, place.login(name), on_progress) as (pulled, moved):
        details = images.inspect(endpoint, pulled)
        if details is None or images.fingerprint(details) != recorded.fingerprint:
            raise ImageStateError(
                f"{pulled} is not the image that images.lock records for {name}: not kept",
                hint="`builder rebuild` makes a number again from its build directory",
            )
        images.tag(endpoint, pulled, str(name))
    return moved


def pull_by_digest(endpoint: Endpoint, repository: str, digest: str, tag: str, on_progress: OnLayerProgress) -> None:
    """Gets what a builder pushed to ``repository`` (``HOST/NAME``) by its digest into an engine, as ``tag``.

    Raises TransferError where it did not come.
    """
    with _pulled(endpoint, repository, digest, credentials.headers(repository), on_progress) as (pulled, _):
        images.tag(endpoint, pulled, tag)


@contextmanager
def _pulled(
    endpoint: Endpoint, repository: str, version: str, login: Mapping[str, str], on_progress: OnLayerProgress
) -> Iterator[tuple[str, PulledLayers]]:
    """What the engine calls it while the block runs, and what it lacked."""
    moved = transfer.pull(endpoint, repository, version, login, on_progress)
    pulled = f"{repository}{'@' if version.startswith('sha256:') else ':'}{version}"
    try:
        yield pulled, moved
    finally:
        # Only a second name by now, or something that nobody wants.
        with suppress(BuilderError):
            images.remove(endpoint, pulled)


def require_present(endpoint: Endpoint, name: ImageName, recorded: NumberedImage) -> None:
    """Raises ImageStateError where the engine does not have what images.lock records under this number."""
    details = images.inspect(endpoint, str(name))
    if details is None:
        raise ImageStateError(
            f"{name} is missing from this engine", hint=f"`builder pull {name}` gets it where a registry has it"
        )
    if images.fingerprint(details) != recorded.fingerprint:
        raise ImageStateError(
            f"{name} is not the image that images.lock records: its tag was moved",
            hint="`builder verify` says what is wrong, `builder rebuild` makes a number again",
        )


def push_under_name(
    endpoint: Endpoint, place: Registry, name: ImageName, source: str, reference: str, on_progress: OnLayerProgress
) -> str:
    """Pushes under a name that the image has for so long only: `docker image ls` is not to show every image twice."""
    images.tag(endpoint, source, reference)
    try:
        return transfer.push(endpoint, reference, place.login(name), on_progress)
    finally:
        with suppress(BuilderError):
            images.remove_extra_tag(endpoint, reference)
