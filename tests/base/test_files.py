"""A reader sees the old content or the new, and nothing is left beside it."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.base import files
from builder.base.errors import TransferError, UsageError
from builder.base.files import LockHeldError, folder_locked, locked, open_locked_to_append
from tests import processes

if TYPE_CHECKING:
    from collections.abc import Callable


def test_the_file_has_the_content_and_nothing_is_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in (b"one", b"two"):
        files.write_atomically(path, content)
        assert path.read_bytes() == content
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_what_cannot_be_written_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder/full").mkdir(parents=True)
    for path in (tmp_path / "none/file", tmp_path / "folder"):
        with pytest.raises(OSError):
            files.write_atomically(path, b"x")
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]


def test_a_new_file_is_forced_to_the_disk_and_its_name_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[bool, bool]] = []
    path = tmp_path / "file"

    def fsync(descriptor: int) -> None:
        is_folder = os.path.samestat(os.fstat(descriptor), tmp_path.stat())
        synced.append((is_folder, path.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    files.write_atomically(path, b"x")
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
        (temporary,) = tmp_path.glob(".file.*")
        assert temporary.read_bytes() == b"new"
        raise KeyError

    with pytest.raises(KeyError):
        files.write_atomically(path, b"new", check=check)
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


# A folder is in its place whole, or not there.


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


# One holder at a time, whoever waits is told, and a holder that is killed lets go.

if TYPE_CHECKING:
    Fork = Callable[[Callable[[], object]], int]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / ".images.lock.writer"


@dataclass
class Holder:
    """A process that holds ``file`` by now, until it is told to let go or killed."""

    process: int
    told: int

    def let_go(self) -> None:
        """Returns once the file is free."""
        os.close(self.told)
        assert os.waitpid(self.process, 0)[1] == 0


def start(fork: Fork, file: Path) -> Holder:
    reader, writer = os.pipe()
    end, told = os.pipe()

    def hold() -> None:
        os.close(told)
        with locked(file):
            os.write(writer, b".")
            os.read(end, 1)

    holder = Holder(fork(hold), told)
    os.read(reader, 1)
    for descriptor in (reader, writer, end):
        os.close(descriptor)
    return holder


@dataclass
class Clock:
    """The clock of whoever waits: it stands still but for pauses, and tells what others do in these."""

    others: Callable[[float], None]
    now: float = 0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.others(self.now)


@pytest.mark.slow
def test_whoever_waits_too_long_learns_who_holds_it(file: Path, fork: Fork) -> None:
    holder = start(fork, file)
    told: list[float] = []
    began = time.monotonic()
    with (
        pytest.raises(LockHeldError) as raised,
        locked(file, wait_seconds=0.6, on_wait=lambda: told.append(time.monotonic())),
    ):
        pytest.fail("held twice")
    assert time.monotonic() - began >= 0.6
    assert len(told) == 1
    assert told[0] - began >= 0.3
    assert raised.value.holder == holder.process


def test_it_can_be_asked_without_waiting(file: Path, fork: Fork) -> None:
    start(fork, file)
    with pytest.raises(LockHeldError), locked(file, wait_seconds=0, on_wait=None):
        pytest.fail("held twice")


@pytest.mark.slow
def test_it_goes_on_as_soon_as_it_is_free(file: Path, fork: Fork) -> None:
    holder = start(fork, file)
    told: list[str] = []

    def let_go() -> None:
        told.append("waiting")
        holder.let_go()

    with locked(file, wait_seconds=300, on_wait=let_go):
        assert file.read_text() == f"{os.getpid()}\n"
    assert told == ["waiting"]


def test_of_many_that_take_turns_each_is_waited_for(file: Path, fork: Fork, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = start(fork, file)

    def take_turns(now: float) -> None:
        """One process holds the file all the time, in the name of one after the other, so that none gets between."""
        if now < 3.5:
            file.write_text(f"{1001 + int(now / 0.5)}\n")
        else:
            holder.let_go()

    clock = Clock(take_turns)
    monkeypatch.setattr(files, "time", clock)
    with locked(file, wait_seconds=2.5, on_wait=None):
        assert clock.now >= 3.5


def test_nobody_is_told_of_a_moment(file: Path, fork: Fork, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = start(fork, file)
    monkeypatch.setattr(files, "time", Clock(lambda now: holder.let_go() if now >= 0.05 else None))
    with locked(file, wait_seconds=30, on_wait=lambda: pytest.fail("told")):
        pass


def test_a_killed_holder_lets_go(file: Path, fork: Fork) -> None:
    holder = start(fork, file)
    os.kill(holder.process, signal.SIGKILL)
    os.waitpid(holder.process, 0)
    with locked(file, wait_seconds=1, on_wait=lambda: pytest.fail("told")):
        pass


def test_programs_that_were_started_meanwhile_hold_nothing(file: Path) -> None:
    with locked(file, wait_seconds=0, on_wait=None):
        sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False)
    try:
        with locked(file, wait_seconds=0, on_wait=None):
            pass
    finally:
        sleeper.communicate(b"\n")


def test_it_is_let_go_when_the_block_fails(file: Path) -> None:
    with pytest.raises(KeyError), locked(file, wait_seconds=0, on_wait=None):
        raise KeyError
    assert file.read_text() == ""
    with locked(file, wait_seconds=0, on_wait=None):
        assert file.read_text() == f"{os.getpid()}\n"


def test_a_file_of_another_user_can_be_locked(public_folder: Path, fork: Fork) -> None:
    file = public_folder / ".images.lock.writer"
    file.touch(0o444)

    def run() -> None:
        if os.geteuid() == 0:
            os.setuid(65534)
        with locked(file, wait_seconds=0, on_wait=None):
            pass

    assert os.waitpid(fork(run), 0)[1] == 0


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with (
        pytest.raises(OSError, match=r"No such file"),
        locked(tmp_path / "none" / "x", wait_seconds=0, on_wait=None),
    ):
        pytest.fail("held")


def test_a_folder_of_another_user(public_folder: Path, fork: Fork) -> None:
    public_folder.chmod(0o555)

    def run() -> None:
        if os.geteuid() == 0:
            os.setuid(65534)
        with (
            pytest.raises(OSError, match="Permission denied"),
            locked(public_folder / ".images.lock.writer", wait_seconds=0, on_wait=None),
        ):
            pytest.fail("held")

    status = os.waitpid(fork(run), 0)[1]
    public_folder.chmod(0o755)
    assert status == 0


def test_a_link_is_not_followed(tmp_path: Path, file: Path) -> None:
    file.symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic links"), locked(file, wait_seconds=0, on_wait=None):
        pytest.fail("held")
    assert not Path(tmp_path / "other").exists()


def test_without_a_limit_it_waits_for_as_long_as_it_takes(
    file: Path, fork: Fork, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = start(fork, file)
    clock = Clock(lambda now: holder.let_go() if now >= 100_000 else None)
    monkeypatch.setattr(files, "time", clock)
    monkeypatch.setattr(files, "_LONGEST_PAUSE", 10_000)
    with locked(file):
        assert clock.now >= 100_000


def test_a_folder_is_held_under_whatever_name_it_has(tmp_path: Path, fork: Fork) -> None:
    (tmp_path / "before").mkdir()
    with folder_locked(tmp_path / "before"):
        (tmp_path / "before").rename(tmp_path / "after")
        with pytest.raises(BlockingIOError), folder_locked(tmp_path / "after"):
            pytest.fail("held twice")
    with folder_locked(tmp_path / "after"):
        pass
    with pytest.raises(FileNotFoundError), folder_locked(tmp_path / "before"):
        pytest.fail("held")


def test_a_file_that_is_held_while_it_is_open(file: Path) -> None:
    first = open_locked_to_append(file)
    assert files.is_held(file)
    os.close(first)
    assert not files.is_held(file)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["renamed", "removed"])
def test_whoever_waited_for_a_file_that_is_gone_opens_the_next(file: Path, fork: Fork, end: str) -> None:
    """Otherwise it would write into what has another name by now, or none."""
    reader, writer = os.pipe()
    go, come = os.pipe()

    def wait() -> None:
        os.read(go, 1)
        waited = open_locked_to_append(file)
        os.write(writer, b"." if os.path.samestat(os.fstat(waited), file.stat()) else b"x")

    child = fork(wait)  # before the file is opened: what a child inherits it holds, too
    descriptor = open_locked_to_append(file)
    os.write(come, b".")
    processes.await_lock_wait(child)
    if end == "renamed":
        file.rename(file.with_name("whole"))
    else:
        file.unlink()
    os.close(descriptor)
    assert os.waitpid(child, 0)[1] == 0
    assert os.read(reader, 1) == b"."


# A large file is whole under its name, or not there.


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
            with pytest.raises(OSError, match="regular file|Is a directory"):
                files.read_plain_file(tmp_path / name, 100)


def test_a_device_is_refused(tmp_path: Path) -> None:
    (tmp_path / "zero").symlink_to("/dev/zero")
    for path in (tmp_path / "zero", Path("/dev/zero")):
        with pytest.raises(OSError, match="regular file"):
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
        with pytest.raises(OSError):
            files.write_atomically(file, b"overwritten")
        with pytest.raises(OSError), files.locked(file.with_name("lock")):
            pass
    assert sorted(path.name for path in victim.rglob("*") if path.is_file()) == ["file"]
    assert (victim / "logs/one/file").read_bytes() == b"theirs"


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


# A file under a name of its own, and what becomes of those whose writers were killed.


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


def test_nothing_takes_the_place_of_a_device_or_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/null")
    for name in ("pipe", "link"):
        before = (tmp_path / name).lstat()
        with pytest.raises(OSError, match="not a regular file"):
            files.write_atomically(tmp_path / name, b"x")
        assert os.path.samestat((tmp_path / name).lstat(), before)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe"]


def test_a_folder_that_was_not_put_in_its_place_is_gone(tmp_path: Path) -> None:
    left = tmp_path / "mods/.x.new/old"  # by a process that was killed
    left.mkdir(parents=True)
    with pytest.raises(OSError, match="No space"), files.fresh_folder(tmp_path / "mods/x") as fresh:
        assert list(fresh.iterdir()) == []
        (fresh / "file").touch()
        raise OSError(errno.ENOSPC, "No space left on device")
    assert list((tmp_path / "mods").iterdir()) == []
    with files.fresh_folder(tmp_path / "mods/x") as fresh:
        (fresh / "file").touch()
        files.put_folder_in_place(fresh, tmp_path / "mods/x")
    assert [path.name for path in (tmp_path / "mods").rglob("*")] == ["x", "file"]
