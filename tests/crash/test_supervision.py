"""The supervision itself: what it sees of a program, and what it does to it."""

from __future__ import annotations

import errno
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.crash import supervision
from tests.crash.places import Place, Places
from tests.crash.supervision import GO_ON, KILLED, Ended, Fate

pytestmark = pytest.mark.slow

PROGRAM = """\
import os, pathlib, subprocess, tempfile
pathlib.Path("made").mkdir(exist_ok=True)
pathlib.Path("made").mkdir(exist_ok=True)
with open("made/file", "w") as file:
    file.write("text")
    file.flush()
    os.fsync(file.fileno())
os.replace("made/file", "made/other")
open("/dev/null", "w").write("nothing")
subprocess.run(["sh", "-c", "echo more > project/theirs; true"], check=True)
os.unlink("made/other")
"""
SEEN = [
    "builder: mkdir made",
    "builder: openat made/file",
    "builder: write made/file",
    "builder: fsync made/file",
    "builder: rename made/file → made/other",
    "builder: execve sh",
    "SH: openat project/theirs",
    "SH: write project/theirs",
    "SH: exit ",
    "builder: unlink made/other",
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    return tmp_path


def ended_at(root: Path, place: int, fate: Fate) -> tuple[Ended, list[str]]:
    places = Places(root, lambda number, _: fate if number == place else GO_ON)
    ended = supervision.run([sys.executable, "-c", PROGRAM], os.environ, root, places.decide)
    shell = Path("/bin/sh").resolve().name
    return ended, [str(found).replace(f"{shell}:", "SH:") for found in places.found]


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_every_change_is_seen_in_its_order(root: Path) -> None:
    ended, seen = ended_at(root, -1, GO_ON)
    assert (ended.code, seen) == (0, SEEN)
    assert files(root) == ["project/theirs"]


@pytest.mark.parametrize(
    ("place", "left"), [(0, []), (1, []), (4, ["made/file"]), (9, ["made/other", "project/theirs"])]
)
def test_a_kill_comes_before_the_call(root: Path, place: int, left: list[str]) -> None:
    ended, seen = ended_at(root, place, KILLED)
    assert (ended.code, seen) == (-signal.SIGKILL, SEEN[: place + 1])
    assert files(root) == left


def test_a_kill_leaves_the_call_before_it_done(root: Path) -> None:
    ended_at(root, 3, KILLED)
    assert (root / "made/file").read_text() == "text"


@pytest.mark.parametrize(("place", "error"), [(1, errno.EACCES), (2, errno.ENOSPC), (3, errno.EIO), (4, errno.EIO)])
def test_a_call_fails(root: Path, place: int, error: int) -> None:
    ended, seen = ended_at(root, place, Fate(error))
    assert ended.code == 1
    assert f"[Errno {error}]" in ended.stderr
    assert seen[: place + 1] == SEEN[: place + 1]
    assert "made/other" not in files(root)


def test_a_program_that_does_not_end_is_ended(root: Path) -> None:
    with pytest.raises(TimeoutError):
        supervision.run(["sleep", "60"], os.environ, root, lambda _: GO_ON, seconds=0.5)


def test_a_place_names_the_errors_that_it_may_meet() -> None:
    assert Place("file", "builder", "fsync", "x").errors() == (errno.EIO, errno.ENOSPC)
    assert Place("file", "builder", "unlink", "x").errors() == (errno.EIO, errno.EACCES)
    assert Place("end", "git", "exit", "").errors() == ()
