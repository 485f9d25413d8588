"""A file under a name of its own, and what becomes of those whose writers were killed."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from builder.base import files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def killed_while_writing(path: Path) -> None:
    child = os.fork()
    if not child:
        with files.beside(path) as (file, _):
            file.write(b"half of")
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("write", [files.write_atomically, files.write_state])
def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path: Path, write: Callable[[Path, bytes], None]) -> None:
    path = tmp_path / "file"
    for _ in range(2):
        killed_while_writing(path)
    killed_while_writing(tmp_path / "other")
    left = names(tmp_path)
    assert len(left) == 2, "the second removed what the first left"
    write(path, b"whole")
    assert path.read_bytes() == b"whole"
    assert names(tmp_path) == [next(name for name in left if name.startswith(".other.")), "file"]


def test_one_that_is_being_written_stays(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with files.beside(path) as (file, temporary):
        file.write(b"slow")
        aside = temporary.with_name(".file.1.2")  # as another process would call its own
        temporary.rename(aside)
        files.write_atomically(path, b"quick")
        file.flush()
        assert aside.read_bytes() == b"slow"
        aside.replace(path)
    assert path.read_bytes() == b"slow"
    assert names(tmp_path) == ["file"]


def test_files_of_others_with_such_names_stay(tmp_path: Path) -> None:
    for name in (".file.1", ".file.a.2", "file.1.2", ".file.1.2.3", ".files.1.2"):
        (tmp_path / name).write_bytes(b"theirs")
    before = names(tmp_path)
    files.write_atomically(tmp_path / "file", b"x")
    assert names(tmp_path) == sorted([*before, "file"])


def test_a_link_in_its_way_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_bytes(b"theirs")
    (tmp_path / ".file.1.2").symlink_to(tmp_path / "theirs")
    files.write_atomically(tmp_path / "file", b"x")
    assert (tmp_path / "theirs").read_bytes() == b"theirs"
