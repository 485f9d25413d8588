"""Of two processes that want the same file one downloads it, and the other takes it or begins anew."""

from __future__ import annotations

import hashlib
import os
import threading
from typing import TYPE_CHECKING, BinaryIO

import huggingface_hub.file_download
import pytest

from builder.base.files import open_locked_to_append
from builder.sources import hub
from tests import processes

if TYPE_CHECKING:
    from pathlib import Path


CONTENT = b"weights"
BLOB = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def downloads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The size that the file already had, at each download."""
    sizes: list[int] = []

    def http_get(_: str, file: BinaryIO, *, resume_size: int, **__: object) -> None:
        sizes.append(resume_size)
        file.write(CONTENT[resume_size:])

    monkeypatch.setattr(huggingface_hub.file_download, "http_get", http_get)
    return sizes


def download(folder: Path) -> threading.Thread:
    """A download in a thread."""
    link = folder / "snapshots/commit/file"
    no_settings: dict[str, str] = {}
    arguments = (no_settings, "http://none/", len(CONTENT), folder / "blobs" / BLOB, link, lambda _: None)
    thread = threading.Thread(target=hub.download_file, args=arguments, daemon=True)
    thread.start()
    return thread


def finished(folder: Path) -> bool:
    link = folder / "snapshots/commit/file"
    return link.read_bytes() == CONTENT and [path.name for path in (folder / "blobs").iterdir()] == [BLOB]


@pytest.fixture
def partial(tmp_path: Path) -> Path:
    (tmp_path / "blobs").mkdir()
    return tmp_path / f"blobs/{BLOB}.incomplete"


@pytest.mark.slow
def test_a_part_that_is_there_is_continued(tmp_path: Path, partial: Path, downloads: list[int]) -> None:
    partial.write_bytes(CONTENT[:3])
    download(tmp_path).join(processes.BUSY)
    assert downloads == [3]
    assert finished(tmp_path)


@pytest.mark.slow
def test_a_part_that_is_too_long_begins_anew(tmp_path: Path, partial: Path, downloads: list[int]) -> None:
    partial.write_bytes(b"much more than the hub lists")
    download(tmp_path).join(processes.BUSY)
    assert downloads == [0]
    assert finished(tmp_path)


@pytest.mark.slow
def test_the_second_takes_what_the_first_downloaded(tmp_path: Path, partial: Path, downloads: list[int]) -> None:
    first = open_locked_to_append(partial)
    second = download(tmp_path)
    processes.await_lock_wait(os.getpid())
    os.write(first, CONTENT)
    partial.rename(partial.with_name(BLOB))
    os.close(first)
    second.join(processes.BUSY)
    assert downloads == []
    assert finished(tmp_path)


@pytest.mark.slow
def test_the_second_begins_anew_where_the_first_removed_what_it_got(
    tmp_path: Path, partial: Path, downloads: list[int]
) -> None:
    first = open_locked_to_append(partial)
    second = download(tmp_path)
    processes.await_lock_wait(os.getpid())
    os.write(first, b"other content")
    partial.unlink()
    os.close(first)
    second.join(processes.BUSY)
    assert downloads == [0]
    assert finished(tmp_path)
