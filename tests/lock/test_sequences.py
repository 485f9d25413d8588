"""An order, and the sequences that stand for it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from builder.lock import model


def test_the_latest_has_the_highest() -> None:
    assert model.sequences_of(["c", "a", "b"]) == {"b": 1, "a": 2, "c": 3}
    assert model.sequences_of([]) == {}


@settings(deadline=None)
@given(st.lists(st.integers(), unique=True).map(tuple))
def test_they_make_the_order_again(order: tuple[int, ...]) -> None:
    assert model.latest_first(model.sequences_of(order)) == order


def test_gaps_mean_nothing_and_of_two_with_the_same_the_higher_is_later() -> None:
    assert model.latest_first({1: 7, 2: 90, 3: 7}) == (2, 3, 1)
