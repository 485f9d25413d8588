"""Download of one file from an address that anybody can read, with the user's proxies and certificates."""

from __future__ import annotations

import hashlib
import os
import re
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from builder.errors import SourceError
from builder.sources.git import credentials

if TYPE_CHECKING:
    from collections.abc import Callable

_TIMEOUT = 60.0
_PAUSES = (1.0, 3.0)  # seconds before the second and third try
_CHUNK = 1 << 16
_PART = re.compile(r"\.([0-9]+)\.[0-9]+")
_NETWORK = "look at the network and at HTTPS_PROXY, and run this again"


def download(
    address: str, folder: Path, largest: int, ca_file: Path | None, notify: Callable[[str], None]
) -> tuple[str, Path]:
    """Downloads the file at ``address``, of at most ``largest`` bytes, into ``folder``. Returns its SHA-256 and the
    path where it lies, for the caller to rename or remove. Raises SourceError."""
    import httpx2

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f".{os.getpid()}.{threading.get_ident()}"
    shown = credentials.split(address).url
    tries = 0
    while True:
        tries += 1
        try:
            return _receive(address, path, largest, ca_file), path
        except (httpx2.TransportError, _BusyError) as error:
            if tries > len(_PAUSES):
                message = f"{shown} does not answer ({tries} tries): {error}"
                raise SourceError(message, hint=_NETWORK) from None
            notify(f"{shown} does not answer: {error}; trying again in {_PAUSES[tries - 1]:g} s")
            time.sleep(_PAUSES[tries - 1])
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise SourceError(f"{shown} cannot be fetched: {error}") from None
        except OSError as error:
            raise SourceError(f"{folder} cannot be written: {error.strerror or error}") from None


def is_abandoned(path: Path) -> bool:
    """True for a part of a file that a killed process received and nobody is going to take up."""
    part = _PART.fullmatch(path.name)
    return part is not None and not Path("/proc", part[1]).exists()


class _BusyError(Exception):
    """A server that asks to come back later."""


def _receive(address: str, path: Path, largest: int, ca_file: Path | None) -> str:
    import ssl

    import httpx2

    context = ssl.create_default_context(cafile=ca_file) if ca_file else True
    shown = credentials.split(address).url
    digest = hashlib.sha256()
    is_whole = False
    try:
        with (
            httpx2.Client(verify=context, timeout=_TIMEOUT, follow_redirects=True) as client,
            client.stream("GET", address, headers={"Accept-Encoding": "identity"}) as response,
            path.open("wb") as file,
        ):
            status = f"{response.status_code} {response.reason_phrase}".strip()
            if response.status_code in (429, 500, 502, 503, 504):
                raise _BusyError(f"the server says {status}")
            if not response.is_success:
                hint = "does the address lead to the file itself, and may anybody read it?"
                raise SourceError(f"{shown}: the server says {status}", hint=hint)
            size = 0
            for chunk in response.iter_bytes(_CHUNK):
                size += len(chunk)
                if size > largest:
                    raise SourceError(f"{shown} has more than {largest:,} bytes; a mod's files have at most that")
                digest.update(chunk)
                file.write(chunk)
        is_whole = True
    finally:
        if not is_whole:
            with suppress(OSError):
                path.unlink(missing_ok=True)
    return digest.hexdigest()
