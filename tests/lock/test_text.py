"""The layout of images.lock: golden, stable, kind to git merge."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.base.yaml_file import load
from builder.lock import closures
from builder.lock.model import (
    Lock,
    LockedPackage,
    NumberedImage,
    Pins,
    PythonPin,
)
from builder.lock.text import comments_of, dump_lock
from tests import locks as locks_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from hypothesis.strategies import DataObject, SearchStrategy


if TYPE_CHECKING:
    MakeImage = Callable[..., NumberedImage]


def test_golden(full: Lock, golden: str) -> None:
    assert dump_lock(full) == golden


def test_an_empty_lock_says_only_its_version() -> None:
    lines = [line for line in dump_lock(Lock()).splitlines() if not line.startswith("#")]
    assert lines == ["version: 2", "", "..."]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_round_trip(locks: SearchStrategy[Lock], data: DataObject) -> None:
    lock = data.draw(locks)
    text = dump_lock(lock)
    assert locks_of.reread(text, lock) == lock
    assert dump_lock(locks_of.reread(text, lock)) == text


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_any_yaml_reader_reads_it(locks: SearchStrategy[Lock], data: DataObject) -> None:
    lock = data.draw(locks)
    loaded = load(dump_lock(lock), "x")
    assert set(loaded.get("models", {})) == set(lock.models)
    for name, repository in lock.images.items():
        numbers = {key: value for key, value in loaded["images"][name].items() if key.isdecimal()}
        assert {int(n): i.get("note", "") for n, i in numbers.items()} == {
            number: image.note for number, image in repository.numbers.items()
        }


def test_order_does_not_depend_on_who_was_first(full: Lock, golden: str) -> None:
    def reversed_(block: dict[Any, Any]) -> dict[Any, Any]:
        return dict(reversed(block.items()))

    images = {name: replace(r, numbers=reversed_(r.numbers)) for name, r in reversed(full.images.items())}
    turned = Lock({d: reversed_(p) for d, p in reversed(full.pins.items())}, images, reversed_(full.models))
    assert dump_lock(turned) == golden


def test_packages_are_a_file_that_pip_reads_sorted_by_name() -> None:
    packages = (LockedPackage("torch", "2.13", ()), LockedPackage("numpy", "2.4.1", ("a" * 64,)))
    pin = PythonPin(("torch from https://wheels.host/cpu",), "", packages)
    lock = Lock().with_pins("cpu", "linux/amd64", Pins(python=pin))
    ((definition, platform, part, pin_of_file),) = closures.of_lock(lock)
    assert closures.path_of(definition, platform, part) == "dockerfiles/cpu/packages.linux-amd64.txt"
    digest, content = closures.file_of(definition, platform, part, pin_of_file)
    lines = [line for line in content.decode().splitlines() if not line.startswith("#")]
    wheels = "--extra-index-url https://wheels.host/cpu"
    assert lines == [wheels, f"numpy==2.4.1 --hash=sha256:{'a' * 64}", "torch==2.13"]
    assert f"    packages: {{file: {digest}," in dump_lock(lock)


def test_a_line_is_at_most_120_columns_wide(golden: str) -> None:
    assert max(map(len, golden.splitlines())) <= 120


COMMENTED = [
    ("  Qwen/Qwen3-0.6B:\n", "  # ask Ann before it moves\n  Qwen/Qwen3-0.6B:\n"),
    ("    latest: {now: 1}\n", "    latest: {now: 1} # since the fair\n"),
    ("\nimages:\n", "\n# our images\nimages:\n"),
    ("    1: {status: good", "    # the one of the demo\n    1: {status: good"),
    ("version: 2\n", "# two of us work here\nversion: 2\n"),
    ("      size: 4990000000, vllm", "      # inside\n      size: 4990000000, vllm"),
]


@pytest.mark.parametrize(("old", "new"), COMMENTED)
def test_a_comment_stays_with_its_key(golden: str, full: Lock, old: str, new: str) -> None:
    text = golden.replace(old, new, 1)
    assert text != golden
    lock = locks_of.reread(text, full)
    assert lock == full
    written = dump_lock(lock, comments_of(text))
    comment = next(part for part in new.split("\n") if "#" in part).partition("#")[2]
    assert written.count(f"#{comment}") == 1
    if "inside" not in new:
        assert written == text
    assert dump_lock(locks_of.reread(written, full), comments_of(written)) == written


def test_a_comment_goes_with_its_key(golden: str, full: Lock) -> None:
    text = golden.replace("    10: {", "    # crashes\n    10: {", 1)
    assert "crashes" in dump_lock(full, comments_of(text))
    assert "crashes" not in dump_lock(Lock(models={}), comments_of(text))


def test_a_sharp_in_a_text_is_no_comment(golden: str) -> None:
    assert "# on 8 cores" in golden
    assert comments_of(golden) == {}
