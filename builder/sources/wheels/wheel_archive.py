"""Reading a wheel in place: of a remote one only the byte ranges that are needed are fetched."""

from __future__ import annotations

import contextlib
import io
import zipfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from builder import http_client
from builder.errors import SourceError
from builder.http_client import NoAnswerError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx2

_CHUNK = 1 << 16
_PARTIAL_CONTENT = 206


@contextlib.contextmanager
def open_wheel(address: str, ca_file: Path | None) -> Iterator[zipfile.ZipFile]:
    """Opens the wheel at ``address`` (https: or file:). Raises SourceError if it cannot be read, now or later."""
    try:
        with contextlib.ExitStack() as stack:
            yield stack.enter_context(zipfile.ZipFile(stack.enter_context(_open_file(address, ca_file))))
    except (OSError, zipfile.BadZipFile, NoAnswerError) as error:
        raise SourceError(f"the wheel {address} cannot be read: {error}") from None


@contextlib.contextmanager
def _open_file(address: str, ca_file: Path | None) -> Iterator[IO[bytes]]:
    from urllib.parse import unquote, urlsplit

    location = urlsplit(address)
    if location.scheme == "file":
        with Path(unquote(location.path)).open("rb") as file:
            yield file
        return
    login = None if location.username else _login_from_netrc()
    # One connection for all ranges: otherwise each costs a name look-up and three round trips to the server.
    with http_client.following(ca_file, login=login) as client:
        yield io.BufferedReader(_RemoteFile(address, client), _CHUNK)


def _login_from_netrc() -> httpx2.Auth | None:
    """Returns the user's logins by host, which uv follows as well; None if there are none that can be read."""
    import netrc
    import os

    import httpx2

    path = Path(os.environ.get("NETRC") or "~/.netrc")
    try:
        return httpx2.NetRCAuth(str(path.expanduser()))
    except (OSError, RuntimeError, netrc.NetrcParseError):
        return None


class _RemoteFile(io.RawIOBase):
    """A remote file, read in ranges (RFC 9110, section 14)."""

    def __init__(self, address: str, client: httpx2.Client) -> None:
        super().__init__()
        self._address = address
        self._client = client
        self._at = 0
        length = self._request("HEAD", {}, 0)[0].get("Content-Length", "")
        if not length.isdecimal():
            raise NoAnswerError("the server does not tell its size (Content-Length), so parts cannot be asked for")
        self._size = int(length)

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
        _, data = self._request("GET", {"Range": f"bytes={self._at}-{self._at + wanted - 1}"}, wanted)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def _request(self, method: str, headers: dict[str, str], largest: int) -> tuple[httpx2.Headers, bytes]:
        """The headers and content of an answer; of a whole wheel nothing is downloaded. A failure is no OSError, which
        zipfile takes for a file that is not a zip file."""
        plain = {"Accept-Encoding": "identity", **headers}
        with self._client.stream(method, self._address, headers=plain) as answer:
            if not answer.is_success:
                raise NoAnswerError(f"the server says {http_client.status(answer)}")
            if method == "GET" and answer.status_code != _PARTIAL_CONTENT:
                raise NoAnswerError("the server sends whole files only")
            # An answer that is read to its end leaves the connection for the next request.
            return answer.headers, b"".join(http_client.limited(answer.iter_bytes(), largest))
