"""The HTTP API of a registry itself, for what the engine's API does not do: artifacts are attached.

The protocol: https://github.com/opencontainers/distribution-spec/blob/main/spec.md; how a registry asks for a login:
https://distribution.github.io/distribution/spec/auth/token/.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from base64 import b64encode
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from builder import http_client
from builder.engine.client.api import request
from builder.engine.registry import credentials
from builder.engine.registry.manifests import HINT, WAIT
from builder.errors import TransferError
from builder.http_client import NoAnswerError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import httpx2

    from builder.engine.client.endpoint import Endpoint

_LARGEST_ANSWER = 64 * 1024
_UNAUTHORIZED = 401
_TLS_REQUIRED = 400  # the answer of a TLS server to plain HTTP
# Docker Hub's name in references is not the host of its API.
_API_HOSTS = {"docker.io": "registry-1.docker.io"}
_CERTIFICATES = Path("/etc/docker/certs.d")


@dataclass(frozen=True)
class RegistrySession:
    """A conversation with a registry about ``repository`` (``HOST[:PORT]/PATH``): its ``address`` (``https://HOST``),
    and the ``path`` of the repository there. It goes out from this machine with the user's login, and without TLS where
    the engine is configured so."""

    client: httpx2.Client
    address: str
    repository: str
    path: str

    def send(
        self,
        method: str,
        url: str,
        *,
        largest: int,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx2.Response:
        """Sends a request, a second time with a login where the registry wants one; reads ``largest`` bytes of the
        answer at most. Raises NoAnswerError."""
        send = partial(http_client.send, self.client, method, url, largest=largest, content=content, headers=headers)
        answer = send()
        return send() if answer.status_code == _UNAUTHORIZED and self._log_in(answer) else answer

    def is_within(self, url: str) -> bool:
        """True for an address of this registry; to any other one its login would go along."""
        return url.startswith(f"{self.address}/")

    def _log_in(self, answer: httpx2.Response) -> bool:
        """Takes up the registry's challenge with the user's login; False where it has none that can be met."""
        challenge = answer.headers.get("WWW-Authenticate", "")
        account = credentials.load(self.repository)
        user = (account["username"], account.get("password") or "") if account.get("username") else None
        kind, _, rest = challenge.partition(" ")
        if kind.lower() == "basic" and user:
            self.client.auth = user
        elif kind.lower() == "bearer":
            parameters = dict(re.findall(r'(\w+)="([^"]*)"', rest))
            self.client.headers["Authorization"] = f"Bearer {_token(self.client, parameters, user)}"
        else:
            return False
        return True


@contextmanager
def opened(endpoint: Endpoint, repository: str, purpose: str) -> Iterator[RegistrySession]:
    """Opens a conversation with the registry of ``repository``. Raises TransferError where the registry does not
    answer; the error begins with ``purpose``, which says what failed."""
    host, _, path = repository.partition("/")
    insecure = _insecure(endpoint, host)  # one that is near: no proxy leads to it
    own = _CERTIFICATES / host / "ca.crt"
    ca_file = own if own.is_file() and not insecure else None
    try:
        with http_client.following(ca_file, proxies=not insecure, seconds=WAIT) as client:
            yield RegistrySession(client, _address(client, host), repository, path)
    except NoAnswerError as error:
        raise TransferError(f"{purpose}: {error}", hint=HINT) from None


def _token(client: httpx2.Client, parameters: Mapping[str, str], user: tuple[str, str] | None) -> str:
    """Returns a token from the registry's token server, for a challenge's parameters (realm, service, scope)."""
    import httpx2

    realm = parameters.get("realm", "")
    if client.trust_env and not realm.startswith("https://"):
        raise TransferError(f"the registry wants its login sent to {realm}, in the clear", hint=HINT)
    query = {key: parameters[key] for key in ("service", "scope") if key in parameters}
    client.headers.pop("Authorization", None)  # the one that the registry refused
    login = b64encode(":".join(user).encode()).decode() if user else ""
    answer = http_client.send(
        client,
        "GET",
        str(httpx2.URL(realm).copy_merge_params(query)),
        largest=_LARGEST_ANSWER,
        headers={"Authorization": f"Basic {login}"} if login else None,
    )
    try:
        body: Any = answer.json()
        return str(body.get("token") or body["access_token"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise TransferError(
            f"{realm} gave no token for the registry: {http_client.status(answer)}", hint=HINT
        ) from None


def _address(client: httpx2.Client, host: str) -> str:
    secure = f"https://{_API_HOSTS.get(host, host)}"
    if client.trust_env:
        return secure
    plain = f"http://{host}"
    answer = http_client.send(client, "GET", f"{plain}/v2/", largest=_LARGEST_ANSWER)
    return secure if answer.status_code == _TLS_REQUIRED else plain


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
