"""A large file is whole under its name, or not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.base import files
from builder.base.errors import TransferError, UsageError


def test_the_name_comes_last(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with files.written_large_file(path, replace=False) as file:
        file.write(b"content")
        assert not path.exists()
    assert path.read_bytes() == b"content"
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_there_stays_unless_it_is_to_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(b"before")
    with pytest.raises(UsageError, match="exists"), files.written_large_file(path, replace=False):
        raise AssertionError
    with pytest.raises(KeyError), files.written_large_file(path, replace=True) as file:
        file.write(b"half")
        raise KeyError
    assert path.read_bytes() == b"before"
    with files.written_large_file(path, replace=True) as file:
        file.write(b"after")
    assert path.read_bytes() == b"after"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_one_left_is_written_over(tmp_path: Path) -> None:
    (tmp_path / ".a.tar.new").write_bytes(b"much more than will be written")
    with files.written_large_file(tmp_path / "a.tar", replace=False) as file:
        file.write(b"short")
    assert (tmp_path / "a.tar").read_bytes() == b"short"


def test_two_at_once_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with files.written_large_file(path, replace=False) as file:
        with pytest.raises(UsageError, match="another process"), files.written_large_file(path, replace=False):
            raise AssertionError
        file.write(b"the first")
    assert path.read_bytes() == b"the first"


def test_a_disk_that_does_not_take_it(tmp_path: Path) -> None:
    with (
        pytest.raises(TransferError, match="No space left") as caught,
        files.written_large_file(tmp_path / "a", replace=False),
    ):
        Path("/dev/full").write_bytes(b"x")
    assert "make room" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", ["", "none/a.tar"])
def test_a_place_where_no_file_can_be(tmp_path: Path, where: str) -> None:
    with pytest.raises(UsageError), files.written_large_file(tmp_path / where, replace=True):
        raise AssertionError
