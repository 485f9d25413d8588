from __future__ import annotations

import pytest

from builder.base import yaml_file
from builder.base.errors import FileProblemsError
from tests.yaml.test_yaml_file import BOMB, CHAIN


def test_the_last_of_two_counts_and_both_are_told() -> None:
    data, (first, second) = yaml_file.load_shared("a: 1\nb:\n  c: x\n  c: 'x'\na: 2\n", "f")
    assert data == {"a": 2, "b": {"c": "x"}}
    assert (first.path, first.line, first.column, first.earlier_line) == (("a",), 5, 1, 1)
    assert (first.same, first.values) == (False, ("1", "2"))
    assert (second.path, second.line, second.earlier_line, second.same) == (("b", "c"), 4, 3, True)


def test_blocks_are_compared_as_a_whole() -> None:
    same, different = (
        yaml_file.load_shared(f"a: [1, {{b: c}}]\na:\n- 1\n- {value}\n", "f")[1][0] for value in ("b: c", "b: d")
    )
    assert (same.values, different.values, different.same) == (None, None, False)


def test_a_key_may_stand_three_times() -> None:
    data, repetitions = yaml_file.load_shared("a: 1\na: 2\na: 1\n", "f")
    assert data == {"a": 1}
    assert [(each.line, each.earlier_line) for each in repetitions] == [(2, 1), (3, 2)]


def test_the_last_place_is_that_of_the_value() -> None:
    text = "a: {b: 1}\na: {b: 2}\n"
    assert str(yaml_file.locations(text, "f")["a", "b"]) == "f:2:5"
    assert str(yaml_file.location_within(text, "f", ("a", "b"), "2", 0)) == "f:2:8"


@pytest.mark.parametrize("text", [BOMB, CHAIN, "a: &a {<<: *a}\n", "? [1]\n: 2\n", "a: &a [*a]\n"])
def test_what_is_refused_stays_refused(text: str) -> None:
    with pytest.raises(FileProblemsError):
        yaml_file.load_shared(text, "f")
    with pytest.raises(FileProblemsError, match="stands twice"):
        yaml_file.load("a: 1\na: 1\n", "f")
