"""What moves when a pointer moves."""

from __future__ import annotations

import pytest

from builder.lock.model import ImageName, Lock, Model, Pairing, Repository
from builder.lock.reading import parse
from builder.lock.text import dump

CPU = "vllm-node-cpu"


def test_rolling_back_twice_returns() -> None:
    repository = Repository(current=3, previous=(2, 1))
    back = repository.with_current(2)
    assert (back.current, back.previous) == (2, (3, 1))
    assert back.with_current(3) == repository
    assert repository.with_current(3) is repository


def test_a_first_current_has_none_before_it() -> None:
    assert Repository().with_current(1) == Repository(current=1)


def test_a_model_keeps_each_image_it_was_paired_with_once() -> None:
    first, second = Pairing(ImageName(CPU, 1), status="good"), Pairing(ImageName(CPU, 2))
    moved = Model(first).with_pairing(second)
    assert moved == Model(second, (first,))
    assert moved.with_pairing(first) == Model(first, (second,))
    marked = Pairing(ImageName(CPU, 2), status="bad")
    assert moved.with_pairing(marked) == Model(marked, (first,))


def test_what_is_asked_of_a_lock(full: Lock) -> None:
    assert full.models_on(ImageName(CPU, 2)) == ("Qwen/Qwen3-0.6B",)
    assert full.models_on(ImageName(CPU, 1)) == ()
    assert full.image(ImageName(CPU, 3)) is None
    assert full.image(ImageName("nowhere", 1)) is None
    assert full.pins_of("cpu", "linux/arm64").base is None


def test_an_image_goes_with_all_that_pointed_back_at_it(full: Lock) -> None:
    left = full.without_image(ImageName(CPU, 10))
    assert list(left.images[CPU].numbers) == [1, 2]
    assert (left.images[CPU].next, left.images[CPU].previous) == (12, (1,))
    assert [str(pairing.image) for pairing in left.models["Qwen/Qwen3-0.6B"].previous] == [f"{CPU}:1"]
    assert parse(dump(left)) == left


@pytest.mark.parametrize("name", [ImageName(CPU, 2), ImageName("localhost:5000/vllm-node-tf5", 1)])
def test_an_image_in_use_does_not_go(full: Lock, name: ImageName) -> None:
    with pytest.raises(ValueError, match=f"{name} is in use"):
        full.without_image(name)
