"""What a registry has under a name, without pulling it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from builder.engine import images
from builder.engine.client.api import quoted, request
from builder.engine.client.endpoint import environment
from builder.engine.client.errors import EngineHTTPError, EngineTimeoutError
from builder.engine.reference import repository
from builder.engine.registry import credentials
from builder.errors import EngineError, TransferError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.engine.client.endpoint import Endpoint
    from builder.engine.images import ImageDetails

WAIT = 20.0  # seconds
_UNKNOWN = ("manifest unknown", "name unknown", "not found", "no such manifest")


def digest(endpoint: Endpoint, reference: str) -> str | None:
    """The digest of what the registry has under ``reference``, asked by the engine with the person's login; None where
    it has nothing. Raises TransferError where it does not answer, or lets nobody in."""
    try:
        path = f"/distribution/{quoted(reference)}/json"
        said = request(endpoint, "GET", path, headers=credentials.headers(reference), timeout=WAIT)
    except EngineHTTPError as error:
        if any(word in error.explanation.lower() for word in _UNKNOWN):
            return None
        raise TransferError(f"the registry was asked for {reference}: {error.explanation}", hint=ASK) from None
    except EngineTimeoutError:
        raise TransferError(f"the registry with {reference} has not answered for {WAIT:g} seconds", hint=ASK) from None
    return str(said["Descriptor"]["digest"])


ASK = "is the registry of builder.yaml running, and are you logged in (`docker login`)?"


def fingerprint(endpoint: Endpoint, reference: str, platform: str) -> str:
    """The fingerprint (`images.fingerprint`) of what the registry has under ``reference``: its configuration tells.

    Where that is for several platforms, the one for ``platform`` counts. Raises TransferError where it cannot be read.
    """
    found = platform_images(endpoint, reference)
    return images.fingerprint(next((one for one in found if one.platform == platform), found[0]))


def platform_images(endpoint: Endpoint, reference: str) -> tuple[ImageDetails, ...]:
    """What the registry has under ``reference``, one image a platform, from its configurations: no layer is fetched.

    An engine's own words are missing: ``id`` is empty and ``size`` is 0. Raises TransferError where it cannot be read.
    """
    said = imagetools_inspect(endpoint, reference, "--format", "{{json .Image}}")
    try:
        configurations = [said] if "rootfs" in said else [said[platform] for platform in sorted(said)]
        found = tuple(_details(one) for one in configurations)
    except (KeyError, TypeError, AttributeError):
        raise _unreadable(reference, "that is no image's configuration") from None
    if not found:
        raise _unreadable(reference, "it holds no image")
    return found


def compressed_size(endpoint: Endpoint, reference: str) -> int:
    """The bytes of the packed layers of the image that the registry has under ``reference``, attestations beside it not
    counted; 0 where that is for several platforms. Raises TransferError where it cannot be read."""
    said = imagetools_inspect(endpoint, reference, "--raw")
    try:
        parts = [part for part in said.get("manifests", ()) if not is_attestation(part)]
        if len(parts) == 1:
            said = imagetools_inspect(endpoint, f"{repository(reference)}@{parts[0]['digest']}", "--raw")
        return sum(int(layer["size"]) for layer in said.get("layers", ()))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _unreadable(reference, "that is no image's manifest") from None


def is_attestation(part: Mapping[str, Any]) -> bool:
    """Whether this entry of an index is what BuildKit attests of another one
    (https://docs.docker.com/build/metadata/attestations/attestation-storage/)."""
    return (part.get("annotations") or {}).get("vnd.docker.reference.type") == "attestation-manifest"


def imagetools_inspect(endpoint: Endpoint, reference: str, *how: str) -> Any:
    """What ``docker buildx imagetools inspect`` says of ``reference``, as data.

    Raises TransferError where that cannot be read, EngineError where buildx does not run.
    """
    import os
    import subprocess

    argv = [*endpoint.buildx, "imagetools", "inspect", reference, *how]
    try:
        done = subprocess.run(
            argv, env={**os.environ, **environment(endpoint)}, capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        raise EngineError(f"`{' '.join([*endpoint.buildx, 'imagetools'])}` does not run, or not to its end") from None
    try:
        return json.loads(done.stdout)
    except ValueError:
        raise _unreadable(reference, done.stderr.strip()[-300:]) from None


def _details(configuration: Mapping[str, Any]) -> ImageDetails:
    """An OCI image configuration as an engine would describe its image
    (https://github.com/opencontainers/image-spec/blob/main/config.md)."""
    said = {
        "Id": "",
        "Os": configuration.get("os"),
        "Architecture": configuration.get("architecture"),
        "Variant": configuration.get("variant"),
        "Created": configuration.get("created"),
        "RootFS": {"Layers": configuration["rootfs"]["diff_ids"]},
        "Config": configuration.get("config"),
    }
    return images.parse_details(said)


def _unreadable(reference: str, why: str) -> TransferError:
    return TransferError(f"what {reference} is cannot be read: {why}", hint=ASK)
