"""Moves of pointers, and questions to a lock."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from builder.lock.model import (
    Adoption,
    ImageName,
    Lock,
    Model,
    NumberedImage,
    Pairing,
    Repository,
    Version,
    WheelPin,
    identity,
    shown_versions,
)

if TYPE_CHECKING:
    from collections.abc import Callable


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


def test_a_pairing_is_the_first_of_a_model_or_takes_the_place_of_the_one_before() -> None:
    first, second = Pairing(ImageName(CPU, 1)), Pairing(ImageName(CPU, 2))
    lock = Lock().with_pairing("a/small", first).with_pairing("z/large", first)
    assert lock.models == {"a/small": Model(first), "z/large": Model(first)}
    assert lock.with_pairing("a/small", second).models == {"a/small": Model(second, (first,)), "z/large": Model(first)}


def test_a_lock_is_searched(full: Lock) -> None:
    assert full.models_on(ImageName(CPU, 2)) == ("Qwen/Qwen3-0.6B",)
    assert full.models_on(ImageName(CPU, 1)) == ()
    assert full.image(ImageName(CPU, 3)) is None
    assert full.image(ImageName("nowhere", 1)) is None
    assert full.history(CPU, is_model=False) == tuple(ImageName(CPU, number) for number in (2, 10, 1))
    assert full.history("nowhere", is_model=False) == ()
    assert full.pins_of("cpu", "linux/arm64").base is None


@pytest.mark.parametrize("version", ["0.32.0", "0.32.0+cpu"])
def test_a_wheel_is_known_by_its_public_version(version: str) -> None:
    assert identity(WheelPin("vllm==0.32.0", version)) == "0.32.0"


def test_a_number_given_raises_the_next(make_image: Callable[..., NumberedImage]) -> None:
    first = Repository().with_number(3, make_image(3))
    assert first.next == 4
    assert first.with_number(1, make_image(1)).next == 4
    assert Lock().with_image(ImageName(CPU, 3), make_image(3)) == Lock(images={CPU: first})


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        ({"definition": "", "input_hash": ""}, "lacks `definition`"),
        ({"definition": ""}, "lacks `definition`"),
        ({"input_hash": ""}, "lacks `inputs`"),
    ],
)
def test_an_image_that_was_built_here_names_its_definition_and_inputs(
    make_image: Callable[..., NumberedImage], missing: dict[str, Any], named: str
) -> None:
    image = make_image(1)
    adopted = replace(image, adopted=Adoption("here:1"), **missing)
    assert list(Repository().with_number(1, replace(image, **missing)).broken_rules(CPU)) == [f"{CPU}:1 {named}"]
    assert not list(Repository().with_number(1, adopted).broken_rules(CPU))


def test_the_next_number_is_above_all_others(make_image: Callable[..., NumberedImage]) -> None:
    repository = Repository().with_number(1, make_image(1)).with_number(3, make_image(3))
    assert list(repository.broken_rules(CPU)) == []
    assert list(replace(repository, next=3).broken_rules(CPU)) == [f"`next` of {CPU} is 3, which is already taken"]


def test_a_step_back_is_undone_by_the_same_step() -> None:
    repository = Repository(current=4, previous=(3, 2, 1))
    back = repository.stepped_back_to(2)
    assert (back.current, back.previous) == (2, (3, 4, 1))
    assert back.stepped_back_to(4) == repository
    pairings = [Pairing(ImageName(CPU, n)) for n in (3, 2, 1)]
    model = Model(pairings[0], tuple(pairings[1:]))
    there = model.stepped_back_to(ImageName(CPU, 1))
    assert there == Model(pairings[2], (pairings[1], pairings[0]))
    assert there.stepped_back_to(ImageName(CPU, 3)) == model
    with pytest.raises(ValueError, match="1 was not current before"):
        Repository().stepped_back_to(1)


def test_a_pairing_that_begins_to_serve_gets_the_time() -> None:
    now, earlier = "2026-11-24T12:00:00Z", "2026-11-20T12:00:00Z"
    first, second = Pairing(ImageName(CPU, 1), since=earlier), Pairing(ImageName(CPU, 2))
    served = Lock().with_pairing("Org/M", first)

    def since(lock: Lock, before: Lock) -> str:
        return lock.dated(before, now).models["Org/M"].pairing.since

    assert since(served.with_pairing("Org/M", second), served) == now
    assert since(Lock().with_pairing("Org/M", second), Lock()) == now
    # It came with the time since when it serves, or serves as it did.
    assert since(served, Lock()) == earlier
    assert since(served, served) == earlier
    assert since(Lock().with_pairing("Org/M", second), Lock().with_pairing("Org/M", second)) == ""
    # It served before, and does so anew.
    moved = served.with_pairing("Org/M", Pairing(ImageName(CPU, 2), since=now))
    assert since(moved.with_model("Org/M", moved.models["Org/M"].stepped_back_to(first.image)), moved) == now


def test_a_number_has_the_first_digits_of_a_commit_or_those_in_the_version() -> None:
    versions = {"vllm": Version("0.30.1.dev1+g0123456", "0123456789" * 4), "flashinfer": Version("0.6", "ab" * 20)}
    shown = {"vllm": Version("0.30.1.dev1+g0123456", "0123456"), "flashinfer": Version("0.6", "ab" * 6)}
    assert shown_versions(versions) == shown
    assert shown_versions(shown) == shown
    assert shown_versions({"vllm": Version("0.30")}) == {"vllm": Version("0.30")}
