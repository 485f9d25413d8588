"""Download of one file from the hub, resumed where an earlier process stopped, and verified against its content's id.

The cache names a file's content by that id (https://huggingface.co/docs/huggingface_hub/guides/manage-cache): the
SHA-256 of a file in Git LFS, and for any other file the id that git gives it, a SHA-1.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO, Self

from builder.errors import SourceError
from builder.storage.atomic_file import put_in_place
from builder.storage.file_lock import open_locked_to_append
from builder.storage.huggingface_cache import INCOMPLETE

if TYPE_CHECKING:
    import threading
    from pathlib import Path
    from types import TracebackType

LARGEST = 50_000_000_000
"""The size in bytes above which the hub serves a file over its Xet protocol only."""

_SHA256_DIGITS = 64

CountBytes = Callable[[int], None]
"""Is called with the bytes received since the last call; with a negative number if some have to be fetched again."""


@dataclass(frozen=True)
class RemoteFile:
    """A file of ``size`` bytes on the hub; ``blob`` is the id of its content, ``token`` the user's, if there is one."""

    url: str
    size: int
    blob: str
    token: str | None = field(repr=False)


class DownloadStoppedError(Exception):
    """The download was stopped: the rest of the file is no longer needed."""


def until_stopped(stopped: threading.Event, count_bytes: CountBytes) -> CountBytes:
    """Returns ``count_bytes``, extended to end the download that calls it once ``stopped`` is set."""

    def count(more: int) -> None:
        if stopped.is_set():
            raise DownloadStoppedError
        count_bytes(more)

    return count


def bytes_present(blobs: Path, blob: str | None) -> int:
    """Returns the bytes of a file's content that are in the cache, complete or not; 0 if its id is not known."""
    for name in (blob, f"{blob}{INCOMPLETE}") if blob else ():
        with suppress(FileNotFoundError):
            return (blobs / name).stat().st_size
    return 0


def download(remote: RemoteFile, blobs: Path, link: Path, count_bytes: CountBytes) -> None:
    """Downloads a file into ``blobs``, and makes ``link`` point to it.

    A second process that downloads the same file waits for the first. Raises SourceError if other content arrived, and
    what huggingface_hub raises.
    """
    blob = blobs / remote.blob
    blobs.mkdir(parents=True, exist_ok=True)
    if not blob.exists():
        partial = blob.with_name(f"{blob.name}{INCOMPLETE}")
        with os.fdopen(open_locked_to_append(partial), "ab") as partial_file:
            if blob.exists():  # by another process meanwhile
                partial.unlink()
            else:
                _receive(remote, partial_file, count_bytes)
                partial_file.flush()
                _require_whole(remote, partial)
                put_in_place(partial_file, partial, blob)
    link.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        link.symlink_to(os.path.relpath(blob, link.parent))


def _receive(remote: RemoteFile, file: BinaryIO, count_bytes: CountBytes) -> None:
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    present = file.tell()
    if present > remote.size:
        file.truncate(0)
        present = 0
    http_get(
        remote.url,
        file,
        resume_size=present,
        headers=build_hf_headers(token=remote.token),
        expected_size=remote.size,
        tqdm_class=lambda **_said: _ProgressBar(count_bytes),  # type: ignore[arg-type]
    )


def _require_whole(remote: RemoteFile, path: Path) -> None:
    received = _content_id(path, remote.blob)
    if received != remote.blob:
        path.unlink()
        raise SourceError(
            f"{remote.url}: what arrived is not what the hub lists (its id is {received}, not {remote.blob})",
            hint="run this again: this file begins anew. If it stays so, a proxy or mirror is at fault",
        )


def _content_id(path: Path, like: str) -> str:
    """Returns the id of a file's content, of the same kind as ``like`` (see the module)."""

    def git() -> hashlib._Hash:
        # https://git-scm.com/book/en/v2/Git-Internals-Git-Objects#_object_storage
        return hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)

    with path.open("rb") as file:
        return hashlib.file_digest(file, hashlib.sha256 if len(like) == _SHA256_DIGITS else git).hexdigest()


class _ProgressBar:
    """A stand-in for the progress bar that huggingface_hub expects."""

    def __init__(self, count_bytes: CountBytes) -> None:
        self._count_bytes = count_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def update(self, more: int) -> None:
        self._count_bytes(more)
