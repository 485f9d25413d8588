"""The contents of a community base image, read from the engine's copy: its vLLM, FlashInfer and packages.

If the engine has no copy, the image is pulled; a build on that base requires it anyway.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

from builder.base import words
from builder.base.errors import (
    BuildFailedError,
    EngineError,
    ImageContentsError,
    ImageStateError,
    SourceError,
    TransferError,
)
from builder.base.events import Message, Report, TransferProgress
from builder.base.values import dataclass
from builder.engine import containers, images, installed, registry, transfer
from builder.engine.images import repository
from builder.lock.model import BasePin, LockedPackage, Version

if TYPE_CHECKING:
    from builder.engine.client import Endpoint
    from builder.engine.transfer import LayerProgress


@dataclass(frozen=True)
class BaseContents:
    """The contents of a base image: its date (RFC 3339 UTC, empty if unknown), the version of its Python, the sources
    that it contains, and all its Python packages."""

    created: str
    python: str
    sources: Mapping[str, Version]
    packages: tuple[LockedPackage, ...]


def read_base_contents(endpoint: Endpoint, pin: BasePin, platform: str, report: Report) -> BaseContents:
    """Reads the contents of a pinned base, and pulls it first if the engine lacks it. Raises SourceError if the base
    cannot be pulled, differs from the pin, or cannot run here."""
    with _read_errors(pin):
        details = _pulled(endpoint, pin, platform, report)
        report(Message(f"reading what {pin.requested} contains"))
        software = installed.read_installed(endpoint, reference(pin), containers.reading_labels(), platform)
    sources = {name: Version(package.version, package.commit) for name, package in software.sources.items()}
    packages = tuple(LockedPackage(name, version, ()) for name, version in software.packages.items())
    return BaseContents(_date(details.created), software.python, sources, packages)


def ensure_present(endpoint: Endpoint, pin: BasePin, platform: str, report: Report) -> None:
    """Pulls a pinned base if the engine lacks it. Raises SourceError."""
    with _read_errors(pin):
        _pulled(endpoint, pin, platform, report)


def read_files(
    endpoint: Endpoint, pin: BasePin, platform: str, package: str, paths: Collection[str]
) -> dict[str, bytes]:
    """Reads the files ``paths`` (``vllm/config.py``) of the importable ``package`` in a pinned base. Missing files are
    left out. Raises SourceError if the engine lacks the base: nothing is pulled."""
    with _read_errors(pin):
        if _present(endpoint, pin, platform) is None:
            raise SourceError(f"this engine does not have the pinned image of {pin.requested}; a build pulls it")
        return installed.read_files(endpoint, reference(pin), containers.reading_labels(), package, paths, platform)


def reference(pin: BasePin) -> str:
    local = pin.resolved.startswith(installed.LOCAL)
    return pin.requested if local else f"{repository(pin.requested)}@{pin.resolved}"


@contextmanager
def _read_errors(pin: BasePin) -> Iterator[None]:
    try:
        yield
    except (BuildFailedError, EngineError, ImageContentsError, ImageStateError, TransferError) as error:
        raise SourceError(f"{pin.requested} cannot be read: {error.message}", hint=error.hint) from None


def _pulled(endpoint: Endpoint, pin: BasePin, platform: str, report: Report) -> images.ImageDetails:
    if details := _present(endpoint, pin, platform):
        return details
    report(Message(f"pulling {pin.requested}, to read its contents"))
    path, _, digest = reference(pin).partition("@")
    if not digest:
        message = f"this engine no longer has the pinned image of {path}, which came from no registry"
        pins = "pin the image that has this name now: `builder lock DEFINITION --update base`"
        raise SourceError(message, hint=f"load the pinned image again (`docker load`); or {pins}")

    def on_progress(progress: LayerProgress) -> None:
        report(TransferProgress(path, progress.current, progress.total))

    transfer.pull_layers(endpoint, path, digest, registry.auth_headers(path), on_progress, platform)
    if details := _present(endpoint, pin, platform):
        return details
    raise SourceError(f"the engine has no {reference(pin)} for {platform}")


def _present(endpoint: Endpoint, pin: BasePin, platform: str) -> images.ImageDetails | None:
    details = images.inspect_image(endpoint, reference(pin))
    if details is None or details.platform != platform:
        return None
    local = pin.resolved.startswith(installed.LOCAL)
    return None if local and installed.LOCAL + images.fingerprint(details) != pin.resolved else details


def _date(created: str) -> str:
    try:
        moment = datetime.fromisoformat(created)
    except ValueError:
        return ""
    # The date of an image is untrusted, and may be out of range.
    return words.timestamp_of(moment) if 1980 <= moment.year < 9999 and moment.tzinfo else ""
