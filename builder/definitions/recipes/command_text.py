"""Changes to the text of a command before it is read: what launchers of recipes take out of it.

By the rules of the community's launcher (run-recipe.py of spark-vllm-docker), which edits the text of a script: an
option may stand anywhere in it, and lines that hold nothing else afterwards go with it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from builder.definitions.recipes.arguments import BACKEND
from builder.definitions.recipes.placeholders import Literal, Piece, Placeholder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# The option with its value, on the same line or on the next; a placeholder is one NUL character.
_BACKEND = re.compile(
    rf"(?<![\w-]){BACKEND}(?:=|(?:[ \t]|\\?\n)+)"
    r"""(?:'[^'\n]*'|"[^"\n]*"|[^\s'"\\;&|()<>#-][^\s'"\\;&|()<>]*)"""
)
_EMPTY_LINE = re.compile(r"^[ \t\r]*\\?[ \t\r]*\n", re.MULTILINE)


def without_backend(pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """``pieces`` without the option that says what joins several machines."""
    return _without(pieces, _BACKEND)


def without_empty_lines(pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """``pieces`` without lines that hold nothing, or nothing but a backslash: they would end a command that goes on."""
    return _without(pieces, _EMPTY_LINE)


def _without(pieces: tuple[Piece, ...], pattern: re.Pattern[str]) -> tuple[Piece, ...]:
    text = "".join("\0" if isinstance(piece, Placeholder) else piece.text for piece in pieces)
    spans = [match.span() for match in pattern.finditer(text)]
    return tuple(_kept(pieces, spans)) if spans else pieces


def _kept(pieces: tuple[Piece, ...], spans: Sequence[tuple[int, int]]) -> Iterator[Piece]:
    """The parts of ``pieces`` outside ``spans`` of their text."""
    at = 0
    for piece in pieces:
        length = 1 if isinstance(piece, Placeholder) else len(piece.text)
        inside = [(start - at, end - at) for start, end in spans if start < at + length and end > at]
        at += length
        if not inside:
            yield piece
        elif isinstance(piece, Literal):
            begin = 0
            for start, end in (*inside, (length, length)):
                if start > begin:
                    moved = 0 if piece.source else begin
                    yield replace(piece, text=piece.text[begin:start], offset=piece.offset + moved)
                begin = end
