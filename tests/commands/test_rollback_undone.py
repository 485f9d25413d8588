"""For any history of a repository and a model: a rollback is its own undo."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.commands.rollback import RollbackSubject, planned_moves
from builder.lock.model import ImageName, Lock, Model, NumberedImage, Pairing, Repository, Status
from builder.numbers.pointers import apply_moves

pytestmark = pytest.mark.slow

REPO, MODEL = "vllm-node-tf5", "Org/M"
ALONE = [RollbackSubject("", REPO, None), RollbackSubject("", None, MODEL)]
TOGETHER = RollbackSubject("", REPO, MODEL)
STATUSES = st.sampled_from(get_args(Status))


def image(status: Status) -> NumberedImage:
    return NumberedImage("2026-11-20T12:00:00Z", "tf5", "linux/arm64", "sha256:f", "sha256:i", 1, status)


@st.composite
def ways(draw: st.DrawFn, numbers: list[int], usable: set[int]) -> list[int]:
    """The numbers that a pointer was at, newest first: a usable one, with another usable one behind it."""
    now, back = draw(st.permutations(sorted(usable)))[:2]
    others = draw(st.permutations([number for number in numbers if number not in (now, back)]))
    behind = others[: draw(st.integers(0, len(others)))]
    behind.insert(draw(st.integers(0, len(behind))), back)
    return [now, *behind]


@st.composite
def histories(draw: st.DrawFn, together: bool) -> Lock:
    """A repository and a model that were here and there before, side by side where they are to go back ``together``."""
    count = draw(st.integers(2, 6))
    numbers = {number: image(draw(STATUSES)) for number in range(1, count + 1)}
    for number in draw(st.permutations(list(numbers)))[:2]:
        numbers[number] = image("good")
    usable = {number for number, held in numbers.items() if held.status != "bad"}
    current, *previous = draw(ways(list(numbers), usable))
    served = [current, *previous] if together else draw(ways(list(numbers), usable))
    statuses = [numbers[number].status if together else draw(STATUSES) for number in served]
    if not together:
        behind = next(place for place, number in enumerate(served) if place and number in usable)
        statuses[0] = statuses[behind] = "good"
    pairings = [
        Pairing(ImageName(REPO, number), status=status) for number, status in zip(served, statuses, strict=True)
    ]
    held = Repository(count + 1, current, tuple(previous), numbers)
    return Lock(images={REPO: held}, models={MODEL: Model(pairings[0], tuple(pairings[1:]))})


def pointers(lock: Lock) -> tuple[int | None, ImageName]:
    return lock.images[REPO].current, lock.models[MODEL].pairing.image


def rolled_back_twice(lock: Lock, subject: RollbackSubject) -> None:
    there = apply_moves(lock, planned_moves(lock, subject, None))
    assert pointers(there) != pointers(lock)
    assert apply_moves(there, planned_moves(there, subject, None)) == lock


@settings(max_examples=400, deadline=None)
@given(histories(together=False), st.sampled_from(ALONE))
def test_rolled_back_twice_is_as_if_nothing_had_been(lock: Lock, subject: RollbackSubject) -> None:
    rolled_back_twice(lock, subject)


@settings(max_examples=200, deadline=None)
@given(histories(together=True))
def test_a_recipe_rolled_back_twice_is_as_if_nothing_had_been(lock: Lock) -> None:
    rolled_back_twice(lock, TOGETHER)


@given(histories(together=False), st.sampled_from(ALONE), st.data())
def test_going_to_a_number_is_undone_by_going_back(lock: Lock, subject: RollbackSubject, data: st.DataObject) -> None:
    current, paired = pointers(lock)
    here = current if subject.repository else paired.number
    number = data.draw(st.sampled_from([other for other in lock.images[REPO].numbers if other != here]))
    there = apply_moves(lock, planned_moves(lock, subject, number))
    assert pointers(apply_moves(there, planned_moves(there, subject, None))) == pointers(lock)
