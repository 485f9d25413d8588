"""The commit that a wheel names: read from its ``_version.py`` alone, a few kilobytes of a wheel of hundreds of
megabytes."""

from __future__ import annotations

import io
import re
import zipfile
from pathlib import Path
from typing import IO, Any

from builder.errors import SourceError

# What setuptools-scm and vcs-versioning write: commit_id = 'gb1388b1fb'; the g stands for git.
_COMMIT = re.compile(r"commit_id = ['\"]g?([0-9a-f]{7,40})['\"]")
_CHUNK = 1 << 16
_WAIT = 60.0


def read(address: str, ca_file: Path | None) -> str | None:
    """The first digits (7 to 40) of the commit that the wheel at ``address`` (https: or file:) was built from; None
    where it names none. Raises SourceError where the wheel cannot be read."""
    try:
        with _opened(address, ca_file) as file, zipfile.ZipFile(file) as archive:
            names = [name for name in archive.namelist() if re.fullmatch(r"[^/]+/_version\.py", name)]
            found = [_COMMIT.search(archive.read(name).decode("utf-8", "replace")) for name in names]
    except (OSError, zipfile.BadZipFile) as error:
        raise SourceError(f"the wheel {address} cannot be read: {error}") from None
    return next((match[1] for match in found if match), None)


def _opened(address: str, ca_file: Path | None) -> IO[bytes]:
    from urllib.parse import unquote, urlsplit

    place = urlsplit(address)
    if place.scheme == "file":
        return Path(unquote(place.path)).open("rb")
    return io.BufferedReader(_Remote(address, ca_file), _CHUNK)


class _Remote(io.RawIOBase):
    """A file behind an address, read in ranges (RFC 9110, section 14)."""

    def __init__(self, address: str, ca_file: Path | None) -> None:
        import ssl

        super().__init__()
        self._address = address
        self._context = ssl.create_default_context(cafile=ca_file)
        self._at = 0
        with self._open({}, "HEAD") as answer:
            self._size = int(answer.headers["Content-Length"])

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
        with self._open({"Range": f"bytes={self._at}-{self._at + wanted - 1}"}, "GET") as answer:
            if answer.status != 206:  # Partial Content; anything else is the whole wheel
                raise OSError("the server sends whole files only")
            data: bytes = answer.read()
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def _open(self, headers: dict[str, str], method: str) -> Any:
        import urllib.request

        request = urllib.request.Request(self._address, headers=headers, method=method)  # noqa: S310
        return urllib.request.urlopen(request, timeout=_WAIT, context=self._context)  # noqa: S310
