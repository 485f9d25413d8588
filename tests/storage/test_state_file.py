from __future__ import annotations

from typing import TYPE_CHECKING

from builder.base import files

if TYPE_CHECKING:
    from pathlib import Path


def test_a_file_is_there_whole_with_its_folder_and_nothing_beside_it(tmp_path: Path) -> None:
    for content in (b"one", b"two"):
        files.write_state(tmp_path / "a/b/file", content)
        assert (tmp_path / "a/b/file").read_bytes() == content
    assert [path.name for path in (tmp_path / "a/b").iterdir()] == ["file"]


def test_what_cannot_be_written_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"as it was")
    files.write_state(tmp_path / "file" / "below", b"x")
    (tmp_path / "folder/full").mkdir(parents=True)
    files.write_state(tmp_path / "folder", b"x")
    assert (tmp_path / "file").read_bytes() == b"as it was"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]
