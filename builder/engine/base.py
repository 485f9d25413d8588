"""What a base image's tag stands for today: the registry's digest, or the content that only this engine has."""

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

# Where a firewall drops packets, a registry never answers; a person waits this long and no longer.
REGISTRY_WAIT = 8.0
LOCAL = "local:"


def resolve(endpoint: Endpoint, reference: str, platform: str, *, wait: float = REGISTRY_WAIT) -> str:
    """The digest (``sha256:…``, of the whole index where there is one) that a registry has for ``reference``.

    The engine asks, with its network, proxies and mirrors and the person's login, and for ``wait`` seconds at most.
    ``local:`` and a fingerprint where no registry has it or answers, and the engine holds such an image. Raises
    SourceError where neither does, and where the registry's image is not for ``platform`` (``linux/arm64``).
    """
    try:
        path = f"/distribution/{quoted(reference)}/json"
        said = request(endpoint, "GET", path, headers=credentials.headers(reference), timeout=wait)
    except EngineHTTPError as error:
        why = error.explanation
    except EngineTimeoutError:
        why = f"the registry has not answered for {wait:g} seconds"
    else:
        _check_platform(reference, platform, said.get("Platforms") or ())
        return str(said["Descriptor"]["digest"])
    local = local_fingerprint(endpoint, reference, platform)
    if local is None:
        raise SourceError(
            f"base image {reference} cannot be resolved: {why}",
            hint="check its name and the network, or `docker pull` or import it so that the engine has it",
        )
    return LOCAL + local


def local_fingerprint(endpoint: Endpoint, reference: str, platform: str = "") -> str | None:
    """The fingerprint of the image that the engine holds under this reference; None where it has none.

    Raises SourceError where ``platform`` is given and the image is for another.
    """
    found = inspect(endpoint, reference)
    if found is None:
        return None
    if platform and not _same_platform(platform, found.platform):
        raise SourceError(f"the engine's image {reference} is for {found.platform}, and {platform} is asked for")
    return fingerprint(found)


def _check_platform(reference: str, platform: str, offered: Iterable[Mapping[str, Any]]) -> None:
    names = [
        "/".join(filter(None, (one.get("os"), one.get("architecture"), one.get("variant"))))
        for one in offered
        # Attestations are listed as images of an unknown platform.
        if one.get("os") not in {None, "", "unknown"}
    ]
    if names and not any(_same_platform(platform, name) for name in names):
        raise SourceError(f"base image {reference} is for {', '.join(sorted(set(names)))}, not for {platform}")


def _same_platform(asked: str, offered: str) -> bool:
    """Whether they name the same platform; a variant counts only where both name one."""
    return all(one == other for one, other in zip(asked.split("/"), offered.split("/"), strict=False))
