"""Numbered images in the registry of builder.yaml: where one is called what, whether it is there, getting it there and
back. The tag of a number is given once, and never to other content."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from builder.engine import images, logins, transfer
from builder.engine import registry as engine_registry
from builder.errors import BuilderError, ImageStateError, TransferError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.engine.endpoint import Endpoint
    from builder.engine.transfer import Moved, OnAmount
    from builder.lock.model import ImageName, NumberedImage

State = Literal["present", "missing", "moved"]


@dataclass(frozen=True)
class Place:
    """A registry: ``address`` is HOST[:PORT][/PATH]; a ``private`` one was started for a copy and has no logins."""

    address: str
    private: bool = False

    def repository(self, name: ImageName) -> str:
        """What the image's repository is called there."""
        return f"{self.address}/{name.repository}"

    def login(self, name: ImageName) -> Mapping[str, str]:
        """The person's login for it, as a header for the engine."""
        return {} if self.private else logins.headers(self.repository(name))


@dataclass(frozen=True)
class Pushed:
    """``digest`` is that of the manifest in the registry; ``already`` where it was there and nothing moved."""

    digest: str
    already: bool


def state(endpoint: Endpoint, place: Place, name: ImageName, recorded: NumberedImage) -> State:
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


def push(endpoint: Endpoint, place: Place, name: ImageName, recorded: NumberedImage, on_amount: OnAmount) -> Pushed:
    """Brings a number into the registry, where it is not there yet.

    Raises ImageStateError where the engine lacks the image or has other content under its tag, TransferError where the
    registry has other content under it, or did not take it.
    """
    reference = f"{place.repository(name)}:{name.number}"
    found = state(endpoint, place, name, recorded)
    if found == "moved":
        raise TransferError(
            f"{reference} holds other content than images.lock records for {name}: not overwritten",
            hint="another project pushed that number? Give this one a path of its own in `registry:` of builder.yaml",
        )
    if found == "missing":
        require(endpoint, name, recorded)
        _push_as(endpoint, place, name, reference, on_amount)
    digest = engine_registry.digest(endpoint, reference)
    if digest is None:
        raise TransferError(f"{reference} was pushed, and the registry does not have it")
    return Pushed(digest, already=found == "present")


def set_latest(endpoint: Endpoint, place: Place, name: ImageName, digest: str, on_amount: OnAmount) -> bool:
    """Makes the registry's ``latest`` mean this number, whose layers are there; False where it does, or where this
    engine has no such image to push."""
    reference = f"{place.repository(name)}:latest"
    if engine_registry.digest(endpoint, reference) == digest or images.inspect(endpoint, str(name)) is None:
        return False
    _push_as(endpoint, place, name, reference, on_amount)
    return True


def fetch(
    endpoint: Endpoint, place: Place, name: ImageName, recorded: NumberedImage, version: str, on_amount: OnAmount
) -> Moved:
    """Gets a number into an engine from the registry, where it is called ``version`` (a digest, or the number); returns
    what the engine lacked. The number's tag is set last, when the content is what images.lock records.

    Raises TransferError where it did not come, ImageStateError where something else came.
    """
    pulled = f"{place.repository(name)}{'@' if version.startswith('sha256:') else ':'}{version}"
    moved = transfer.pull(endpoint, place.repository(name), version, place.login(name), on_amount)
    try:
        details = images.inspect(endpoint, pulled)
        if details is None or images.fingerprint(details) != recorded.fingerprint:
            raise ImageStateError(
                f"{pulled} is not the image that images.lock records for {name}: not kept",
                hint="`builder rebuild` makes a number again from its build directory",
            )
        images.tag(endpoint, pulled, str(name))
    finally:
        # Only a second name by now, or something that nobody wants.
        with suppress(BuilderError):
            images.remove(endpoint, pulled)
    return moved


def require(endpoint: Endpoint, name: ImageName, recorded: NumberedImage) -> None:
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


def _push_as(endpoint: Endpoint, place: Place, name: ImageName, reference: str, on_amount: OnAmount) -> None:
    """Pushes under a name that the image has for so long only: `docker image ls` is not to show every image twice."""
    images.tag(endpoint, str(name), reference)
    try:
        transfer.push(endpoint, reference, place.login(name), on_amount)
    finally:
        with suppress(BuilderError):
            images.untag(endpoint, reference)
