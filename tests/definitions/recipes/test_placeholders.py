from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.definitions import shell
from builder.definitions.shell import LiteralPiece, Placeholder, Scalar

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
    pieces, _ = shell.parse_placeholders(template)
    return "".join(
        piece.text if isinstance(piece, LiteralPiece) else shell.text_of(piece, VALUES[piece.key]) for piece in pieces
    )


@given(st.lists(FRAGMENTS, max_size=12).map("".join))
def test_it_is_python_format_and_refuses_what_python_refuses(template: str) -> None:
    try:
        expected: str | None = template.format(**VALUES)
    except (ValueError, KeyError, IndexError):
        expected = None
    pieces, wrong = shell.parse_placeholders(template)
    if expected is None:
        assert wrong or set(shell.keys(pieces)) - VALUES.keys()  # "{", "x" and "}" make a key that has no value
    elif not wrong:
        assert rendered(template) == expected


def test_every_piece_has_its_offset() -> None:
    pieces, wrong = shell.parse_placeholders("a {port} {{b}} {max-num-seqs}")
    assert not wrong
    assert pieces == (
        LiteralPiece("a ", 0),
        Placeholder("port", "{port}", 2),
        LiteralPiece(" ", 8),
        LiteralPiece("{", 9),
        LiteralPiece("b", 11),
        LiteralPiece("}", 12),
        LiteralPiece(" ", 14),
        Placeholder("max-num-seqs", "{max-num-seqs}", 15),
    )
    assert shell.keys(pieces) == ("port", "max-num-seqs")


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
    (piece,), _ = shell.parse_placeholders("{share:.2f}")
    assert isinstance(piece, Placeholder)
    assert shell.text_of(piece, "0.755") == "0.76"
    with pytest.raises(ValueError, match="format code 'f'"):
        shell.text_of(piece, "half")


def test_values_take_the_place_of_their_placeholders_at_its_offset() -> None:
    pieces, _ = shell.parse_placeholders("a {port} {none}{name}")
    port, name = (piece for piece in pieces if isinstance(piece, Placeholder) and piece.key in {"port", "name"})
    assert shell.filled(pieces, {"port": 8000, "none": None}) == (
        LiteralPiece("a ", 0),
        LiteralPiece("8000", 2, port),
        LiteralPiece(" ", 8),
        LiteralPiece("None", 9, pieces[3] if isinstance(pieces[3], Placeholder) else None),
        name,
    )
