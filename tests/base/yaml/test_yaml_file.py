from __future__ import annotations

import pytest

from builder.base import yaml_file
from builder.base.errors import FileProblemsError, Location

BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdefg", "bcdefgh", strict=True)
)
CHAIN = "".join(f"a{n}: &a{n} {'[' * 30}{f'*a{n - 1}' if n else 1}{']' * 30}\n" for n in range(60))
TEXT = "a: 1\nb:\n  - x\n  - {c: y}\n7: z\n"


def test_keys_stay_text_and_dates_too() -> None:
    assert yaml_file.load("7: 2026-11-20\n", "f") == {"7": "2026-11-20"}


def test_aliases_and_merges_mean_what_they_stand_for() -> None:
    text = "a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: [*a, *a]\nd: !!str 1\n"
    both = {"x": 1, "y": 2}
    assert yaml_file.load(text, "f") == {"a": both, "b": {"x": 1, "y": 3}, "c": [both, both], "d": "1"}
    assert yaml_file.load("", "f") is None


def test_every_value_has_a_place() -> None:
    assert yaml_file.locations(TEXT, "f") == {
        (): Location("f", 1, 1),
        ("a",): Location("f", 1, 1),
        ("b",): Location("f", 2, 1),
        ("b", 0): Location("f", 3, 5),
        ("b", 1): Location("f", 4, 5),
        ("b", 1, "c"): Location("f", 4, 6),
        ("7",): Location("f", 5, 1),
    }


def test_what_has_no_place_has_that_of_what_is_around_it() -> None:
    assert yaml_file.location_of(("b", 1, "gone"), TEXT, "f") == Location("f", 4, 5)
    assert yaml_file.location_of((), "", "f") == Location("f", 1, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\n  b: 2\n", "f:2:4: mapping values are not allowed in this context"),
        ("a: 1\na: 2\n", "f:2:1: the key `a` is repeated"),
        ("? [1]\n: 2\n", "f:1:3: a key must be plain text"),
        ("a: 1\nb: ä\x00\n", "f:2:5: the character U+0000 is not allowed in a text file; remove it"),
        ("[" * 100_000, "f:1:64: blocks are nested too deeply"),
        (
            "a: &a [1]\nb: &b [*a]\nc: [*b, *b]\nd: &d [*d]\n",
            "f:4:4: this alias refers to a value that contains the alias",
        ),
        ("a: &a {<<: *a}\n", "f:1:8: this alias refers to a value that contains the alias"),
        (BOMB, "f:1:35: nested aliases expand to too many values"),
        (CHAIN, "f:1:13: blocks are nested too deeply"),
        ("a: {<<: [1]}\n", "f:1:5: `<<` requires a mapping, or a list of mappings"),
        ("a: {<<: {? [b] : c}}\n", "f:1:12: a key must be plain text"),
        (
            "a: !!python/object/apply:os.system [id]\n",
            "f:1:4: the tag `!!python/object/apply:os.system` is not allowed here",
        ),
        ("a: !!binary aGVsbG8=\n", "f:1:4: the tag `!!binary` is not allowed here"),
        ("a: !!int ''\n", "f:1:4: the tag `!!int` is not allowed here; if this is text, quote it"),
        ("a: !!bool x\n", "f:1:4: the tag `!!bool` is not allowed here"),
        ("a: !!timestamp x\n", "f:1:4: the tag `!!timestamp` is not allowed here"),
        ("a: !!set {b}\n", "f:1:4: the tag `!!set` is not allowed here"),
        ("a: =\n", "f:1:4: the tag `!!value` is not allowed here"),
        (f"a: {'9' * 5000}\n", "f:1:4: this number has more than 40 digits"),
        (f"a: {'1:' * 500}1.5\n", "f:1:4: this number has more than 40 digits"),
        ("a: 0x_\n", "f:1:4: `0x_` is not a number that can be used here; if it is text, quote it"),
        ("a: [1, 1.0e+400]\n", "f:1:8: `1.0e+400` is not a number that can be used here"),
        ("a: .nan\n", "f:1:4: `.nan` is not a number that can be used here"),
    ],
)
def test_what_is_not_yaml_is_refused_with_its_location(text: str, message: str) -> None:
    with pytest.raises(FileProblemsError) as caught:
        yaml_file.load(text, "f")
    assert str(caught.value).startswith(message)


def test_the_last_of_two_counts_and_both_are_told() -> None:
    data, (first, second) = yaml_file.load_shared("a: 1\nb:\n  c: x\n  c: 'x'\na: 2\n", "f")
    assert data == {"a": 2, "b": {"c": "x"}}
    assert (first.path, first.line, first.column, first.earlier_line) == (("a",), 5, 1, 1)
    assert not first.same
    assert (second.path, second.line, second.earlier_line, second.same) == (("b", "c"), 4, 3, True)


def test_blocks_are_compared_as_a_whole() -> None:
    for value, same in (("b: c", True), ("b: d", False)):
        (repetition,) = yaml_file.load_shared(f"a:\n- {value}\na:\n- {value if same else 'b: c'}\n", "f")[1]
        assert repetition.same == same


def test_a_key_may_stand_three_times() -> None:
    data, repetitions = yaml_file.load_shared("a: 1\na: 2\na: 1\n", "f")
    assert data == {"a": 1}
    assert [(each.line, each.earlier_line) for each in repetitions] == [(2, 1), (3, 2)]


def test_the_last_place_is_that_of_the_value() -> None:
    text = "a: {b: 1}\na: {b: 2}\n"
    assert str(yaml_file.locations(text, "f")["a", "b"]) == "f:2:5"
    assert str(yaml_file.location_within(text, "f", ("a", "b"), "2", 0)) == "f:2:8"


@pytest.mark.parametrize("header", ["|-", ">-", "| # --x", "&x-y |"])
def test_the_first_line_of_a_block_is_no_part_of_it(header: str) -> None:
    assert str(yaml_file.location_within(f"a: {header}\n  b\n  --c\n", "f", ("a",), "-", 1)) == "f:3:4"


@pytest.mark.parametrize("text", [BOMB, CHAIN, "a: &a {<<: *a}\n", "? [1]\n: 2\n", "a: &a [*a]\n"])
def test_what_is_refused_stays_refused(text: str) -> None:
    with pytest.raises(FileProblemsError):
        yaml_file.load_shared(text, "f")
    with pytest.raises(FileProblemsError, match="is repeated"):
        yaml_file.load("a: 1\na: 1\n", "f")


HEAD = "name: x\n"
TAIL = "mods:\n  - a\n"


def fault(text: str) -> str:
    with pytest.raises(FileProblemsError) as caught:
        yaml_file.load(text, "f")
    (problem,) = caught.value.problems
    return str(problem).removeprefix("f:")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("a: b: c\n", "2:5: mapping values are not allowed in this context"),
        ("container:c\n", "3:1: could not find expected ':', while scanning a simple key that begins in line 2"),
        ("a:\n  b: 1\n\tc: 2\n", "4:1: a tab in the indentation: YAML allows only spaces"),
        ("a:\n\tb: 1\n", "3:1: a tab in the indentation: YAML allows only spaces"),
        ('a: "b\nc: d\n', "6:1: found unexpected end of stream, while scanning a quoted scalar that begins in line 2"),
        ("a: [b, c\n", "3:5: did not find expected ',' or ']', while parsing a flow sequence that begins in line 2"),
        ("a: @b\n", "2:4: found character that cannot start any token"),
        ("a: *b\n", "2:4: found undefined alias"),
        (
            "a:\n    b: 1\n  c: 2\n",
            "4:3: did not find expected key, while parsing a block mapping that begins in line 1",
        ),
        ("---\na: 1\n", "2:1: but found another document, expected a single document"),
    ],
)
def test_a_fault_has_the_message_and_the_place_of_libyaml(lines: str, expected: str) -> None:
    assert fault(f"{HEAD}{lines}{TAIL}").startswith(expected)


def test_a_first_line_that_is_indented() -> None:
    assert fault("# why\n a: 1\nb: 2\n") == "3:1: did not find expected <document start>"
