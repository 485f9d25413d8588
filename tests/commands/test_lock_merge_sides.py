"""`lock --merge` where git leaves more than two whole sides with markers: no engine is asked."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from builder.base.project import Project
from builder.lock import lock_file
from builder.lock.model import ImageName, Lock, LockedPackage, Pins, PythonPin
from builder.lock.text import dump_lock
from tests import locks, projects
from tests.conftest import WITHOUT_ENGINE, Command, run_command
from tests.lock.conftest import image
from tests.lock.test_merging import Git, built

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.slow

BASE = built(Lock(), ImageName("cpu", 1), image(1), "a/small")
OURS = built(BASE, ImageName("cpu", 2), image(2), "a/small")
THEIRS = built(BASE, ImageName("cpu", 2), image(3), "a/small")


@pytest.fixture
def git(tmp_path: Path) -> Git:
    projects.write(tmp_path / ".gitignore", ".builder/\n.images.lock.*\n")
    projects.write(tmp_path / "dockerfiles/small/image.yaml", projects.IMAGE.format(repository="cpu"))
    return Git(tmp_path)


@pytest.fixture
def merge(git: Git) -> Command:
    return partial(run_command, Project(git.folder), "lock", "--merge", environ=WITHOUT_ENGINE)


def branches(git: Git, base: str, *sides: str) -> None:
    """Branches `0`, `1`, … from one commit; the first is checked out."""
    for name, text in (("main", base), *((str(n), side) for n, side in enumerate(sides))):
        if name != "main":
            git.run("checkout", "--quiet", "-b", name, "main")
        (git.folder / "images.lock").write_text(text, encoding="utf-8")
        git.run("add", "--all")
        git.run("commit", "--quiet", "--allow-empty", f"--message={name}")
    git.run("checkout", "--quiet", "0")


def merged(git: Git) -> Lock:
    return lock_file.read_lock(git.folder / "images.lock")


def test_both_sides_are_merged_where_git_could_not_run_its_merge_driver(git: Git, merge: Command) -> None:
    projects.write(git.folder / ".gitattributes", "/images.lock merge=builder\n")
    git.run("config", "merge.builder.driver", "no-such-program %O %A %B")
    branches(git, *map(dump_lock, (BASE, OURS, THEIRS)))
    git.run("merge", "--quiet", "1", code=1)
    assert "<<<<" not in (git.folder / "images.lock").read_text(encoding="utf-8")
    assert "restore it with git as builds/cpu/3\n" in merge().stdout
    assert sorted(merged(git).images["cpu"].numbers) == [1, 2, 3]
    assert merge().stdout == "images.lock is merged. Next: `git add images.lock`\n"


def test_the_next_command_adds_what_git_could_not_merge(git: Git, merge: Command) -> None:
    """Both sides have other packages. git adds nothing if a path does not exist, and commits nothing without them."""
    git.commit(Lock())
    for name, version in (("theirs", "1.0"), ("ours", "2.0")):
        git.run("checkout", "--quiet", "-b", name, "main")
        packages = (LockedPackage("numpy", version, (f"{9:064x}",)),)
        pins = Pins(python=PythonPin(("numpy",), "2026-11-18T09:30:00Z", packages))
        locks.write_lock(git.folder, Lock().with_pins("small", "linux/amd64", pins))
        git.run("add", "--all")
        git.run("commit", "--quiet", f"--message={name}")
    git.run("merge", "--quiet", "theirs", code=1)
    file = "dockerfiles/small/packages.linux-amd64.txt"
    assert "<<<<" in (git.folder / file).read_text(encoding="utf-8")
    printed = merge().stdout
    assert printed.endswith(f"images.lock is merged. Next: `git add images.lock {file}`\n")
    git.run(*printed.partition("`git ")[2].removesuffix("`\n").split())
    git.run("commit", "--quiet", "--message=merged")
    assert merge().stdout == "nothing to merge\n"
    assert "numpy==2.0" in (git.folder / file).read_text(encoding="utf-8")


def test_a_damaged_common_version_hinders_nobody_and_a_damaged_side_is_named(git: Git, merge: Command) -> None:
    damaged = dump_lock(BASE).replace("latest:", "last:")
    branches(git, damaged, dump_lock(OURS), dump_lock(THEIRS), dump_lock(THEIRS).replace("latest:", "last:"))
    git.run("merge", "--quiet", "1", code=1)
    merge()
    assert sorted(merged(git).images["cpu"].numbers) == [1, 2, 3]
    git.run("reset", "--quiet", "--hard")
    git.run("merge", "--quiet", "2", code=1)
    assert "the side `theirs` is damaged: `git checkout --ours images.lock`" in merge(code=4).stderr


def test_a_rebase_gives_an_image_one_number_for_all_its_commits(git: Git, merge: Command) -> None:
    branches(git, *map(dump_lock, (BASE, OURS, THEIRS)))
    git.run("checkout", "--quiet", "1")
    git.commit(built(THEIRS, ImageName("cpu", 3), image(4), "d/more"))
    git.run("rebase", "--quiet", "0", code=1)
    merge()
    git.run("add", "--all")
    git.run("-c", "core.editor=true", "rebase", "--continue", code=1)
    merge()
    lock = merged(git)
    numbers = lock.images["cpu"].numbers
    assert [numbers[n].fingerprint for n in (1, 2, 3, 4)] == [image(n).fingerprint for n in (1, 2, 3, 4)]
    assert len(numbers) == 4
    # The second commit did not touch this model: what the first merge kept stays.
    assert lock.models["a/small"].pairing.image == ImageName("cpu", 2)
    assert lock.models["d/more"].pairing.image == ImageName("cpu", 4)


def test_a_file_that_was_removed_during_the_merge_has_both_sides_again(git: Git, merge: Command) -> None:
    branches(git, *map(dump_lock, (BASE, OURS, THEIRS)))
    git.run("merge", "--quiet", "1", code=1)
    (git.folder / "images.lock").unlink()
    merge()
    assert sorted(merged(git).images["cpu"].numbers) == [1, 2, 3]


def test_nothing_to_merge_makes_no_file(git: Git, merge: Command) -> None:
    assert merge().stdout == "nothing to merge\n"
    assert not (git.folder / "images.lock").exists()


def test_a_side_that_deleted_the_file_takes_nothing_from_the_other(git: Git, merge: Command) -> None:
    branches(git, dump_lock(BASE), dump_lock(OURS), dump_lock(BASE))
    git.run("checkout", "--quiet", "1")
    git.run("rm", "--quiet", "images.lock")
    git.run("commit", "--quiet", "--message=gone")
    git.run("merge", "--quiet", "0", code=1)
    assert "Next: `git add images.lock`" in merge().stdout
    assert merged(git).images == OURS.images
