"""The outline of a recipe, read line by line: the key that each line belongs to. It need not be valid YAML yet."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_KEY = re.compile(r"(?P<key>[A-Za-z_]+)[ \t]*:(?=[ \t]|$)")
# A key that no recipe of version 1 has, or the end of a document. No line of a shell begins so.
_FOREIGN_KEY = re.compile(r"(?P<key>[A-Za-z_][\w.-]*:(?=[ \t]|$)|(---|\.\.\.)$)")
_COMMAND = "command"
# Invisible characters that may precede a key that was pasted.
_BLANKS = "\u00a0\u200b\u2060\ufeff"


@dataclass(frozen=True)
class RecipeLine:
    """A line of a recipe, its number from 1, the key that it belongs to; ``is_key`` if it is the line with that key."""

    number: int
    text: str
    key: str
    is_key: bool

    @property
    def is_comment(self) -> bool:
        return self.text.lstrip().startswith("#")

    @property
    def is_blank(self) -> bool:
        return not self.text.strip()


def lines(text: str, keys: Collection[str]) -> Iterator[RecipeLine]:
    """The lines of a recipe with the valid ``keys``; those before the first key belong to ``""``. A key that is none of
    them ends the command."""
    key = ""
    for number, line in enumerate(text.split("\n"), 1):
        match = _KEY.match(line.lstrip(_BLANKS))
        is_key = bool(match and match["key"] in keys)
        if match and is_key:
            key = match["key"]
        foreign = _FOREIGN_KEY.match(line) if key == _COMMAND and not is_key else None
        if foreign:
            key = foreign["key"]
        yield RecipeLine(number, line, key, is_key)
