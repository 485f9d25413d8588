"""Download of one file from an address that anybody can read, with the user's proxies and certificates."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from builder import http_client
from builder.errors import SourceError
from builder.http_client import NoAnswerError
from builder.sources.git import credentials

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_PAUSES = (1.0, 3.0)  # seconds before the second and third try
_BUSY = (429, 500, 502, 503, 504)  # a server that asks to come back later
_NETWORK = "look at the network and at HTTPS_PROXY, and run this again"


def download(address: str, largest: int, ca_file: Path | None, notify: Callable[[str], None]) -> bytes:
    """The content of the file at ``address``, of at most ``largest`` bytes. Raises SourceError."""
    shown = credentials.split(address).url
    tries = 0
    while True:
        tries += 1
        try:
            return _receive(address, largest, ca_file)
        except NoAnswerError as error:
            if not error.transient:
                raise SourceError(f"{shown} cannot be fetched: {error}") from None
            if tries > len(_PAUSES):
                message = f"{shown} does not answer ({tries} tries): {error}"
                raise SourceError(message, hint=_NETWORK) from None
            notify(f"{shown} does not answer: {error}; trying again in {_PAUSES[tries - 1]:g} s")
            time.sleep(_PAUSES[tries - 1])


def _receive(address: str, largest: int, ca_file: Path | None) -> bytes:
    with http_client.following(ca_file) as client:
        answer = http_client.send(client, "GET", address, largest=largest, headers={"Accept-Encoding": "identity"})
    if answer.status_code in _BUSY:
        raise NoAnswerError(f"the server says {http_client.status(answer)}", transient=True)
    if not answer.is_success:
        raise SourceError(
            f"{credentials.split(address).url}: the server says {http_client.status(answer)}",
            hint="does the address lead to the file itself, and may anybody read it?",
        )
    return answer.content
