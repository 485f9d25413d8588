"""The tags that a registry has of a repository. The engine has no question for them, so the registry itself is asked.

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
from builder.engine.registry.manifests import ASK, WAIT
from builder.errors import TransferError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import requests

    from builder.engine.client.endpoint import Endpoint

_PAGE = 1000
_NOT_FOUND = 404
_ASKS_FOR_LOGIN = 401
_NOT_HTTP = 400  # what a server that speaks TLS answers to plain HTTP
# Docker's own registry is called otherwise than it is reached.
_DOCKER_IO = {"docker.io": "registry-1.docker.io"}
_CERTIFICATES = Path("/etc/docker/certs.d")


def tags(endpoint: Endpoint, repository: str) -> tuple[str, ...]:
    """All tags of ``repository`` (``HOST[:PORT]/PATH``), none where the registry does not know it.

    It is reached from this machine with the person's login, and without TLS where the engine is told so. Raises
    TransferError where it does not answer, or lets nobody in.
    """
    import requests

    host, _, path = repository.partition("/")
    insecure = _insecure(endpoint, host)
    with requests.Session() as session:
        if insecure:
            session.trust_env = False  # such a registry is near: no proxy leads there
        else:
            session.verify = _certificates(host)
        try:
            return tuple(_pages(session, _address(session, host, insecure), repository, path))
        except requests.RequestException as error:
            raise TransferError(f"the registry was asked for the tags of {repository}: {error}", hint=ASK) from None


def _pages(session: requests.Session, address: str, repository: str, path: str) -> list[str]:
    found: list[str] = []
    url = f"{address}/v2/{path}/tags/list?n={_PAGE}"
    seen: set[str] = set()
    while url and url not in seen:
        seen.add(url)
        answer = _ask(session, url, repository)
        if answer.status_code == _NOT_FOUND:
            return []
        if not answer.ok:
            said = f"{answer.status_code} {answer.reason}"
            raise TransferError(f"the registry was asked for the tags of {repository}: {said}", hint=ASK)
        try:
            found += map(str, answer.json().get("tags") or ())
        except (ValueError, AttributeError):
            raise TransferError(f"what answers for {repository} is no registry", hint=ASK) from None
        following = answer.links.get("next", {}).get("url")
        url = urljoin(url, following) if following else ""
    return found


def _ask(session: requests.Session, url: str, repository: str) -> requests.Response:
    answer = session.get(url, timeout=WAIT)
    challenge = answer.headers.get("WWW-Authenticate", "")
    if answer.status_code != _ASKS_FOR_LOGIN or not challenge:
        return answer
    login = credentials.login(repository)
    user = (login["username"], login.get("password") or "") if login.get("username") else None
    kind, _, rest = challenge.partition(" ")
    if kind.lower() == "basic" and user:
        session.auth = user
    elif kind.lower() == "bearer":
        wanted = dict(re.findall(r'(\w+)="([^"]*)"', rest))
        session.auth = _Bearer(_token(session, wanted, user))
    else:
        return answer
    return session.get(url, timeout=WAIT)


class _Bearer:
    """Sends a token with each question to the registry."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, prepared: requests.PreparedRequest) -> requests.PreparedRequest:
        prepared.headers["Authorization"] = f"Bearer {self._token}"
        return prepared


def _token(session: requests.Session, wanted: Mapping[str, str], user: tuple[str, str] | None) -> str:
    """The token that the registry's token server gives for what is ``wanted`` (realm, service, scope)."""
    asked = {key: wanted[key] for key in ("service", "scope") if key in wanted}
    answer = session.get(wanted.get("realm", ""), params=asked, auth=user, timeout=WAIT)
    try:
        said: Any = answer.json()
        return str(said.get("token") or said["access_token"])
    except (ValueError, KeyError, TypeError, AttributeError):
        said = f"{answer.status_code} {answer.reason}"
        raise TransferError(f"{wanted.get('realm')} gave no token for the registry: {said}", hint=ASK) from None


def _address(session: requests.Session, host: str, insecure: bool) -> str:
    secure = f"https://{_DOCKER_IO.get(host, host)}"
    if not insecure:
        return secure
    plain = f"http://{host}"
    return secure if session.get(f"{plain}/v2/", timeout=WAIT).status_code == _NOT_HTTP else plain


def _insecure(endpoint: Endpoint, host: str) -> bool:
    """Whether the engine would take plain HTTP from ``host``: it is one of its ``insecure-registries``, or here."""
    said = request(endpoint, "GET", "/info").get("RegistryConfig") or {}
    known = (said.get("IndexConfigs") or {}).get(host)
    if known is not None:
        return not known.get("Secure", True)
    networks = [ipaddress.ip_network(one) for one in said.get("InsecureRegistryCIDRs") or ()]
    try:
        found = socket.getaddrinfo(urlsplit(f"//{host}").hostname, None)
    except OSError:
        return False
    addresses = [ipaddress.ip_address(str(one[4][0]).partition("%")[0]) for one in found]
    return any(address in network for address in addresses for network in networks)


def _certificates(host: str) -> str | bool:
    """What the registry's certificate is checked with: the engine's own file for it, where that is readable here."""
    own = _CERTIFICATES / host / "ca.crt"
    return str(own) if own.is_file() else True
