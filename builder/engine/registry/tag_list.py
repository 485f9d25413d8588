"""The tags of a repository in a registry. The engine's API does not list them, so the registry itself is asked.

The protocol: https://github.com/opencontainers/distribution-spec/blob/main/spec.md#listing-tags; how a registry asks
for a login: https://distribution.github.io/distribution/spec/auth/token/.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from builder.engine.client.api import request
from builder.engine.registry import credentials
from builder.engine.registry.manifests import HINT, WAIT
from builder.errors import TransferError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    import httpx2

    from builder.engine.client.endpoint import Endpoint

_PAGE = 1000
_MOST_PAGES = 1000
_UNAUTHORIZED = 401
_NOT_FOUND = 404
_TLS_REQUIRED = 400  # the answer of a TLS server to plain HTTP
# Docker Hub's name in references is not the host of its API.
_API_HOSTS = {"docker.io": "registry-1.docker.io"}
_CERTIFICATES = Path("/etc/docker/certs.d")


def tags(endpoint: Endpoint, repository: str) -> tuple[str, ...]:
    """Returns all tags of ``repository`` (``HOST[:PORT]/PATH``), none where the registry has no such repository.

    The request goes out from this machine with the user's login, and without TLS where the engine is configured so.
    Raises TransferError where the registry does not answer, or refuses the login.
    """
    import httpx2

    host, _, path = repository.partition("/")
    try:
        with _client(host, insecure=_insecure(endpoint, host)) as client:
            return tuple(_pages(client, _address(client, host), repository, path))
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
        raise TransferError(
            f"the request to the registry for the tags of {repository} failed: {error}", hint=HINT
        ) from None


def _client(host: str, *, insecure: bool) -> httpx2.Client:
    """Returns a client for a registry; one that is ``insecure`` is near, and no proxy is needed."""
    import httpx2

    verify = True if insecure else _certificates(host)
    return httpx2.Client(verify=verify, trust_env=not insecure, timeout=WAIT, follow_redirects=True)


def _pages(client: httpx2.Client, address: str, repository: str, path: str) -> list[str]:
    tag_names: list[str] = []
    url = f"{address}/v2/{path}/tags/list?n={_PAGE}"
    seen: set[str] = set()
    while url and url not in seen and len(seen) < _MOST_PAGES:
        seen.add(url)
        answer = _get(client, url, repository)
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
        if not following.startswith(f"{address}/"):
            # Wherever it leads, the login of this registry would go along.
            reason = f"its next page is said to be at {following}"
            raise TransferError(f"the request to the registry for the tags of {repository} failed: {reason}", hint=HINT)
        url = following
    return tag_names


def _get(client: httpx2.Client, url: str, repository: str) -> httpx2.Response:
    answer = client.get(url)
    challenge = answer.headers.get("WWW-Authenticate", "")
    if answer.status_code != _UNAUTHORIZED or not challenge:
        return answer
    account = credentials.load(repository)
    user = (account["username"], account.get("password") or "") if account.get("username") else None
    kind, _, rest = challenge.partition(" ")
    if kind.lower() == "basic" and user:
        client.auth = user
    elif kind.lower() == "bearer":
        parameters = dict(re.findall(r'(\w+)="([^"]*)"', rest))
        client.headers["Authorization"] = f"Bearer {_token(client, parameters, user)}"
    else:
        return answer
    return client.get(url)


def _token(client: httpx2.Client, parameters: Mapping[str, str], user: tuple[str, str] | None) -> str:
    """Returns a token from the registry's token server, for a challenge's parameters (realm, service, scope)."""
    import httpx2

    realm = parameters.get("realm", "")
    if client.trust_env and not realm.startswith("https://"):
        raise TransferError(f"the registry wants its login sent to {realm}, in the clear", hint=HINT)
    query = {key: parameters[key] for key in ("service", "scope") if key in parameters}
    client.headers.pop("Authorization", None)  # the one that the registry refused
    answer = client.get(httpx2.URL(realm).copy_merge_params(query), auth=user)
    try:
        body: Any = answer.json()
        return str(body.get("token") or body["access_token"])
    except (ValueError, KeyError, TypeError, AttributeError):
        reason = f"{answer.status_code} {answer.reason_phrase}"
        raise TransferError(f"{realm} gave no token for the registry: {reason}", hint=HINT) from None


def _address(client: httpx2.Client, host: str) -> str:
    secure = f"https://{_API_HOSTS.get(host, host)}"
    if client.trust_env:
        return secure
    plain = f"http://{host}"
    return secure if client.get(f"{plain}/v2/").status_code == _TLS_REQUIRED else plain


def _insecure(endpoint: Endpoint, host: str) -> bool:
    """True if the engine would use plain HTTP for ``host``: one of its ``insecure-registries``, or this machine."""
    config = request(endpoint, "GET", "/info").get("RegistryConfig") or {}
    index = (config.get("IndexConfigs") or {}).get(host)
    if index is not None:
        return not index.get("Secure", True)
    networks = [ipaddress.ip_network(network) for network in config.get("InsecureRegistryCIDRs") or ()]
    try:
        resolved = socket.getaddrinfo(urlsplit(f"//{host}").hostname, None)
    except OSError:
        return False
    addresses = [ipaddress.ip_address(str(address[0]).partition("%")[0]) for *_, address in resolved]
    return any(address in network for address in addresses for network in networks)


def _certificates(host: str) -> ssl.SSLContext | bool:
    """Returns the engine's own CA file for a registry, where that is readable here; else True: this machine's."""
    import ssl

    own = _CERTIFICATES / host / "ca.crt"
    return ssl.create_default_context(cafile=own) if own.is_file() else True
