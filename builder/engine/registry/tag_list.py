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
    from collections.abc import Mapping

    import requests

    from builder.engine.client.endpoint import Endpoint

_PAGE = 1000
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
    import requests

    host, _, path = repository.partition("/")
    insecure = _insecure(endpoint, host)
    with requests.Session() as session:
        if insecure:
            session.trust_env = False  # such a registry is near: no proxy is needed
        else:
            session.verify = _certificates(host)
        try:
            return tuple(_pages(session, _address(session, host, insecure), repository, path))
        except requests.RequestException as error:
            raise TransferError(f"the registry was asked for the tags of {repository}: {error}", hint=HINT) from None


def _pages(session: requests.Session, address: str, repository: str, path: str) -> list[str]:
    tag_names: list[str] = []
    url = f"{address}/v2/{path}/tags/list?n={_PAGE}"
    seen: set[str] = set()
    while url and url not in seen:
        seen.add(url)
        answer = _get(session, url, repository)
        if answer.status_code == _NOT_FOUND:
            return []
        if not answer.ok:
            status = f"{answer.status_code} {answer.reason}"
            raise TransferError(f"the registry was asked for the tags of {repository}: {status}", hint=HINT)
        try:
            tag_names += map(str, answer.json().get("tags") or ())
        except (ValueError, AttributeError):
            raise TransferError(f"what answers for {repository} is no registry", hint=HINT) from None
        following = answer.links.get("next", {}).get("url")
        url = urljoin(url, following) if following else ""
    return tag_names


def _get(session: requests.Session, url: str, repository: str) -> requests.Response:
    answer = session.get(url, timeout=WAIT)
    challenge = answer.headers.get("WWW-Authenticate", "")
    if answer.status_code != _UNAUTHORIZED or not challenge:
        return answer
    login = credentials.login(repository)
    user = (login["username"], login.get("password") or "") if login.get("username") else None
    kind, _, rest = challenge.partition(" ")
    if kind.lower() == "basic" and user:
        session.auth = user
    elif kind.lower() == "bearer":
        parameters = dict(re.findall(r'(\w+)="([^"]*)"', rest))
        session.auth = _Bearer(_token(session, parameters, user))
    else:
        return answer
    return session.get(url, timeout=WAIT)


class _Bearer:
    """The authentication of a requests session by a bearer token."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, prepared: requests.PreparedRequest) -> requests.PreparedRequest:
        prepared.headers["Authorization"] = f"Bearer {self._token}"
        return prepared


def _token(session: requests.Session, challenge: Mapping[str, str], user: tuple[str, str] | None) -> str:
    """Returns a token from the registry's token server, for the challenge's parameters (realm, service, scope)."""
    query = {key: challenge[key] for key in ("service", "scope") if key in challenge}
    answer = session.get(challenge.get("realm", ""), params=query, auth=user, timeout=WAIT)
    try:
        body: Any = answer.json()
        return str(body.get("token") or body["access_token"])
    except (ValueError, KeyError, TypeError, AttributeError):
        status = f"{answer.status_code} {answer.reason}"
        raise TransferError(f"{challenge.get('realm')} gave no token for the registry: {status}", hint=HINT) from None


def _address(session: requests.Session, host: str, insecure: bool) -> str:
    secure = f"https://{_API_HOSTS.get(host, host)}"
    if not insecure:
        return secure
    plain = f"http://{host}"
    return secure if session.get(f"{plain}/v2/", timeout=WAIT).status_code == _TLS_REQUIRED else plain


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


def _certificates(host: str) -> str | bool:
    """Returns the CA file to verify the registry with: the engine's own, where that is readable here; else True."""
    own = _CERTIFICATES / host / "ca.crt"
    return str(own) if own.is_file() else True
