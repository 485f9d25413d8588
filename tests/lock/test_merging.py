"""Two branches change images.lock, and git merges them: for real, in a repository."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.base.errors import LockError
from builder.lock import merging
from builder.lock.lock_file import parse_and_explain
from builder.lock.model import ImageName, Lock, NumberedImage, Pairing, Pins, WheelPin
from builder.lock.text import dump_lock

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

    def run(self, *arguments: str, code: int = 0) -> str:
        who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "core.autocrlf=false"]
        argv = ["git", *who, *arguments]
        done = subprocess.run(argv, cwd=self.folder, capture_output=True, text=True)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def commit(self, lock: Lock) -> None:
        (self.folder / "images.lock").write_text(dump_lock(lock), encoding="utf-8")
        self.run("add", "--all")
        self.run("commit", "--quiet", "--message=x")

    def merged(self, base: Lock, ours: Lock, theirs: Lock, code: int = 0) -> str:
        """The file after a merge of two branches; ``code`` 1 where a conflict is expected."""
        self.commit(base)
        self.run("checkout", "--quiet", "-b", "theirs")
        self.commit(theirs)
        self.run("checkout", "--quiet", "-b", "ours", "main")
        self.commit(ours)
        self.run("merge", "--quiet", "--no-edit", "theirs", code=code)
        return (self.folder / "images.lock").read_text(encoding="utf-8")


@pytest.fixture
def git(tmp_path: Path) -> Git:
    return Git(tmp_path)


def built(lock: Lock, name: ImageName, image: NumberedImage, model: str | None = None) -> Lock:
    """``lock`` after a build: a number more, current, and paired where a model is named."""
    lock = lock.with_image(name, image)
    lock = lock.with_repository(name.repository, lock.images[name.repository].with_current(name.number))
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


def test_different_repositories_merge(git: Git, base: Lock, make_image: MakeImage) -> None:
    def one(lock: Lock) -> Lock:
        return built(lock, ImageName(CPU, 4), make_image(4), "a/small")

    def other(lock: Lock) -> Lock:
        return built(lock, ImageName(TF5, 4), make_image(54), "z/large")

    assert parse_and_explain(git.merged(base, one(base), other(base))) == one(other(base))


def united(text: str) -> Lock:
    """All that the sides of a conflict record."""
    ours, theirs = merging.locks(text, "images.lock")
    return merging.union(ours, theirs)


@pytest.mark.parametrize("model", ["a/small", "z/large", "m/new", None])
def test_different_numbers_of_one_repository_are_both_kept(
    git: Git, base: Lock, make_image: MakeImage, model: str
) -> None:
    """Also for one model: the higher number is the later one."""
    ours = built(base, ImageName(CPU, 4), make_image(4), "m/other")
    theirs = built(base, ImageName(CPU, 5), make_image(5), model)
    text = git.merged(base, ours, theirs, code=1)
    assert merging.locks(text, "images.lock") == (ours, theirs)
    both = united(text)
    assert sorted(both.images[CPU].numbers) == [1, 2, 3, 4, 5]
    assert (both.images[CPU].current, both.images[CPU].previous) == (5, (4, 3, 2, 1))
    assert both.models["m/other"].pairing.image == ImageName(CPU, 4)
    if model:
        assert both.models[model].pairing.image == ImageName(CPU, 5)


def test_several_numbers_of_one_repository_each_are_all_kept(git: Git, base: Lock, make_image: MakeImage) -> None:
    ours, theirs = base, base
    for number in (4, 6, 8, 10):
        ours = built(ours, ImageName(CPU, number), make_image(number), "a/small")
    for number in (5, 7, 9):
        theirs = built(theirs, ImageName(CPU, number), make_image(number), f"m/{number}")
    both = united(git.merged(base, ours, theirs, code=1))
    assert sorted(both.images[CPU].numbers) == list(range(1, 11))
    assert both.images[CPU].current == 10


def test_first_numbers_of_two_definitions_are_both_kept(git: Git, make_image: MakeImage) -> None:
    ours = built(Lock(), ImageName(CPU, 1), make_image(1), "m/a").with_pins("cpu", "linux/amd64", PINS)
    theirs = built(Lock(), ImageName(TF5, 1), make_image(2), "m/b").with_pins("tf5", "linux/arm64", PINS)
    both = united(git.merged(Lock(), ours, theirs, code=1))
    assert both == built(ours, ImageName(TF5, 1), make_image(2), "m/b").with_pins("tf5", "linux/arm64", PINS)


def test_pins_of_different_definitions_merge(git: Git, base: Lock) -> None:
    pins = Pins(sources={"vllm": WheelPin("vllm==2", "2")})
    ours, theirs = (base.with_pins(name, "linux/arm64", pins) for name in ("cpu", "dflash"))
    assert parse_and_explain(git.merged(base, ours, theirs)) == ours.with_pins("dflash", "linux/arm64", pins)


def test_a_rollback_and_a_build_merge(git: Git, base: Lock, make_image: MakeImage) -> None:
    back = base.with_repository(CPU, base.images[CPU].with_current(2))
    back = back.with_model("a/small", back.models["a/small"].with_pairing(back.models["a/small"].previous[0]))
    built_on = built(base, ImageName(CPU, 4), make_image(4), "a/small")
    both = parse_and_explain(git.merged(base, back, built_on))
    assert (both.images[CPU].current, both.images[CPU].previous) == (4, (2, 3, 1))
    assert [p.image.number for p in both.models["a/small"].previous] == [2, 3, 1]


def test_a_mark_a_pin_and_a_prune_of_one_image_and_a_build_merge(git: Git, base: Lock, make_image: MakeImage) -> None:
    first = ImageName(CPU, 1)
    image = base.images[CPU].numbers[1]
    ours = base.with_image(first, replace(image, status="bad", note="loops", pinned=True))
    theirs = base.with_image(first, replace(image, pruned="2026-11-22T08:00:00Z"))
    theirs = built(theirs, ImageName(CPU, 4), make_image(4), "a/small")
    merged = parse_and_explain(git.merged(base, ours, theirs)).images[CPU].numbers[1]
    assert merged == replace(image, status="bad", note="loops", pinned=True, pruned="2026-11-22T08:00:00Z")


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
    folder = tmp_path_factory.mktemp("git")
    assert united(Git(folder).merged(base, ours, theirs, code=1)) == merging.union(ours, theirs)


def test_one_number_that_two_branches_gave_is_named_with_both_places(
    git: Git, base: Lock, make_image: MakeImage
) -> None:
    ours = built(base, ImageName(CPU, 4), make_image(4, built="2026-11-21T10:00:00Z"), "a/small")
    theirs = built(base, ImageName(CPU, 4), make_image(5, built="2026-11-21T11:00:00Z"), "a/small")
    text = git.merged(base, ours, theirs, code=1)
    with pytest.raises(LockError) as raised:
        parse_and_explain(text)
    lines = text.split("\n")
    places = [
        f"images.lock:{1 + next(n for n, line in enumerate(lines) if stamp in line)}:9" for stamp in ("T10:", "T11:")
    ]
    problem = f"{places[0]}: {CPU}:4 is given here, and to another image in {places[1]}"
    assert problem in raised.value.message.split("\n")
    assert "git conflict marker `<<<<<<< HEAD`" in raised.value.message
    assert "builder lock --renumber" in raised.value.hint
    assert merging.locks(text, "images.lock") == (ours, theirs)


def test_both_sides_are_read_from_a_conflict_in_a_file_that_both_added(git: Git, make_image: MakeImage) -> None:
    ours = built(Lock(), ImageName(CPU, 1), make_image(1), "a/b")
    theirs = built(Lock(), ImageName(TF5, 1), make_image(2), "c/d")
    (git.folder / "other").write_text("x")
    git.run("add", "other")
    git.run("commit", "--quiet", "--message=x")
    git.run("checkout", "--quiet", "-b", "theirs")
    git.commit(theirs)
    git.run("checkout", "--quiet", "main")
    git.commit(ours)
    git.run("-c", "merge.conflictStyle=diff3", "merge", "--quiet", "theirs", code=1)
    assert merging.locks((git.folder / "images.lock").read_text(), "images.lock") == (ours, theirs)


def test_a_number_that_stands_twice_without_markers(base: Lock, make_image: MakeImage) -> None:
    ours = built(base, ImageName(CPU, 4), make_image(4), "a/small")
    theirs = built(base, ImageName(CPU, 4), make_image(5), "z/large")
    after = f"\n\n  {TF5}:"
    block = dump_lock(theirs).split("\n      4:\n", 1)[1].split(after, 1)[0]
    text = dump_lock(ours).replace(after, f"\n\n      4:\n{block}{after}", 1)
    first, second = (n for n, line in enumerate(text.split("\n"), 1) if line == "      4:")
    with pytest.raises(LockError) as raised:
        parse_and_explain(text)
    assert raised.value.message == f"images.lock:{second}:7: `4` stands twice, first in images.lock:{first}:7"
    assert "--renumber" in raised.value.hint
    one, other = merging.locks(text, "images.lock")
    assert one == ours
    assert other.images[CPU].numbers[4] == theirs.images[CPU].numbers[4]


@pytest.mark.parametrize(
    "text",
    [
        "<<<<<<< ours\nversion: 1\n",
        "=======\nversion: 1\n...\n",
        "<<<<<<< ours\n>>>>>>> theirs\nversion: 1\n...\n",
        "version: 1\nimages:\n  x:\n    next: [\n...\n",
    ],
)
def test_damage_that_no_merge_leaves_is_an_error(text: str) -> None:
    with pytest.raises(LockError):
        merging.locks(text, "images.lock")


def test_a_file_is_lost_unless_it_can_be_repaired(base: Lock, make_image: MakeImage) -> None:
    text = dump_lock(base)
    for content, lost in [
        (text, False),
        (text.replace("version: 1", "version: 2"), False),
        (f"<<<<<<< ours\n{text}", False),
        (text[: len(text) // 2], True),
        ("", True),
        (text.replace("built: 2026", "built: MMXX"), True),
    ]:
        assert merging.is_lost(content.encode(), "images.lock") == lost
    assert merging.is_lost(b"\xff\xfe", "images.lock")


def test_another_number_takes_its_pairings_and_pointers_along(full: Lock) -> None:
    moved = merging.renamed(full, ImageName(CPU, 2), 11)
    assert moved.images[CPU].current == 11
    assert moved.images[CPU].next == 12
    assert moved.images[CPU].numbers[11] == full.images[CPU].numbers[2]
    qwen = moved.models["Qwen/Qwen3-0.6B"]
    assert qwen.pairing == replace(full.models["Qwen/Qwen3-0.6B"].pairing, image=ImageName(CPU, 11))
    assert merging.renamed(full, ImageName(CPU, 10), 30).images[CPU].previous == (30, 1)
    with pytest.raises(ValueError, match="is given already"):
        merging.renamed(full, ImageName(CPU, 2), 1)


def test_of_different_records_ours_is_kept_and_named(full: Lock) -> None:
    first = ImageName(CPU, 1)
    image = full.images[CPU].numbers[1]
    theirs = full.with_image(first, replace(image, note="other")).with_pins("cpu", "linux/amd64", Pins())
    model = theirs.models["Qwen/Qwen3-0.6B"]
    theirs = theirs.with_model("Qwen/Qwen3-0.6B", replace(model, pairing=replace(model.pairing, status="bad")))
    assert merging.clashes(full, theirs) == ()
    assert list(merging.chosen(full, theirs)) == [
        "the pins of cpu on linux/amd64",
        f"the marks of {first}",
        f"the pairing of Qwen/Qwen3-0.6B with {CPU}:2",
    ]
    assert merging.union(full, theirs) == full


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_lock_united_with_itself_or_nothing_is_itself(locks: SearchStrategy[Lock], data: DataObject) -> None:
    lock = data.draw(locks)
    assert merging.union(lock, lock) == merging.union(lock, Lock()) == merging.union(Lock(), lock) == lock
    assert merging.clashes(lock, lock) == ()
    assert list(merging.chosen(lock, lock)) == []
