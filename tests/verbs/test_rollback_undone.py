"""For any history of a repository and a model: a rollback is its own undo."""

from __future__ import annotations

from typing import get_args

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from builder.errors import NothingToDoError, UsageError
from builder.lock.model import ImageName, Lock, Model, NumberedImage, Pairing, Repository, Status
from builder.pointers import apply
from builder.rollback import Subject, moves

REPO, MODEL = "vllm-node-tf5", "Org/M"
STATUSES = st.sampled_from(get_args(Status))


def image(status: Status) -> NumberedImage:
    return NumberedImage("2026-11-20T12:00:00Z", "tf5", "linux/arm64", "sha256:f", "sha256:i", 1, status)


@st.composite
def histories(draw: st.DrawFn) -> Lock:
    """A repository and a model that were here and there before."""
    count = draw(st.integers(2, 6))
    numbers = {number: image(draw(STATUSES)) for number in range(1, count + 1)}
    current, *previous = draw(st.permutations(list(numbers)))
    together = draw(st.booleans())
    served = [current, *previous] if together else draw(st.permutations(list(numbers)))
    pairings = [Pairing(ImageName(REPO, number), status=draw(STATUSES)) for number in served[: draw(st.integers(1, 6))]]
    held = Repository(count + 1, current, tuple(previous[: draw(st.integers(0, 5))]), numbers)
    return Lock(images={REPO: held}, models={MODEL: Model(pairings[0], tuple(pairings[1:]))})


def pointers(lock: Lock) -> tuple[int | None, ImageName]:
    return lock.images[REPO].current, lock.models[MODEL].pairing.image


def is_bad(lock: Lock, subject: Subject) -> bool:
    """Whether what the subject points at would be passed over on the way back."""
    held, pairing = lock.images[REPO], lock.models[MODEL].pairing
    statuses = [held.numbers[held.current or 0].status] if subject.repository else []
    statuses += [held.numbers[pairing.image.number].status, pairing.status] if subject.model else []
    return "bad" in statuses


@settings(max_examples=500, deadline=None)
@given(histories(), st.sampled_from([Subject("", REPO, None), Subject("", None, MODEL), Subject("", REPO, MODEL)]))
def test_rolled_back_twice_is_as_if_nothing_had_been(lock: Lock, subject: Subject) -> None:
    assume(not is_bad(lock, subject))
    try:
        first = moves(lock, subject, None)
    except (NothingToDoError, UsageError):
        assume(False)
    there = apply(lock, first)
    assert pointers(there) != pointers(lock)
    assert apply(there, moves(there, subject, None)) == lock


@given(histories(), st.sampled_from([Subject("", REPO, None), Subject("", None, MODEL)]), st.integers(1, 6))
def test_going_to_a_number_is_undone_by_going_back(lock: Lock, subject: Subject, number: int) -> None:
    assume(not is_bad(lock, subject))
    try:
        there = apply(lock, moves(lock, subject, number))
    except (NothingToDoError, UsageError):
        assume(False)
    assert pointers(apply(there, moves(there, subject, None))) == pointers(lock)
