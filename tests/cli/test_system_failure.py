"""What the system refuses is told with the path, what that is for, and what to do; a bug stays one."""

from __future__ import annotations

import errno
import os
import shutil
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import SystemFailureError
from builder.base.files import naming
from builder.cli import main

if TYPE_CHECKING:
    from pathlib import Path


NUMBERS = [
    number
    for number in sorted(errno.errorcode)
    if number not in {errno.EINTR, errno.ECHILD}  # Python tries the first again, and means the second otherwise
]


@pytest.mark.parametrize("number", NUMBERS)
def test_whatever_the_system_says_is_no_bug(tmp_path: Path, number: int) -> None:
    path = tmp_path / "builds/image/1/plan.json"
    failure = main.translate(OSError(number, os.strerror(number), str(path)))
    assert failure is not None
    assert failure.message == f"{path} (the build directory of an image): {os.strerror(number)}"
    assert failure.hint


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.ENOSPC, "make room (`df -h {folder}`; `builder prune` shows which images could go)"),
        (errno.EDQUOT, "make room (`df -h {folder}`"),
        (errno.EIO, "look after the disk that holds {folder}"),
        (errno.EROFS, "{folder} is mounted read-only"),
        (errno.EMFILE, "`ulimit -n 4096`"),
        (errno.ENOMEM, "the machine has no memory left"),
        (errno.ECONNRESET, "look at the network"),
        (errno.EISDIR, "look at {folder}"),
    ],
)
def test_each_kind_has_its_advice_for_the_folder_that_is_there(tmp_path: Path, number: int, expected: str) -> None:
    failure = main.translate(OSError(number, "x", str(tmp_path / ".builder/journal/a.json")))
    assert failure is not None
    assert "the journal" in failure.message
    assert expected.format(folder=tmp_path) in failure.hint


def test_a_file_that_is_open_has_its_name(tmp_path: Path) -> None:
    with pytest.raises(OSError) as caught, naming(tmp_path / "a"):
        raise OSError(errno.ENOSPC, "full")
    assert caught.value.filename == str(tmp_path / "a")


def test_a_file_that_pathlib_reads_has_its_name() -> None:
    from pathlib import Path

    memory = Path("/proc/self/mem")  # address 0 cannot be read
    with pytest.raises(OSError) as caught:
        memory.read_bytes()
    failure = main.translate(caught.value)
    assert failure is not None
    assert failure.message == f"{memory}: Input/output error"


def test_files_of_root_in_a_users_project_are_told_with_the_way_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody but root could make them here: who owns what is set instead."""
    work = tmp_path / ".builder/work"
    work.mkdir(parents=True)
    denied = PermissionError(errno.EACCES, "denied", str(work / "x"))
    users = {work: 0, work.parent: 4321}
    real = type(tmp_path).lstat
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    monkeypatch.setattr(
        type(tmp_path), "lstat", lambda path: SimpleNamespace(st_uid=users[path]) if path in users else real(path)
    )
    failure = main.translate(denied)
    assert failure is not None
    assert failure.hint == (
        f"{work} belongs to root, as after a run with sudo: `sudo chown -R 4321 {work.parent}` makes it yours; "
        "then run this again"
    )
    users[work] = 4321
    failure = main.translate(denied)
    assert failure is not None
    assert failure.hint == f"make {work} writable for you, and run this again"


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread"), TimeoutError("timed out")])
def test_what_else_the_system_lacks_is_no_bug(error: BaseException) -> None:
    failure = main.translate(error)
    assert failure is not None
    assert failure.hint


def test_a_copy_that_failed_is_told_by_its_first_file(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/link").symlink_to("nowhere")
    with pytest.raises(shutil.Error) as caught:
        shutil.copytree(tmp_path / "a", tmp_path / "c")
    failure = main.translate(caught.value)
    assert failure is not None
    assert failure.message.startswith(f"{tmp_path}/c/link: ")


@pytest.mark.parametrize("error", [ValueError("x"), RuntimeError("x"), OSError("x"), KeyError("x"), BlockingIOError()])
def test_a_bug_is_one(error: BaseException) -> None:
    assert main.translate(error) is None


def test_its_exit_code_is_its_own() -> None:
    from builder.base import errors

    kinds = [kind for kind in errors.BuilderError.__subclasses__() if kind.exit_code == SystemFailureError.exit_code]
    assert kinds == [SystemFailureError]
