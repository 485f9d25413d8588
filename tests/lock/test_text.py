"""The layout of images.lock: golden, stable, kind to git merge."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.base.errors import LockError
from builder.base.yaml_file import load
from builder.lock.lock_file import parse_and_explain
from builder.lock.model import (
    ImageName,
    Lock,
    LockedPackage,
    Model,
    NumberedImage,
    Pairing,
    Pins,
    PythonPin,
    Repository,
)
from builder.lock.text import dump_lock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hypothesis.strategies import DataObject, SearchStrategy


if TYPE_CHECKING:
    MakeImage = Callable[..., NumberedImage]


def test_golden(full: Lock, golden: str) -> None:
    assert dump_lock(full) == golden


def test_an_empty_lock_says_only_its_version() -> None:
    lines = [line for line in dump_lock(Lock()).splitlines() if not line.startswith("#")]
    assert lines == ["version: 1", "", "..."]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_round_trip(locks: SearchStrategy[Lock], data: DataObject) -> None:
    lock = data.draw(locks)
    text = dump_lock(lock)
    assert parse_and_explain(text) == lock
    assert dump_lock(parse_and_explain(text)) == text


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_any_yaml_reader_reads_it(locks: SearchStrategy[Lock], data: DataObject) -> None:
    lock = data.draw(locks)
    loaded = load(dump_lock(lock), "x")
    blocks = [image for block in loaded.get("images", {}).values() for image in block["numbers"].values()]
    assert {model for block in blocks for model in block.get("models", {})} == set(lock.models)
    for name, repository in lock.images.items():
        numbers = loaded["images"][name]["numbers"]
        assert {int(n): i.get("note", "") for n, i in numbers.items()} == {
            number: image.note for number, image in repository.numbers.items()
        }


def test_order_does_not_depend_on_who_was_first(full: Lock, golden: str) -> None:
    def reversed_(block: dict[Any, Any]) -> dict[Any, Any]:
        return dict(reversed(block.items()))

    images = {name: replace(r, numbers=reversed_(r.numbers)) for name, r in reversed(full.images.items())}
    turned = Lock({d: reversed_(p) for d, p in reversed(full.pins.items())}, images, reversed_(full.models))
    assert dump_lock(turned) == golden


def test_packages_are_sorted_by_name() -> None:
    packages = (LockedPackage("torch", "2.13", ()), LockedPackage("numpy", "2.4.1", ("a" * 64,)))
    text = dump_lock(Lock().with_pins("cpu", "linux/amd64", Pins(python=PythonPin((), "", packages))))
    assert f'          numpy: 2.4.1 sha256:{"a" * 64}\n          torch: "2.13"\n' in text


def merged(tmp_path: Path, base: Lock, ours: Lock, theirs: Lock) -> str:
    """The file after git merged two branches."""
    for name, lock in {"base": base, "ours": ours, "theirs": theirs}.items():
        (tmp_path / name).write_text(dump_lock(lock))
    command = ["git", "merge-file", "-p", "ours", "base", "theirs"]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout


def built(lock: Lock, repository: str, image: NumberedImage, model: str) -> Lock:
    """``lock`` after a build: the next number, current, and paired."""
    name = ImageName(repository, lock.images.get(repository, Repository()).next)
    lock = lock.with_image(name, image)
    lock = lock.with_repository(repository, lock.images[repository].with_current(name.number))
    return lock.with_model(model, Model(Pairing(name)))


@pytest.fixture
def base(make_image: MakeImage) -> Lock:
    lock = Lock()
    for number in (1, 2):
        lock = built(lock, "vllm-node-cpu", make_image(number), "a/small")
        lock = built(lock, "vllm-node-tf5", make_image(number + 50), "z/large")
    return lock


def test_branches_that_build_different_images_merge(tmp_path: Path, base: Lock, make_image: MakeImage) -> None:
    ours = built(base, "vllm-node-cpu", make_image(3), "a/small")
    both = built(ours, "vllm-node-tf5", make_image(53), "z/large")
    theirs = built(base, "vllm-node-tf5", make_image(53), "z/large")
    assert parse_and_explain(merged(tmp_path, base, ours, theirs)) == both


def test_branches_that_give_one_number_twice_do_not_merge(tmp_path: Path, base: Lock, make_image: MakeImage) -> None:
    ours = built(base, "vllm-node-cpu", make_image(3), "a/small")
    theirs = built(base, "vllm-node-cpu", make_image(4), "a/small")
    text = merged(tmp_path, base, ours, theirs)
    with pytest.raises(LockError, match="git conflict marker `<<<<<<< ours`"):
        parse_and_explain(text)


def test_a_mark_and_a_build_merge(tmp_path: Path, base: Lock, make_image: MakeImage) -> None:
    paired = base.models["z/large"]
    ours = base.with_model("z/large", replace(paired, pairing=replace(paired.pairing, status="good")))
    theirs = built(base, "vllm-node-cpu", make_image(3), "a/small")
    assert parse_and_explain(merged(tmp_path, base, ours, theirs)) == built(
        ours, "vllm-node-cpu", make_image(3), "a/small"
    )
