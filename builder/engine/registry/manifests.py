"""Manifests and image configurations in a registry, read without pulling the image."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from builder.engine import images
from builder.engine.client import buildx_query
from builder.engine.client.api import quoted, request
from builder.engine.client.errors import EngineHTTPError, EngineTimeoutError
from builder.engine.reference import repository
from builder.engine.registry import credentials, oci_layout
from builder.errors import EngineError, TransferError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.engine.client.endpoint import Endpoint
    from builder.engine.images import ImageDetails

WAIT = 20.0  # seconds
_BUILDX_WAIT = 60.0
HINT = "is the registry of builder.yaml running, and are you logged in (`docker login`)?"
_UNKNOWN = ("manifest unknown", "name unknown", "not found", "no such manifest")


def digest(endpoint: Endpoint, reference: str) -> str | None:
    """Returns the digest of ``reference`` in its registry, which the engine asks with the user's login.

    None where the registry has no such image. Raises TransferError where it does not answer, or refuses the login.
    """
    try:
        path = f"/distribution/{quoted(reference)}/json"
        distribution = request(endpoint, "GET", path, headers=credentials.auth_headers(reference), timeout=WAIT)
    except EngineHTTPError as error:
        if any(word in error.explanation.lower() for word in _UNKNOWN):
            return None
        raise TransferError(
            f"the request to the registry for {reference} failed: {error.explanation}", hint=HINT
        ) from None
    except EngineTimeoutError:
        raise TransferError(f"the registry with {reference} has not answered for {WAIT:g} seconds", hint=HINT) from None
    return str(distribution["Descriptor"]["digest"])


def fingerprint(endpoint: Endpoint, reference: str, platform: str) -> str:
    """Returns the fingerprint (`images.fingerprint`) of ``reference`` in its registry, from the image's configuration.

    For an image of several platforms, the one for ``platform`` counts. Raises TransferError where it cannot be read.
    """
    candidates = platform_images(endpoint, reference)
    return images.fingerprint(next((image for image in candidates if image.platform == platform), candidates[0]))


def platform_images(endpoint: Endpoint, reference: str) -> tuple[ImageDetails, ...]:
    """Returns the images of ``reference`` in its registry, one a platform, from their configurations alone.

    The engine's own facts are missing: ``id`` is empty and ``size`` is 0. Raises TransferError where it cannot be read.
    """
    output = imagetools_inspect(endpoint, reference, "--format", "{{json .Image}}")
    try:
        configurations = [output] if "rootfs" in output else [output[platform] for platform in sorted(output)]
        platform_details = tuple(_details(configuration) for configuration in configurations)
    except (KeyError, TypeError, AttributeError):
        raise _unreadable(reference, "that is not an image's configuration") from None
    if not platform_details:
        raise _unreadable(reference, "it holds no image")
    return platform_details


def compressed_size(endpoint: Endpoint, reference: str) -> int:
    """Returns the size in bytes of the packed layers of ``reference`` in its registry, attestations not counted.

    0 for an image of several platforms. Raises TransferError where it cannot be read.
    """
    manifest = imagetools_inspect(endpoint, reference, "--raw")
    try:
        parts = [part for part in manifest.get("manifests", ()) if not oci_layout.is_attestation(part)]
        if len(parts) == 1:
            manifest = imagetools_inspect(endpoint, f"{repository(reference)}@{parts[0]['digest']}", "--raw")
        return sum(int(layer["size"]) for layer in manifest.get("layers", ()))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _unreadable(reference, "that is not an image's manifest") from None


def imagetools_inspect(endpoint: Endpoint, reference: str, *options: str) -> Any:
    """Runs ``docker buildx imagetools inspect`` for ``reference``; returns its parsed JSON output.

    Raises TransferError where the image cannot be read, EngineError where buildx does not run.
    """
    result = buildx_query.run(endpoint, "imagetools", "inspect", reference, *options, timeout=_BUILDX_WAIT)
    if result is None:
        raise EngineError(f"`{' '.join([*endpoint.buildx, 'imagetools'])}` does not run, or does not end")
    try:
        return json.loads(result.stdout)
    except ValueError:
        raise _unreadable(reference, result.stderr.strip()[-300:]) from None


def _details(configuration: Mapping[str, Any]) -> ImageDetails:
    """Converts an OCI image configuration (https://github.com/opencontainers/image-spec/blob/main/config.md)."""
    description = {
        "Id": "",
        "Os": configuration.get("os"),
        "Architecture": configuration.get("architecture"),
        "Variant": configuration.get("variant"),
        "Created": configuration.get("created"),
        "RootFS": {"Layers": configuration["rootfs"]["diff_ids"]},
        "Config": configuration.get("config"),
    }
    return images.parse_details(description)


def _unreadable(reference: str, why: str) -> TransferError:
    return TransferError(f"{reference} cannot be read from its registry: {why}", hint=HINT)
