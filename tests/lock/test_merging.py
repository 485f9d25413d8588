"""Two branches change images.lock, and git merges them: for real, in a repository."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.base.errors import LockError
from builder.base.project import Project
from builder.lock import merging
from builder.lock.lock_file import parse_and_explain
from builder.lock.model import ImageName, Lock, NumberedImage, Pairing, Pins, WheelPin
from builder.lock.text import dump_lock
from builder.numbers import recovery

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hypothesis.strategies import DataObject, SearchStrategy


if TYPE_CHECKING:
    MakeImage = Callable[..., NumberedImage]
    Change = Callable[[Lock], Lock]

CPU, TF5 = "vllm-node-cpu", "vllm-node-tf5"
PINS = Pins(sources={"vllm": WheelPin("vllm==1", "1")})


class Git:
    """A repository with an images.lock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run("init", "--quiet", "--initial-branch=main")

    def run(self, *arguments: str, code: int | None = 0) -> str:
        who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "core.autocrlf=false"]
        argv = ["git", *who, *arguments]
        done = subprocess.run(argv, cwd=self.folder, capture_output=True, text=True)
        assert code is None or done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def commit(self, lock: Lock) -> None:
        (self.folder / "images.lock").write_text(dump_lock(lock), encoding="utf-8")
        self.run("add", "--all")
        self.run("commit", "--quiet", "--message=x")

    def merged(self, base: Lock, ours: Lock, theirs: Lock, how: str = "merge --quiet --no-edit theirs") -> Lock:
        """The lock after a merge of two branches: as git merged it, or as its stages make it after a conflict."""
        self.commit(base)
        self.run("checkout", "--quiet", "-b", "theirs")
        self.commit(theirs)
        self.run("checkout", "--quiet", "-b", "ours", "main")
        self.commit(ours)
        self.run(*how.split(), code=None)
        stages = recovery.staged_locks(Project(self.folder))
        if stages is None:
            return parse_and_explain((self.folder / "images.lock").read_text(encoding="utf-8"))
        assert stages == (base, ours, theirs)
        with pytest.raises(LockError, match="git conflict marker `<<<<<<<"):
            parse_and_explain((self.folder / "images.lock").read_text(encoding="utf-8"))
        return merging.union(*stages)


@pytest.fixture
def git(tmp_path: Path) -> Git:
    return Git(tmp_path)


def built(lock: Lock, name: ImageName, image: NumberedImage, model: str | None = None) -> Lock:
    """``lock`` after a build: a number more, current, and paired where a model is named."""
    lock = lock.with_image(name, image).with_current(name)
    if model is None:
        return lock
    return lock.with_pairing(model, Pairing(name, recipe="recipes/x.yaml"))


@pytest.fixture
def base(make_image: MakeImage) -> Lock:
    lock = Lock(pins={name: {"linux/arm64": PINS} for name in ("cpu", "dflash", "tf5")})
    for number in (1, 2, 3):
        lock = built(lock, ImageName(CPU, number), make_image(number), "a/small")
        lock = built(lock, ImageName(TF5, number), make_image(50 + number), "z/large")
    return lock


@pytest.mark.parametrize("how", ["merge --quiet --no-edit theirs", "cherry-pick theirs"])
def test_different_repositories_merge(git: Git, base: Lock, make_image: MakeImage, how: str) -> None:
    def one(lock: Lock) -> Lock:
        return built(lock, ImageName(CPU, 4), make_image(4), "a/small")

    def other(lock: Lock) -> Lock:
        return built(lock, ImageName(TF5, 4), make_image(54), "z/large")

    assert git.merged(base, one(base), other(base), how) == one(other(base))


@pytest.mark.slow
def test_a_rebase_and_a_stash_have_their_sides_turned(git: Git, base: Lock, make_image: MakeImage) -> None:
    ours = built(base, ImageName(CPU, 4), make_image(4), "a/small")
    theirs = built(base, ImageName(CPU, 5), make_image(5), "a/small")
    git.commit(base)
    git.run("checkout", "--quiet", "-b", "side")
    git.commit(theirs)
    git.run("checkout", "--quiet", "main")
    git.commit(ours)
    git.run("rebase", "--quiet", "side", code=1)
    assert recovery.staged_locks(Project(git.folder)) == (base, theirs, ours)
    git.run("rebase", "--abort")
    git.run("reset", "--quiet", "--hard", "HEAD~1")
    (git.folder / "images.lock").write_text(dump_lock(theirs), encoding="utf-8")
    git.run("stash", "--quiet")
    git.commit(ours)
    git.run("stash", "pop", "--quiet", code=1)
    assert recovery.staged_locks(Project(git.folder)) == (base, ours, theirs)


@pytest.mark.parametrize("model", ["a/small", "z/large", "m/new", None])
def test_different_numbers_of_one_repository_are_both_kept(
    git: Git, base: Lock, make_image: MakeImage, model: str
) -> None:
    """Where both sides moved a pointer, ours counts."""
    ours = built(base, ImageName(CPU, 4), make_image(4), "m/other")
    theirs = built(base, ImageName(CPU, 5), make_image(5), model)
    both = git.merged(base, ours, theirs)
    assert sorted(both.images[CPU].numbers) == [1, 2, 3, 4, 5]
    assert (both.images[CPU].current, both.images[CPU].previous) == (4, (5, 3, 2, 1))
    assert both.models["m/other"].pairing.image == ImageName(CPU, 4)
    if model:
        assert both.models[model].pairing.image == ImageName(CPU, 5)
    assert list(merging.chosen(base, ours, theirs)) == [
        f"{CPU}:4 as the current image, while the other side has {CPU}:5"
    ]


def test_several_numbers_of_one_repository_each_are_all_kept(git: Git, base: Lock, make_image: MakeImage) -> None:
    ours, theirs = base, base
    for number in (4, 6, 8, 10):
        ours = built(ours, ImageName(CPU, number), make_image(number), "a/small")
    for number in (5, 7, 9):
        theirs = built(theirs, ImageName(CPU, number), make_image(number), f"m/{number}")
    both = git.merged(base, ours, theirs)
    assert sorted(both.images[CPU].numbers) == list(range(1, 11))
    assert both.images[CPU].current == 10


def test_first_numbers_of_two_definitions_are_both_kept(git: Git, make_image: MakeImage) -> None:
    ours = built(Lock(), ImageName(CPU, 1), make_image(1), "m/a").with_pins("cpu", "linux/amd64", PINS)
    theirs = built(Lock(), ImageName(TF5, 1), make_image(2), "m/b").with_pins("tf5", "linux/arm64", PINS)
    both = git.merged(Lock(), ours, theirs)
    assert both == built(ours, ImageName(TF5, 1), make_image(2), "m/b").with_pins("tf5", "linux/arm64", PINS)


def test_pins_of_different_definitions_merge(git: Git, base: Lock) -> None:
    pins = Pins(sources={"vllm": WheelPin("vllm==2", "2")})
    ours, theirs = (base.with_pins(name, "linux/arm64", pins) for name in ("cpu", "dflash"))
    assert git.merged(base, ours, theirs) == ours.with_pins("dflash", "linux/arm64", pins)


def test_a_rollback_and_a_build_merge(git: Git, base: Lock, make_image: MakeImage) -> None:
    back = base.with_current(ImageName(CPU, 2))
    back = back.with_model("a/small", back.models["a/small"].with_pairing(back.models["a/small"].previous[0]))
    both = git.merged(base, back, built(base, ImageName(CPU, 4), make_image(4), "z/large"))
    assert (both.images[CPU].current, sorted(both.images[CPU].previous)) == (2, [1, 3, 4])
    assert both.models["a/small"].pairing.image == ImageName(CPU, 2)
    assert both.models["z/large"].pairing.image == ImageName(CPU, 4)


def test_a_mark_a_pin_and_a_prune_of_one_image_and_a_build_merge(git: Git, base: Lock, make_image: MakeImage) -> None:
    first = ImageName(CPU, 1)
    image = base.images[CPU].numbers[1]
    ours = base.with_image(first, replace(image, status="bad", note="loops", pinned=True))
    theirs = base.with_image(first, replace(image, pruned="2026-11-22T08:00:00Z"))
    theirs = built(theirs, ImageName(CPU, 4), make_image(4), "a/small")
    both = git.merged(base, ours, theirs).images[CPU]
    assert both.numbers[1] == replace(image, status="bad", note="loops", pinned=True, pruned="2026-11-22T08:00:00Z")
    assert both.current == 4


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_builds_of_different_numbers_are_all_kept(
    tmp_path_factory: pytest.TempPathFactory, make_image: MakeImage, data: DataObject
) -> None:
    """Whatever is there, and whichever of the next numbers each side takes."""
    count = data.draw(st.integers(0, 12))
    base = Lock()
    for number in range(1, count + 1):
        base = built(base, ImageName(CPU, number), make_image(number), data.draw(st.sampled_from(["a", "b", None])))
    taken = data.draw(st.lists(st.integers(count + 1, count + 5), min_size=2, max_size=5, unique=True))
    split = data.draw(st.integers(1, len(taken) - 1))
    branches = []
    for numbers in (taken[:split], taken[split:]):
        branch = base
        for number in sorted(numbers):
            model = data.draw(st.sampled_from(["a", "b", "c", None]))
            branch = built(branch, ImageName(CPU, number), make_image(number), model)
        branches.append(branch)
    ours, theirs = branches
    both = Git(tmp_path_factory.mktemp("git")).merged(base, ours, theirs)
    assert set(both.images[CPU].numbers) == {*range(1, count + 1), *taken}
    assert both.images[CPU].current == ours.images[CPU].current
    assert not list(both.broken_rules())


def test_a_number_that_both_sides_gave_clashes(base: Lock, make_image: MakeImage) -> None:
    ours = built(base, ImageName(CPU, 4), make_image(4), "a/small")
    theirs = built(base, ImageName(CPU, 4), make_image(5), "z/large")
    assert merging.clashes(ours, theirs) == (ImageName(CPU, 4),)
    assert merging.clashes(ours, ours) == ()
    for number in (32, 1):  # a set of these has another order
        ours = ours.with_image(ImageName(CPU, number), make_image(number))
        theirs = theirs.with_image(ImageName(CPU, number), make_image(number + 20))
    assert [name.number for name in merging.clashes(ours, theirs)] == [1, 4, 32]


def test_a_number_that_stands_twice_is_named(base: Lock) -> None:
    text = dump_lock(base)
    block = text.split("\n    3: ", 1)[1].split("\n    2: ", 1)[0]
    text = text.replace(f"\n    3: {block}", f"\n    3: {block}\n    3: {block}", 1)
    with pytest.raises(
        LockError, match=r"images.lock:\d+:5: the key `3` is repeated; the first one is at images.lock:\d+:5"
    ):
        parse_and_explain(text)


def test_another_number_takes_its_pairings_and_pointers_along(full: Lock) -> None:
    moved = merging.renamed(full, ImageName(CPU, 2), 11)
    assert moved.images[CPU].current == 11
    assert moved.images[CPU].next == 12
    assert moved.images[CPU].numbers[11] == full.images[CPU].numbers[2]
    qwen = moved.models["Qwen/Qwen3-0.6B"]
    assert qwen.pairing == replace(full.models["Qwen/Qwen3-0.6B"].pairing, image=ImageName(CPU, 11))
    above = merging.renamed(full, ImageName(CPU, 10), 30).images[CPU]
    assert (above.previous, above.next) == ((30, 1), 31)
    with pytest.raises(ValueError, match="is already taken"):
        merging.renamed(full, ImageName(CPU, 2), 1)


def test_of_different_records_ours_is_kept_and_named(full: Lock) -> None:
    first = ImageName(CPU, 1)
    image = full.images[CPU].numbers[1]
    theirs = full.with_image(first, replace(image, note="other")).with_pins("cpu", "linux/amd64", PINS)
    model = theirs.models["Qwen/Qwen3-0.6B"]
    theirs = theirs.with_model("Qwen/Qwen3-0.6B", replace(model, pairing=replace(model.pairing, status="bad")))
    assert merging.clashes(full, theirs) == ()
    assert list(merging.chosen(Lock(), full, theirs)) == [
        "the pins of cpu on linux/amd64",
        f"the marks of {first}",
        f"the pairing of Qwen/Qwen3-0.6B with {CPU}:2",
    ]
    assert merging.union(Lock(), full, theirs) == full
    assert merging.union(full, full, theirs) == theirs


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_lock_united_with_itself_or_nothing_is_itself(locks: SearchStrategy[Lock], data: DataObject) -> None:
    lock, nothing = data.draw(locks), Lock()
    for base in (lock, nothing):
        assert merging.union(base, lock, lock) == lock
        assert list(merging.chosen(base, lock, lock)) == []
    assert merging.union(nothing, lock, nothing) == merging.union(nothing, nothing, lock) == lock
    assert merging.clashes(lock, lock) == ()
