"""A wheel opened where it lies: of one behind an address only the ranges that are looked at are fetched."""

from __future__ import annotations

import contextlib
import io
import zipfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from builder.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import requests

_CHUNK = 1 << 16
_TIMEOUT = 60.0


@contextlib.contextmanager
def open_wheel(address: str, ca_file: Path | None) -> Iterator[zipfile.ZipFile]:
    """The wheel at ``address`` (https: or file:). What cannot be read of it, now or later, raises SourceError."""
    try:
        with contextlib.ExitStack() as stack:
            yield stack.enter_context(zipfile.ZipFile(stack.enter_context(_open_file(address, ca_file))))
    except (OSError, zipfile.BadZipFile) as error:
        raise _unreadable(address, error) from None


def _unreadable(address: str, reason: object) -> SourceError:
    return SourceError(f"the wheel {address} cannot be read: {reason}")


@contextlib.contextmanager
def _open_file(address: str, ca_file: Path | None) -> Iterator[IO[bytes]]:
    from urllib.parse import unquote, urlsplit

    location = urlsplit(address)
    if location.scheme == "file":
        with Path(unquote(location.path)).open("rb") as file:
            yield file
        return
    import requests

    # One connection for all ranges: each costs a question to the name server and three to the server otherwise.
    with requests.Session() as session:
        if ca_file:
            session.verify = str(ca_file)
        yield io.BufferedReader(_RemoteFile(address, session), _CHUNK)


class _RemoteFile(io.RawIOBase):
    """A file behind an address, read in ranges (RFC 9110, section 14)."""

    def __init__(self, address: str, session: requests.Session) -> None:
        super().__init__()
        self._address = address
        self._session = session
        self._at = 0
        response, _ = self._request("HEAD", {})
        self._size = int(response.headers["Content-Length"])

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence] + offset
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        wanted = min(len(buffer), self._size - self._at)
        if wanted <= 0:
            return 0
        response, data = self._request("GET", {"Range": f"bytes={self._at}-{self._at + wanted - 1}"})
        if response.status_code != 206:  # Partial Content; anything else is the whole wheel
            raise _unreadable(self._address, "the server sends whole files only")
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def _request(self, method: str, headers: dict[str, str]) -> tuple[requests.Response, bytes]:
        """The answer, and its content where that is the range asked for: a whole wheel is left where it is. Raises
        SourceError, as zipfile takes an OSError for a file that is no zip file."""
        plain = {"Accept-Encoding": "identity", **headers}
        try:
            with self._session.request(
                method, self._address, headers=plain, timeout=_TIMEOUT, stream=True, allow_redirects=True
            ) as response:
                if not response.ok:
                    raise _unreadable(self._address, f"the server says {response.status_code} {response.reason}")
                return response, response.content if response.status_code == 206 else b""
        except OSError as error:  # all of requests' own are such
            raise _unreadable(self._address, error) from None
