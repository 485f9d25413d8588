from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.definitions import shell
from builder.definitions.shell import Placeholder, Scalar

VALUES: dict[str, Scalar] = {"port": 8000, "max-num-seqs": 16, "share": 0.5, "name": "a b", "none": None, "flag": True}
FRAGMENTS = st.sampled_from(
    [
        "{port}",
        "{none}",
        "{flag}",
        "{max-num-seqs}",
        "{share:.2f}",
        "{name!r}",
        "{name:>6}",
        "{{",
        "}}",
        "{",
        "}",
        "x",
        " ",
        "'",
        '"',
        "\\",
    ]
)


def rendered(template: str) -> str:
    units, _ = shell.parse_placeholders(template)
    return shell.text_of_units(shell.filled(units, VALUES))


@given(st.lists(FRAGMENTS, max_size=12).map("".join))
def test_it_is_python_format_and_refuses_what_python_refuses(template: str) -> None:
    try:
        expected: str | None = template.format(**VALUES)
    except (ValueError, KeyError, IndexError):
        expected = None
    units, wrong = shell.parse_placeholders(template)
    if expected is None:
        assert wrong or set(shell.keys(units)) - VALUES.keys()  # "{", "x" and "}" make a key that has no value
    elif not wrong:
        assert rendered(template) == expected


def test_every_character_and_placeholder_has_its_offset() -> None:
    units, wrong = shell.parse_placeholders("a {port} {{b}} {max-num-seqs}")
    assert not wrong
    port, seqs = Placeholder("port", "{port}", 2), Placeholder("max-num-seqs", "{max-num-seqs}", 15)
    assert [(unit.item, unit.offset) for unit in units] == [
        *(("a", 0), (" ", 1), (port, 2), (" ", 8)),
        *(("{", 9), ("b", 11), ("}", 12), (" ", 14), (seqs, 15)),
    ]
    assert shell.keys(units) == ("port", "max-num-seqs")


@pytest.mark.parametrize(
    ("template", "offset", "message"),
    [
        ("x {port.real}", 2, "`{port.real}`: a placeholder is a plain key, without `.` or `[…]`"),
        ("{env[HOME]}", 0, "`{env[HOME]}`: a placeholder is a plain key, without `.` or `[…]`"),
        (
            "{port.__class__.__mro__}",
            0,
            "`{port.__class__.__mro__}`: a placeholder is a plain key, without `.` or `[…]`",
        ),
        ("x {}", 2, "`{}`: a placeholder names a key, such as {port}"),
        ("x {0}", 2, "`{0}`: a placeholder names a key, such as {port}"),
        ('x {"a": 1}', 2, '`{"a": 1}` is no placeholder; braces that are meant as such are doubled: {{ and }}'),
        ("x {port", 2, "`{` is no placeholder; braces that are meant as such are doubled: {{ and }}"),
        ("x} y", 1, "`}` is no placeholder; braces that are meant as such are doubled: {{ and }}"),
        ("a\0b", 1, "a NUL character"),
    ],
)
def test_what_is_no_placeholder_is_refused_with_the_reason(template: str, offset: int, message: str) -> None:
    _, wrong = shell.parse_placeholders(template)
    assert [(problem.offset, problem.message) for problem in wrong] == [(offset, message)]


def test_everything_wrong_is_told_at_once() -> None:
    _, wrong = shell.parse_placeholders('{} {a.b} {"n": 3}')
    assert [problem.offset for problem in wrong] == [0, 3, 9]


def test_a_format_takes_the_number_that_text_spells() -> None:
    (share,) = shell.placeholders(shell.parse_placeholders("{share:.2f}")[0])
    assert shell.text_of(share, "0.755") == "0.76"
    with pytest.raises(ValueError, match="format code 'f'"):
        shell.text_of(share, "half")


def test_values_take_the_place_of_their_placeholders_at_its_offset() -> None:
    units, _ = shell.parse_placeholders("a {port} {none}{name}")
    port, none, name = shell.placeholders(units)
    filled = list(shell.filled(units, {"port": 8000, "none": None}))
    assert shell.text_of_units(filled) == "a 8000 None\0"
    assert [(unit.offset, unit.source) for unit in filled[2:]] == [
        *4 * [(2, port)],
        (8, None),
        *4 * [(9, none)],
        (15, None),
    ]
    assert filled[-1].item == name
