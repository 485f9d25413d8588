"""A reader sees the old content or the new, and nothing is left beside it."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.base import files

if TYPE_CHECKING:
    from collections.abc import Callable


WRITERS = [files.write_atomically, files.write_alone]


@pytest.mark.parametrize("write", WRITERS)
def test_the_file_has_the_content_and_nothing_is_beside_it(tmp_path: Path, write: Callable[..., None]) -> None:
    path = tmp_path / "file"
    for content in (b"one", b"two"):
        write(path, content)
        assert path.read_bytes() == content
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("write", WRITERS)
def test_what_cannot_be_written_is_an_error_and_leaves_nothing(tmp_path: Path, write: Callable[..., None]) -> None:
    (tmp_path / "folder/full").mkdir(parents=True)
    for path in (tmp_path / "none/file", tmp_path / "folder"):
        with pytest.raises(OSError):
            write(path, b"x")
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize("write", WRITERS)
def test_a_new_file_is_forced_to_the_disk_and_its_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[..., None]
) -> None:
    synced: list[tuple[bool, bool]] = []
    path = tmp_path / "file"

    def fsync(descriptor: int) -> None:
        is_folder = os.path.samestat(os.fstat(descriptor), tmp_path.stat())
        synced.append((is_folder, path.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    write(path, b"x")
    assert synced == [(False, False), (True, True)]


def test_new_folders_are_forced_to_the_disk_from_the_one_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []

    def fsync(descriptor: int) -> None:
        synced.append(os.path.relpath(Path(f"/proc/self/fd/{descriptor}").readlink(), tmp_path))

    monkeypatch.setattr(os, "fsync", fsync)
    files.make_folder(tmp_path / "a/b")
    assert (tmp_path / "a/b").is_dir()
    assert sorted(synced) == [".", "a"]
    files.make_folder(tmp_path / "a/b")
    assert len(synced) == 2


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO])
def test_a_file_in_its_place_counts_whatever_its_folder_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fsync(descriptor: int) -> None:
        if os.path.samestat(os.fstat(descriptor), tmp_path.stat()):
            raise OSError(number, "x")

    monkeypatch.setattr(os, "fsync", fsync)
    files.write_atomically(tmp_path / "file", b"x")
    assert (tmp_path / "file").read_bytes() == b"x"


def test_a_mode_is_set_before_the_file_is_seen(tmp_path: Path) -> None:
    files.write_atomically(tmp_path / "script", b"x", mode=0o755)
    assert (tmp_path / "script").stat().st_mode & 0o777 == 0o755


def test_several_writers_never_mix(tmp_path: Path) -> None:
    path = tmp_path / "file"
    contents = [bytes([letter]) * 100_000 for letter in b"abcd"]

    def write(content: bytes) -> None:
        for _ in range(10):
            files.write_atomically(path, content)
            assert path.read_bytes() in contents

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_bytes() in contents
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_check_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def check() -> None:
        assert (tmp_path / ".file.new").read_bytes() == b"new"
        raise KeyError

    with pytest.raises(KeyError):
        files.write_alone(path, b"new", check=check)
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
