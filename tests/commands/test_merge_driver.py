"""Git calls `builder lock --merge-driver` for images.lock, and takes what it writes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from builder.base.project import Project
from builder.lock import lock_file
from builder.lock.model import ImageName, Lock
from builder.lock.text import dump_lock
from builder.numbers import recovery
from tests import projects
from tests.lock.conftest import image
from tests.lock.test_merging import Git, built

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.slow


@pytest.fixture
def git(tmp_path: Path) -> Git:
    git = Git(tmp_path)
    git.run("config", "merge.builder.driver", f"{sys.executable} -m builder lock --merge-driver %O %A %B")
    projects.write(tmp_path / ".gitattributes", "/images.lock merge=builder\n")
    return git


def test_what_each_side_built_is_merged(git: Git) -> None:
    base = built(Lock(), ImageName("cpu", 1), image(1), "a/small")
    ours = built(base, ImageName("cpu", 2), image(2), "a/small")
    theirs = built(base, ImageName("tf5", 1), image(3), "b/large")
    assert git.merged(base, ours, theirs) == built(ours, ImageName("tf5", 1), image(3), "b/large")
    assert git.run("status", "--porcelain") == ""


def test_a_comment_of_ours_stays(git: Git) -> None:
    base = built(Lock(), ImageName("cpu", 1), image(1), "a/small")
    ours = built(base, ImageName("cpu", 2), image(2), "a/small")
    git.commit(base)
    git.run("checkout", "--quiet", "-b", "theirs")
    git.commit(built(base, ImageName("tf5", 1), image(3), "b/large"))
    git.run("checkout", "--quiet", "main")
    file = git.folder / "images.lock"
    file.write_text(dump_lock(ours).replace("  a/small:\n", "  # ask Ann\n  a/small:\n"), encoding="utf-8")
    git.run("commit", "--quiet", "--all", "--message=x")
    git.run("merge", "--quiet", "--no-edit", "theirs")
    assert "  # ask Ann\n  a/small:\n" in file.read_text(encoding="utf-8")


def test_one_number_for_two_images_stays_a_conflict(git: Git) -> None:
    base = built(Lock(), ImageName("cpu", 1), image(1), "a/small")
    ours = built(base, ImageName("cpu", 2), image(2), "a/small")
    theirs = built(base, ImageName("cpu", 2), image(3), "a/small")
    git.merged(base, ours, theirs)
    assert git.run("status", "--porcelain") == "UU images.lock\n"
    assert recovery.staged_locks(Project(git.folder)) == (base, ours, theirs)


def test_a_version_that_cannot_be_read_is_told(git: Git) -> None:
    base = built(Lock(), ImageName("cpu", 1), image(1), "a/small")
    git.commit(base)
    git.run("checkout", "--quiet", "-b", "theirs")
    (git.folder / "images.lock").write_text("version: 4\n...\n", encoding="utf-8")
    git.run("commit", "--quiet", "--all", "--message=x")
    git.run("checkout", "--quiet", "main")
    git.commit(built(base, ImageName("cpu", 2), image(2), "a/small"))
    git.run("merge", "--quiet", "theirs", code=1)
    assert git.run("status", "--porcelain") == "UU images.lock\n"
    assert sorted(lock_file.read_lock(git.folder / "images.lock").images["cpu"].numbers) == [1, 2]
