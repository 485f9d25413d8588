"""The tags of a repository in a registry. The engine's API does not list them, so the registry itself is asked.

The protocol: https://github.com/opencontainers/distribution-spec/blob/main/spec.md#listing-tags.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urljoin

from builder.engine.registry import registry_session
from builder.engine.registry.manifests import HINT
from builder.errors import TransferError

if TYPE_CHECKING:
    from builder.engine.client.endpoint import Endpoint
    from builder.engine.registry.registry_session import RegistrySession

_PAGE = 1000
_MOST_PAGES = 1000
_LARGEST_PAGE = 16 * 1024 * 1024
_NOT_FOUND = 404


def tags(endpoint: Endpoint, repository: str) -> tuple[str, ...]:
    """Returns all tags of ``repository`` (``HOST[:PORT]/PATH``), none where the registry has no such repository.

    The request goes out from this machine with the user's login, and without TLS where the engine is configured so.
    Raises TransferError where the registry does not answer, or refuses the login.
    """
    import httpx2

    try:
        with registry_session.opened(endpoint, repository) as session:
            return tuple(_pages(session, repository))
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
        raise TransferError(
            f"the request to the registry for the tags of {repository} failed: {error}", hint=HINT
        ) from None


def _pages(session: RegistrySession, repository: str) -> list[str]:
    tag_names: list[str] = []
    url = f"{session.address}/v2/{session.path}/tags/list?n={_PAGE}"
    seen: set[str] = set()
    while url and url not in seen and len(seen) < _MOST_PAGES:
        seen.add(url)
        answer = session.send("GET", url, largest=_LARGEST_PAGE)
        if answer.status_code == _NOT_FOUND:
            return []
        if not answer.is_success:
            reason = f"{answer.status_code} {answer.reason_phrase}"
            raise TransferError(f"the request to the registry for the tags of {repository} failed: {reason}", hint=HINT)
        try:
            tag_names += map(str, answer.json().get("tags") or ())
        except (ValueError, AttributeError):
            raise TransferError(f"the server of {repository} is not a registry", hint=HINT) from None
        following = urljoin(url, answer.links.get("next", {}).get("url") or "")
        if not session.is_within(following):
            # Wherever it leads, the login of this registry would go along.
            reason = f"its next page is said to be at {following}"
            raise TransferError(f"the request to the registry for the tags of {repository} failed: {reason}", hint=HINT)
        url = following
    return tag_names
