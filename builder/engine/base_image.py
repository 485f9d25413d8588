"""Base images, resolved to a registry's digest, or to the fingerprint of an image that only this engine has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builder.engine.client.api import quoted, request
from builder.engine.client.errors import EngineHTTPError, EngineTimeoutError
from builder.engine.images import fingerprint, inspect
from builder.engine.registry import credentials
from builder.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from builder.engine.client.endpoint import Endpoint

# Where a firewall drops packets, a registry never answers; the user waits this long and no longer.
REGISTRY_WAIT = 8.0
LOCAL = "local:"


def resolve(endpoint: Endpoint, reference: str, platform: str, *, wait: float = REGISTRY_WAIT) -> str:
    """Resolves ``reference`` to the registry's digest (``sha256:…``, of the whole index where there is one).

    The engine asks, with its network, proxies and mirrors and the user's login, for ``wait`` seconds at most. Where no
    registry has it or answers, but the engine has such an image, the result is ``local:`` and its fingerprint. Raises
    SourceError where neither has it, and where the registry's image is not for ``platform`` (``linux/arm64``).
    """
    try:
        path = f"/distribution/{quoted(reference)}/json"
        distribution = request(endpoint, "GET", path, headers=credentials.auth_headers(reference), timeout=wait)
    except EngineHTTPError as error:
        why = error.explanation
    except EngineTimeoutError:
        why = f"the registry has not answered for {wait:g} seconds"
    else:
        _check_platform(reference, platform, distribution.get("Platforms") or ())
        return str(distribution["Descriptor"]["digest"])
    local = local_fingerprint(endpoint, reference, platform)
    if local is None:
        raise SourceError(
            f"base image {reference} cannot be resolved: {why}",
            hint="check its name and the network, or `docker pull` or import it so that the engine has it",
        )
    return LOCAL + local


def local_fingerprint(endpoint: Endpoint, reference: str, platform: str = "") -> str | None:
    """Returns the fingerprint of the engine's own image of this reference; None where it has none.

    Raises SourceError where ``platform`` is given and the image is for another.
    """
    image = inspect(endpoint, reference)
    if image is None:
        return None
    if platform and not _same_platform(platform, image.platform):
        raise SourceError(f"the engine's image {reference} is for {image.platform}, and {platform} is asked for")
    return fingerprint(image)


def _check_platform(reference: str, platform: str, offered: Iterable[Mapping[str, Any]]) -> None:
    names = [
        "/".join(filter(None, (entry.get("os"), entry.get("architecture"), entry.get("variant"))))
        for entry in offered
        # Attestations are listed as images of an unknown platform.
        if entry.get("os") not in {None, "", "unknown"}
    ]
    if names and not any(_same_platform(platform, name) for name in names):
        raise SourceError(f"base image {reference} is for {', '.join(sorted(set(names)))}, not for {platform}")


def _same_platform(requested: str, offered: str) -> bool:
    """True if both name the same platform; a variant counts only where both have one."""
    return all(part == other for part, other in zip(requested.split("/"), offered.split("/"), strict=False))
