"""Download of one file from an address that anybody can read, with the user's proxies and certificates."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from builder.errors import SourceError
from builder.sources.git import credentials

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_TIMEOUT = 60.0
_PAUSES = (1.0, 3.0)  # seconds before the second and third try
_CHUNK = 1 << 16
_NETWORK = "look at the network and at HTTPS_PROXY, and run this again"


def download(address: str, largest: int, ca_file: Path | None, notify: Callable[[str], None]) -> bytes:
    """The content of the file at ``address``, of at most ``largest`` bytes. Raises SourceError."""
    import httpx2

    shown = credentials.split(address).url
    tries = 0
    while True:
        tries += 1
        try:
            return _receive(address, largest, ca_file)
        except (httpx2.TransportError, _BusyError) as error:
            if tries > len(_PAUSES):
                message = f"{shown} does not answer ({tries} tries): {error}"
                raise SourceError(message, hint=_NETWORK) from None
            notify(f"{shown} does not answer: {error}; trying again in {_PAUSES[tries - 1]:g} s")
            time.sleep(_PAUSES[tries - 1])
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise SourceError(f"{shown} cannot be fetched: {error}") from None


class _BusyError(Exception):
    """A server that asks to come back later."""


def _receive(address: str, largest: int, ca_file: Path | None) -> bytes:
    import ssl

    import httpx2

    context = ssl.create_default_context(cafile=ca_file) if ca_file else True
    shown = credentials.split(address).url
    with (
        httpx2.Client(verify=context, timeout=_TIMEOUT, follow_redirects=True) as client,
        client.stream("GET", address, headers={"Accept-Encoding": "identity"}) as response,
    ):
        status = f"{response.status_code} {response.reason_phrase}".strip()
        if response.status_code in (429, 500, 502, 503, 504):
            raise _BusyError(f"the server says {status}")
        if not response.is_success:
            hint = "does the address lead to the file itself, and may anybody read it?"
            raise SourceError(f"{shown}: the server says {status}", hint=hint)
        content = bytearray()
        for chunk in response.iter_bytes(_CHUNK):
            content += chunk
            if len(content) > largest:
                raise SourceError(f"{shown} has more than {largest:,} bytes; a mod's files have at most that")
    return bytes(content)
