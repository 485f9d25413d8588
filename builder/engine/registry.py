"""Requests to a registry that the engine does not offer. No image is pulled for them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from builder.base.errors import EngineError, SourceError, TransferError
from builder.engine import images, versions
from builder.engine.client import EngineHTTPError, EngineTimeoutError, quoted, request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.engine.client import Endpoint
    from builder.engine.images import ImageDetails


def auth_headers(reference: str) -> dict[str, str]:
    """Returns the header that gives the engine the credentials for the registry of ``reference``; empty without any.
    Raises SourceError where Docker's configuration or its credential helper cannot be read."""
    from docker import auth

    login = credentials(reference)
    return {"X-Registry-Auth": auth.encode_header(login).decode()} if login else {}


def credentials(reference: str) -> dict[str, str]:
    """Returns the user's login for the registry of ``reference``, as Docker keeps it; empty without any. Raises
    SourceError as `auth_headers` does."""
    from docker import auth
    from docker.errors import DockerException

    try:
        registry, _ = auth.resolve_repository_name(reference)
        login = auth.load_config().resolve_authconfig(registry) or {}
    except DockerException as error:
        raise SourceError(f"the login for the registry of {reference} cannot be read: {error}") from None
    # Docker's file and its credential helpers write the names differently.
    return {key.lower(): value for key, value in login.items()}


WAIT = 20.0  # seconds
_BUILDX_WAIT = 60.0
_COPY_WAIT = 24 * 3600.0
HINT = "is the registry of builder.yaml running, and are you logged in (`docker login`)?"
_UNKNOWN = ("manifest unknown", "name unknown", "not found", "no such manifest")


def manifest_digest(endpoint: Endpoint, reference: str) -> str | None:
    """Returns the digest of ``reference`` in its registry, which the engine asks with the user's login; None where the
    registry has no such image. Raises TransferError where it does not answer, or refuses the login."""
    try:
        path = f"/distribution/{quoted(reference)}/json"
        distribution = request(endpoint, "GET", path, headers=auth_headers(reference), timeout=WAIT)
    except EngineHTTPError as error:
        if any(word in error.explanation.lower() for word in _UNKNOWN):
            return None
        raise TransferError(
            f"the request to the registry for {reference} failed: {error.explanation}", hint=HINT
        ) from None
    except EngineTimeoutError:
        raise TransferError(f"the registry with {reference} has not answered for {WAIT:g} seconds", hint=HINT) from None
    return str(distribution["Descriptor"]["digest"])


def manifest_fingerprint(endpoint: Endpoint, reference: str, platform: str) -> str:
    """Returns the fingerprint (`images.fingerprint`) of ``reference`` in its registry, from the image's configuration.
    For an image of several platforms, the one for ``platform`` counts. Raises TransferError where it cannot be read."""
    output = imagetools_inspect(endpoint, reference, "--format", "{{json .Image}}")
    try:
        configurations = [output] if "rootfs" in output else [output[platform] for platform in sorted(output)]
        candidates = tuple(_details(configuration) for configuration in configurations)
    except (KeyError, TypeError, AttributeError):
        raise _unreadable(reference, "that is not an image's configuration") from None
    if not candidates:
        raise _unreadable(reference, "it holds no image")
    return images.fingerprint(next((image for image in candidates if image.platform == platform), candidates[0]))


def imagetools_inspect(endpoint: Endpoint, reference: str, *options: str) -> Any:
    """Runs ``docker buildx imagetools inspect`` for ``reference``; returns its parsed JSON output. Raises TransferError
    where the image cannot be read, EngineError where buildx does not run."""
    result = versions.query_buildx(endpoint, "imagetools", "inspect", reference, *options, timeout=_BUILDX_WAIT)
    if result is None:
        raise EngineError(f"`{' '.join([*endpoint.buildx, 'imagetools'])}` does not run, or does not end")
    try:
        return json.loads(result.stdout)
    except ValueError:
        raise _unreadable(reference, result.stderr.strip()[-300:]) from None


def copy_image(endpoint: Endpoint, source: str, target: str) -> None:
    """Copies an image of a registry to another as it is, with all its platforms, so that its digest stays. Layers that
    are there are not sent again. Raises TransferError where it cannot be read or written."""
    result = versions.query_buildx(
        endpoint, "imagetools", "create", "--prefer-index=false", "--tag", target, source, timeout=_COPY_WAIT
    )
    if result is None or result.returncode:
        lines = result.stderr.strip().splitlines() if result else ["buildx does not run, or does not end"]
        why = lines[-1].removeprefix("ERROR: ") if lines else "buildx does not say why"
        raise TransferError(f"{source} was not copied to {target}: {why}", hint=HINT)


def _details(configuration: Mapping[str, Any]) -> ImageDetails:
    """Converts an OCI image configuration (https://github.com/opencontainers/image-spec/blob/main/config.md)."""
    names = {"Os": "os", "Architecture": "architecture", "Variant": "variant", "Created": "created", "Config": "config"}
    description = {key: configuration.get(name) for key, name in names.items()}
    return images.parse_details({**description, "Id": "", "RootFS": {"Layers": configuration["rootfs"]["diff_ids"]}})


def _unreadable(reference: str, why: str) -> TransferError:
    return TransferError(f"{reference} cannot be read from its registry: {why}", hint=HINT)
