"""What differs between the images that a pointer moves between, and which it does not move to."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from builder.base.errors import ConflictError
from builder.lock.model import Adoption, ImageName, Lock, Pairing, Version
from builder.numbers import pointers
from builder.numbers.pointers import PointerMove
from tests import locks
from tests.commands import kept
from tests.plan.test_making import cpu_plan
from tests.workspaces import NO_ENGINE

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("gone", [1, 2])
def test_where_a_build_directory_is_gone_nothing_is_said_to_differ(tmp_path: Path, gone: int) -> None:
    numbers = kept.start(tmp_path)
    first, second = numbers.add(cpu_plan()), numbers.add(cpu_plan("linux/arm64"))
    moves = [PointerMove("cpu", False, second, first)]
    assert pointers.differences(numbers.project, numbers.lock, moves)
    shutil.rmtree(numbers.folder((first, second)[gone - 1]))
    assert pointers.differences(numbers.project, numbers.lock, moves) == ()


def test_a_bad_image_is_refused_with_what_takes_the_mark_away() -> None:
    name, first = ImageName("small", 1), ImageName("small", 2)
    lock = Lock().with_image(name, locks.numbered()).with_image(first, locks.numbered())
    paired = lock.with_pairing("Org/M", Pairing(name, status="bad", note="loops")).with_pairing("Org/M", Pairing(first))
    moves = [PointerMove("small", False, first, name), PointerMove("Org/M", True, first, name)]
    pointers.refuse_bad(lock, moves)
    with pytest.raises(ConflictError, match="Org/M on small:1 is marked bad: loops$") as refused:
        pointers.refuse_bad(paired, moves)
    assert refused.value.hint == "`--force` uses the image anyway"
    bad = paired.with_image(name, replace(locks.numbered(), status="bad"))
    with pytest.raises(ConflictError, match="small:1 is marked bad$") as refused:
        pointers.refuse_bad(bad, moves)
    assert refused.value.hint.endswith("; `builder mark small:1 unmarked` removes the mark")
    unmarked = bad.with_image(name, replace(locks.numbered(), status="good"))
    with pytest.raises(ConflictError, match="Org/M on small:1 is marked bad: loops$"):
        pointers.require_allowed(NO_ENGINE, unmarked, moves, force=False)


def test_a_pointer_is_moved_to_another_image_only() -> None:
    one, two = ImageName("small", 1), ImageName("small", 2)
    lock = locks.one_after_the_other("1" * 40)
    assert pointers.moves_to(lock, "small", two, is_model=False) == ()
    assert pointers.moves_to(lock, "small", one, is_model=False) == (PointerMove("small", False, two, one),)
    assert pointers.moves_to(lock, "Org/New", one, is_model=True) == (PointerMove("Org/New", True, None, one),)
    assert not PointerMove("small", False, two, one).back


def test_a_model_gets_its_earlier_pairing_with_an_image_back() -> None:
    one, two, three = (ImageName("small", number) for number in (1, 2, 3))
    earlier = Pairing(one, "recipes/old.yaml", "1" * 40, "good", "fast")
    now = Pairing(two, "recipes/new.yaml", "2" * 40, "bad", "loops", "2026-11-20T12:00:00Z")
    lock = Lock().with_pairing("Org/M", earlier).with_pairing("Org/M", now)
    model = lock.models["Org/M"]
    assert pointers.pairing_with(model, one) == earlier
    assert pointers.pairing_with(model, two) == now
    assert pointers.pairing_with(model, three) == Pairing(three, "recipes/new.yaml", "2" * 40)
    assert pointers.pairing_with(None, three) == Pairing(three)
    moved = pointers.apply_moves(lock, [PointerMove("Org/M", True, two, one)])
    assert moved.models["Org/M"].pairing == earlier


def test_models_that_stay_on_the_image_that_is_left_are_named() -> None:
    one, two = ImageName("small", 1), ImageName("small", 2)
    lock = locks.one_after_the_other("1" * 40).with_pairing("Org/A", Pairing(two)).with_pairing("Org/B", Pairing(one))
    assert pointers.staying(lock, [PointerMove("small", False, two, one)]) == ("Org/A", locks.MODEL)
    assert pointers.staying(lock, [PointerMove("Org/A", True, two, one)]) == ()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"status": "bad", "pruned": "2026-11-21T12:00:00Z"}, "is marked bad"),
        ({"pruned": "2026-11-21T12:00:00Z"}, "was pruned on 2026-11-21"),
        ({}, "contains no known vLLM"),
        ({"status": "good"}, ""),
        ({"versions": {"vllm": Version("0.30.0")}}, ""),
    ],
)
def test_a_step_back_skips_an_image_for_a_reason(changes: dict[str, Any], reason: str) -> None:
    one, two = ImageName("small", 1), ImageName("small", 2)
    with_vllm = replace(locks.numbered(), versions={"vllm": Version("0.31.0")})
    lock = Lock().with_image(one, replace(locks.numbered(), **changes)).with_image(two, with_vllm)
    assert pointers.unfit_reason(lock, one, two) == reason
    assert pointers.unfit_reason(lock, ImageName("small", 9), two) == "is not in images.lock"


def test_only_of_an_adopted_image_versions_stand_for_the_inputs(tmp_path: Path) -> None:
    numbers = kept.start(tmp_path)
    one, two = ImageName("small", 1), ImageName("small", 2)
    same, old, new = Version("2.13.0"), Version("0.30.0"), Version("0.31.0")
    older = replace(locks.numbered(), versions={"torch": same, "vllm": old, "flashinfer": Version("0.6")})
    newer = replace(locks.numbered(), versions={"torch": same, "vllm": new})
    moves = [PointerMove("small", False, one, two), PointerMove("Org/M", True, one, two)]
    for first, second in ((True, False), (False, True), (True, True)):
        lock = Lock()
        for name, image, adopted in ((one, older, first), (two, newer, second)):
            lock = lock.with_image(name, replace(image, adopted=Adoption("x:1") if adopted else None))
        lines = ("vllm: 0.30.0 → 0.31.0", "flashinfer: 0.6 → not known")
        assert pointers.differences(numbers.project, lock, moves) == lines
    built = Lock().with_image(one, older).with_image(two, newer)
    assert pointers.differences(numbers.project, built, moves) == ()
    assert pointers.differences(numbers.project, built, [PointerMove("small", False, None, two)]) == ()
