"""One large file from the hub, which goes on where an earlier process stopped, and is compared with its SHA-256."""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from builder.errors import SourceError
from builder.models_cache import INCOMPLETE

LARGEST = 50_000_000_000
"""The bytes above which the hub gives a file by its Xet protocol alone."""

Amount = Callable[[int], None]
"""Takes the bytes that have come since the last time; fewer than none where some have to come again."""


@dataclass(frozen=True)
class Wanted:
    """A file of ``size`` bytes. ``token`` is the person's, where they gave one."""

    url: str
    size: int
    sha256: str
    token: str | None = field(repr=False)


class StoppedError(Exception):
    """Nobody wants the rest of the file any more."""


def until(stopped: threading.Event, amount: Amount) -> Amount:
    """``amount``, which ends the download that it is told of once ``stopped`` is set."""

    def count(more: int) -> None:
        if stopped.is_set():
            raise StoppedError
        amount(more)

    return count


def so_far(blobs: Path, sha256: str | None) -> int:
    """The bytes of a large file that are there already, whole or in part."""
    for name in (sha256, f"{sha256}{INCOMPLETE}") if sha256 else ():
        with suppress(FileNotFoundError):
            return (blobs / name).stat().st_size
    return 0


def put(wanted: Wanted, blobs: Path, link: Path, amount: Amount) -> None:
    """Brings a large file into ``blobs``, and makes ``link`` lead to it.

    A second process that wants the same file waits for the first. Raises SourceError where something else arrived, and
    what huggingface_hub raises.
    """
    blob = blobs / wanted.sha256
    blobs.mkdir(parents=True, exist_ok=True)
    if not blob.exists():
        partial = blob.with_name(f"{blob.name}{INCOMPLETE}")
        with partial.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not blob.exists():
                _receive(wanted, file, amount)
                file.flush()
                _require_whole(wanted, partial)
                partial.replace(blob)
    link.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        link.symlink_to(os.path.relpath(blob, link.parent))


def _receive(wanted: Wanted, file: BinaryIO, amount: Amount) -> None:
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    have = file.tell()
    if have > wanted.size:
        file.truncate(0)
        have = 0
    http_get(
        wanted.url,
        file,
        resume_size=have,
        headers=build_hf_headers(token=wanted.token),
        expected_size=wanted.size,
        tqdm_class=lambda **_said: _Bar(amount),  # type: ignore[arg-type]
    )


def _require_whole(wanted: Wanted, path: Path) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != wanted.sha256:
        path.unlink()
        raise SourceError(
            f"{wanted.url}: what arrived is not what the hub lists (SHA-256 {found}, not {wanted.sha256})",
            hint="run this again: this file begins anew. If it stays so, a proxy or mirror is at fault",
        )


class _Bar:
    """What huggingface_hub takes for a progress bar."""

    def __init__(self, amount: Amount) -> None:
        self._amount = amount

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def update(self, more: int) -> None:
        self._amount(more)
