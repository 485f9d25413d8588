"""Which part of a recipe each of its lines belongs to, read line by line: it need not be YAML yet."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_KEY = re.compile(r"(?P<key>[A-Za-z_]+)[ \t]*:(?=[ \t]|$)")
# What may stand before a key that was pasted, and cannot be seen.
_BLANKS = "\u00a0\u200b\u2060\ufeff"


@dataclass(frozen=True)
class RecipeLine:
    """A line, its number from 1, the key of the recipe that it belongs to, and whether the key itself stands in it."""

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
    """The lines of a recipe whose keys are ``keys``; those before the first one belong to ``""``."""
    key = ""
    for number, line in enumerate(text.split("\n"), 1):
        found = _KEY.match(line.lstrip(_BLANKS))
        is_key = bool(found and found["key"] in keys)
        if found and is_key:
            key = found["key"]
        yield RecipeLine(number, line, key, is_key)
