"""A folder is in its place whole, or not there."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.base import files


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    """A folder with a file, one further down, and a link that leads nowhere."""
    folder = tmp_path / "fresh"
    (folder / "below").mkdir(parents=True)
    (folder / "a").write_text("a")
    (folder / "below/b").write_text("b")
    (folder / "below/link").symlink_to("none")
    return folder


def test_it_takes_its_place_with_the_folder_above(tmp_path: Path, fresh: Path) -> None:
    target = tmp_path / "builds/image/7"
    files.put_folder_in_place(fresh, target)
    assert sorted(path.name for path in target.rglob("*")) == ["a", "b", "below", "link"]
    assert not fresh.exists()


@pytest.fixture
def other_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder in another file system than ``tmp_path``."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        assert Path(folder).stat().st_dev != tmp_path.stat().st_dev
        yield Path(folder)


def test_from_another_disk_it_is_copied_and_seen_as_a_whole(
    tmp_path: Path, fresh: Path, other_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (fresh / "a").chmod(0o755)
    target = other_disk / "builds/image/7"
    target.parent.mkdir(parents=True)
    (target.parent / ".7.part").mkdir()  # of one that was killed
    synced: list[str] = []

    def fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if not target.exists():
            synced.append(os.path.relpath(path, target.parent))

    monkeypatch.setattr(os, "fsync", fsync)
    files.put_folder_in_place(fresh, target)
    assert sorted(path.name for path in target.rglob("*")) == ["a", "b", "below", "link"]
    assert (target / "a").stat().st_mode & 0o777 == 0o755
    assert {".7.part", ".7.part/a", ".7.part/below", ".7.part/below/b"} <= set(synced)
    assert not fresh.exists()
    assert [path.name for path in target.parent.iterdir()] == ["7"]


def test_what_the_other_disk_does_not_take_leaves_nothing(
    fresh: Path, other_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = other_disk / "7"

    def full(*_: object, **__: object) -> None:
        target.with_name(".7.part").mkdir()
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(shutil, "copytree", full)
    with pytest.raises(OSError):
        files.put_folder_in_place(fresh, target)
    assert fresh.exists()
    assert not list(other_disk.iterdir())


def test_a_folder_that_the_disk_does_not_take_is_an_error(
    tmp_path: Path, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink() == fresh / "below":
            raise OSError(errno.EIO, "the disk")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError) as caught:
        files.put_folder_in_place(fresh, tmp_path / "7")
    assert caught.value.filename == str(fresh / "below")
    assert not (tmp_path / "7").exists()


def test_a_place_that_is_taken_stays_as_it_is(tmp_path: Path, fresh: Path) -> None:
    (tmp_path / "target/full").mkdir(parents=True)
    with pytest.raises(OSError):
        files.put_folder_in_place(fresh, tmp_path / "target")
    assert fresh.exists()
    assert [path.name for path in (tmp_path / "target").iterdir()] == ["full"]


def test_another_one_is_replaced(tmp_path: Path, fresh: Path) -> None:
    target = tmp_path / "target"
    for left in (target, tmp_path / ".target.old"):
        (left / "before").mkdir(parents=True)
    files.replace_folder(fresh, target)
    assert sorted(path.name for path in target.iterdir()) == ["a", "below"]
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_it_is_there_at_every_moment(tmp_path: Path, fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "target"
    target.mkdir()
    renamed: list[Path] = []
    monkeypatch.setattr(Path, "rename", lambda path, _: renamed.append(path))
    files.replace_folder(fresh, target)
    assert (target / "a").read_text() == "a"
    assert (renamed, fresh.exists()) == ([], False)


def test_where_two_cannot_be_exchanged_one_is_renamed_after_the_other(
    tmp_path: Path, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "old").write_text("old")
    monkeypatch.setattr(files, "_exchange", lambda *_: False)
    files.replace_folder(fresh, target)
    assert sorted(path.name for path in target.iterdir()) == ["a", "below"]
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_where_there_is_none_it_is_the_first(tmp_path: Path, fresh: Path) -> None:
    files.replace_folder(fresh, tmp_path / "target")
    assert (tmp_path / "target/below/b").read_text() == "b"


def test_all_that_is_in_it_is_forced_to_the_disk_before_it_is_seen(
    tmp_path: Path, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "target"
    synced: list[tuple[str, bool]] = []

    def fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        synced.append((os.path.relpath(path, tmp_path), target.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    files.put_folder_in_place(fresh, target)
    before = [path for path, is_there in synced if not is_there]
    assert sorted(before) == ["fresh", "fresh/a", "fresh/below", "fresh/below/b"]
    assert (".", True) in synced
