from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from builder.base import files


def test_a_plain_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"1234")
    assert files.read_plain_file(file, 4) == b"1234"
    with pytest.raises(OSError, match="larger than 3 bytes"):
        files.read_plain_file(file, 3)
    with pytest.raises(FileNotFoundError):
        files.read_plain_file(tmp_path / "b", 3)


def test_anything_else_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "target").write_text("of the link")
    (tmp_path / "link").symlink_to("target")
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        for name in ("folder", "link", "pipe", "socket"):
            with pytest.raises(OSError, match="plain file|Is a directory"):
                files.read_plain_file(tmp_path / name, 100)


def test_a_device_is_refused(tmp_path: Path) -> None:
    (tmp_path / "zero").symlink_to("/dev/zero")
    for path in (tmp_path / "zero", Path("/dev/zero")):
        with pytest.raises(OSError, match="plain file"):
            files.read_plain_file(path, 100)


def test_a_file_that_tells_no_size_is_read_whole() -> None:
    version = Path("/proc/version")
    assert version.stat().st_size == 0
    assert files.read_plain_file(version, 4096) == version.read_bytes()


def test_a_file_that_grows_is_not_read_for_ever() -> None:
    # Files of /proc are of no size.
    with pytest.raises(OSError, match="larger than 1 bytes"):
        files.read_plain_file(Path("/proc/self/status"), 1)


@pytest.mark.parametrize("link", ["logs", "logs/one", "logs/one/file"])
def test_no_link_is_followed_in_a_state_folder_at_the_moment_of_opening(tmp_path: Path, link: str) -> None:
    """Whatever was looked at before: the link is made after everything was as it should be."""
    state, victim = tmp_path / "disk", tmp_path / "victim"
    (tmp_path / "project").mkdir()
    (tmp_path / "project/.builder").symlink_to(state)  # on another disk, as it may be
    file = tmp_path / "project/.builder/logs/one/file"
    for folder in (state, victim):
        (folder / "logs/one").mkdir(parents=True)
        (folder / "logs/one/file").write_bytes(b"theirs" if folder == victim else b"mine")
    assert files.read_plain_file(file, 10) == b"mine"
    files.write_atomically(file, b"mine too")
    with files.locked(file.with_name("lock")):
        assert files.read_plain_file(file, 10) == b"mine too"
    (state / link).rename(state / "away")
    (state / link).symlink_to(victim / link)
    with pytest.raises(OSError) as refused:
        files.read_plain_file(file, 10)
    assert str(file) in str(refused.value) or link == "logs/one/file"
    if link != "logs/one/file":  # what replaces a file replaces a link as well
        for write in (files.write_atomically, files.write_alone):
            with pytest.raises(OSError):
                write(file, b"overwritten")
        with pytest.raises(OSError), files.locked(file.with_name("lock")):
            pass
    assert sorted(path.name for path in victim.rglob("*") if path.is_file()) == ["file"]
    assert (victim / "logs/one/file").read_bytes() == b"theirs"
