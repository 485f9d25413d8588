"""Writers take turns; whatever happens to one, images.lock says the old or the new."""

from __future__ import annotations

import os
import random
import resource
import signal
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from builder.base import files as atomic_file
from builder.base.errors import LockBusyError, LockError, UsageError
from builder.lock import lock_file as module
from builder.lock.lock_file import LockWriter, read_lock, writing
from builder.lock.model import ImageName, Lock, Model, NumberedImage, Pairing, Repository
from builder.lock.text import dump_lock
from tests.lock import disk

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


if TYPE_CHECKING:
    Fork = Callable[[Callable[[], object]], int]

LEFT = {"images.lock", ".images.lock.writer"}


@pytest.fixture
def path(tmp_path: Path, golden: str) -> Path:
    """images.lock, in a folder of its own."""
    folder = tmp_path / "project"
    folder.mkdir()
    file = folder / "images.lock"
    file.write_text(golden)
    return file


@pytest.fixture
def grown(full: Lock) -> Lock:
    """``full`` and a repository more."""
    return full.with_repository("vllm-node-new", Repository(next=2))


def names(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def test_a_commit_replaces_the_text(path: Path, full: Lock, grown: Lock) -> None:
    with writing(path) as transaction:
        assert transaction.lock == full
        assert transaction.commit(grown) is True
        assert transaction.lock == grown
        assert path.read_text() == dump_lock(grown)
    assert read_lock(path) == grown
    assert names(path.parent) == LEFT


def test_a_first_commit_makes_the_file(tmp_path: Path, full: Lock) -> None:
    path = tmp_path / "images.lock"
    before = os.umask(0o027)
    try:
        with writing(path) as transaction:
            assert transaction.lock == Lock()
            transaction.commit(full)
    finally:
        os.umask(before)
    assert read_lock(path) == full
    assert path.stat().st_mode & 0o777 == 0o640


def test_without_a_commit_nothing_is_written(path: Path, golden: str) -> None:
    with writing(path):
        pass
    assert path.read_text() == golden


def test_the_same_text_is_not_written_again(path: Path, full: Lock) -> None:
    before = path.stat()
    with writing(path) as transaction:
        assert transaction.commit(full) is False
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_several_commits_in_one_turn(path: Path, full: Lock, grown: Lock) -> None:
    with writing(path) as transaction:
        assert transaction.commit(grown)
        assert transaction.commit(full)
        assert not transaction.commit(full)
    assert read_lock(path) == full


def test_a_failed_block_keeps_what_it_committed_and_lets_go(path: Path, grown: Lock) -> None:
    with pytest.raises(KeyError), writing(path) as transaction:
        transaction.commit(grown)
        raise KeyError
    with writing(path, wait_seconds=0) as transaction:
        assert transaction.lock == grown


def test_after_its_block_a_transaction_writes_no_more(path: Path, grown: Lock, golden: str) -> None:
    with writing(path) as transaction:
        pass
    with pytest.raises(ValueError, match="only inside"):
        transaction.commit(grown)
    assert path.read_text() == golden


@pytest.mark.parametrize("damage", ["", "<<<<<<< HEAD\n", "version: 2\n...\n"])
def test_a_damaged_lock_is_never_written_over(path: Path, damage: str) -> None:
    path.write_text(damage)
    with pytest.raises(LockError, match=r"images\.lock:1:1"), writing(path):
        pytest.fail("a damaged lock was handed out")
    assert path.read_text() == damage
    with pytest.raises(LockError), writing(path, wait_seconds=0):
        pytest.fail("a damaged lock was handed out")


def test_a_lock_that_could_not_be_read_back_is_a_bug(path: Path, full: Lock, golden: str) -> None:
    dangling = full.with_model("x/y", Model(Pairing(ImageName("nowhere", 1))))
    with (
        writing(path) as transaction,
        pytest.raises(ValueError, match="x/y is paired with nowhere:1, which is not among"),
    ):
        transaction.commit(dangling)
    assert path.read_text() == golden
    assert names(path.parent) == LEFT


def test_text_that_is_no_text_is_refused(path: Path, full: Lock, golden: str) -> None:
    note = os.fsdecode(b"caf\xe9")
    noted = full.with_model("x/y", Model(Pairing(ImageName("vllm-node-cpu", 1), note=note)))
    with writing(path) as transaction, pytest.raises(UsageError, match="not UTF-8"):
        transaction.commit(noted)
    assert path.read_text() == golden


def test_a_writer_that_waits_too_long_learns_who_writes(path: Path, fork: Fork) -> None:
    reader, ready = os.pipe()

    def write_for_long() -> None:
        with writing(path):
            os.write(ready, b".")
            time.sleep(30)

    child = fork(write_for_long)
    os.read(reader, 1)
    with pytest.raises(LockBusyError) as raised, writing(path, wait_seconds=0.1):
        pytest.fail("two writers")
    assert raised.value.message == f"process {child} is writing images.lock, for more than 0.1 s now"
    assert raised.value.exit_code == 4
    assert "wait for it" in raised.value.hint


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with (
        pytest.raises(LockError, match=r"\.images\.lock\.writer cannot be opened: No such file") as raised,
        writing(tmp_path / "none" / "images.lock"),
    ):
        pytest.fail("held")
    assert str(tmp_path / "none") in raised.value.hint


def test_changes_of_others_in_the_meantime_are_not_lost(path: Path, grown: Lock) -> None:
    with writing(path) as transaction:
        path.write_text("version: 1\n...\n")
        with pytest.raises(LockError, match="changed while it was being updated"):
            transaction.commit(grown)
    assert path.read_text() == "version: 1\n...\n"
    assert names(path.parent) == LEFT


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o664])
def test_permissions_stay(path: Path, grown: Lock, mode: int) -> None:
    path.chmod(mode)
    with writing(path) as transaction:
        transaction.commit(grown)
    assert path.stat().st_mode & 0o7777 == mode


def test_the_owner_and_the_group_stay(path: Path, grown: Lock) -> None:
    """Root may give a file to anybody; others may give it to another group of theirs, where they have one."""
    own = os.geteuid(), max(os.getgroups(), default=os.getegid())
    owner = (12345, 54321) if os.geteuid() == 0 else own
    os.chown(path, *owner)
    with writing(path) as transaction:
        transaction.commit(grown)
    assert (path.stat().st_uid, path.stat().st_gid) == owner


def test_a_link_is_followed(path: Path, tmp_path: Path, grown: Lock) -> None:
    link = tmp_path / "images.lock"
    link.symlink_to("project/images.lock")
    with writing(link) as transaction:
        transaction.commit(grown)
        with pytest.raises(LockBusyError), writing(path, wait_seconds=0):
            pytest.fail("two writers")
    assert link.is_symlink()
    assert read_lock(path) == grown
    assert names(path.parent) == LEFT
    assert names(tmp_path) == {"images.lock", "project"}


def test_a_circle_of_links(tmp_path: Path) -> None:
    (tmp_path / "images.lock").symlink_to("images.lock")
    with pytest.raises(LockError), writing(tmp_path / "images.lock"):
        pytest.fail("no such file")


@pytest.mark.parametrize("kind", ["file", "link"])
def test_files_of_a_killed_writer_do_not_hinder_the_next(path: Path, tmp_path: Path, grown: Lock, kind: str) -> None:
    left, other = path.with_name(".images.lock.new"), tmp_path / "other"
    other.write_text("kept")
    if kind == "file":
        left.write_text("half a lo")
    else:
        left.symlink_to(other)
    with writing(path) as transaction:
        transaction.commit(grown)
    assert read_lock(path) == grown
    assert other.read_text() == "kept"
    assert names(path.parent) == LEFT


def bump(path: Path, times: int, make_image: Callable[..., NumberedImage]) -> Callable[[], None]:
    """Gives ``times`` numbers, each in a turn of its own."""

    def run() -> None:
        for _ in range(times):
            with writing(path, wait_seconds=60) as transaction:
                repository = transaction.lock.images.get("counted", Repository())
                image = make_image(repository.next, note=str(os.getpid()))
                numbers = {**repository.numbers, repository.next: image}
                if len(numbers) > 5:
                    del numbers[min(numbers)]
                counted = replace(repository, next=repository.next + 1, numbers=numbers)
                transaction.commit(transaction.lock.with_repository("counted", counted))

    return run


@pytest.mark.slow
def test_eight_writers_lose_nothing(tmp_path: Path, fork: Fork, make_image: Callable[..., NumberedImage]) -> None:
    path = tmp_path / "images.lock"
    children = [fork(bump(path, 50, make_image)) for _ in range(8)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 8
    assert read_lock(path).images["counted"].next == 401
    assert names(tmp_path) == LEFT


@pytest.mark.slow
def test_killed_at_any_moment_the_lock_is_old_or_new(path: Path, fork: Fork, full: Lock, grown: Lock) -> None:
    def write_for_ever() -> None:
        while True:
            for lock in (grown, full):
                with writing(path) as transaction:
                    transaction.commit(lock)

    chance = random.Random(7)  # noqa: S311
    for _ in range(60):
        child = fork(write_for_ever)
        time.sleep(chance.uniform(0, 0.03))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert read_lock(path) in (full, grown)
    with writing(path, wait_seconds=0) as transaction:
        transaction.commit(Lock())
    assert read_lock(path) == Lock()
    assert names(path.parent) == LEFT


@pytest.mark.slow
def test_killed_at_each_line_the_lock_is_old_or_new(path: Path, fork: Fork, full: Lock, grown: Lock) -> None:
    files = {module.__file__, atomic_file.__file__, atomic_file.__file__}

    def die_at(line: int) -> Callable[[], None]:
        left = [line]

        def trace(frame: Any, event: str, _: object) -> Any:
            if frame.f_code.co_filename not in files:
                return None
            if event == "line":
                left[0] -= 1
                if left[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return trace

        def run() -> None:
            sys.settrace(trace)
            with writing(path, wait_seconds=0) as transaction:
                transaction.commit(grown)

        return run

    seen = []
    for line in range(1000):
        path.write_text(dump_lock(full))
        _, status = os.waitpid(fork(die_at(line)), 0)
        seen.append(read_lock(path) == grown)
        assert seen[-1] or read_lock(path) == full
        if status == 0:
            break
    assert seen.count(False) > 30  # lines before the new file was in its place
    assert seen.count(True) > 5
    assert sorted(seen) == seen


def refused(path: Path, lock: Lock) -> LockError:
    with pytest.raises(LockError) as raised, writing(path, wait_seconds=0) as transaction:
        transaction.commit(lock)
    return raised.value


def test_a_full_disk_leaves_the_old_lock(public_folder: Path, fork: Fork, full: Lock, grown: Lock) -> None:
    def run() -> None:
        with disk.small(public_folder) as (folder, fill, make_room):
            path = folder / "images.lock"
            with writing(path) as transaction:
                transaction.commit(full)
            fill()
            error = refused(path, grown)
            assert "images.lock cannot be written, and is as it was: No space left on device" in error.message
            assert "prune" in error.hint
            assert read_lock(path) == full
            assert names(folder) - {disk.FILLER} == LEFT
            make_room()
            with writing(path) as transaction:
                transaction.commit(grown)
            assert read_lock(path) == grown

    assert os.waitpid(fork(run), 0)[1] == 0


def test_a_read_only_disk_leaves_the_old_lock(public_folder: Path, fork: Fork, full: Lock, grown: Lock) -> None:
    def run() -> None:
        with disk.small(public_folder) as (folder, _, _):
            path = folder / "images.lock"
            with writing(path) as transaction:
                transaction.commit(full)
            reason = disk.make_read_only(folder)
            error = refused(path, grown)
            assert reason in error.message
            assert str(folder) in error.hint
            assert read_lock(path) == full

    assert os.waitpid(fork(run), 0)[1] == 0


def test_a_folder_without_write_permission(public_folder: Path, fork: Fork, full: Lock, grown: Lock) -> None:
    path = public_folder / "images.lock"
    with writing(path) as transaction:
        transaction.commit(full)
    public_folder.chmod(0o555)

    def run() -> None:
        if os.geteuid() == 0:
            os.setuid(65534)
        error = refused(path, grown)
        assert "images.lock cannot be written, and is as it was: Permission denied" in error.message
        assert str(public_folder) in error.hint

    assert os.waitpid(fork(run), 0)[1] == 0
    public_folder.chmod(0o755)
    assert read_lock(path) == full
    assert names(public_folder) == LEFT


def test_a_write_that_ends_half_way_leaves_the_old_lock(path: Path, fork: Fork, full: Lock, grown: Lock) -> None:
    def run() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        assert "File too large" in refused(path, grown).message

    assert os.waitpid(fork(run), 0)[1] == 0
    assert read_lock(path) == full
    assert names(path.parent) == LEFT


def test_a_transaction_comes_from_writing_alone(path: Path) -> None:
    with pytest.raises(TypeError):
        LockWriter(path)  # type: ignore[call-arg]
