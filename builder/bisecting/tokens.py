"""Texts in tokens that can be taken from either of two versions one by one: instructions, hunks, lines."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_HEREDOC = re.compile(r"<<-?\s*(?P<quote>['\"]?)(?P<word>\w+)(?P=quote)")
# What belongs to the instruction that follows: comments, arguments, and the stage that a mod with a script gets.
_LEADING = re.compile(r"\s*(?:#.*)?$|ARG\s|FROM \0below\0 AS \0mod\0$")
_HUNK = re.compile(r"^(?=@@ |diff --git |--- (?!.*\n@@))", re.MULTILINE)


@dataclass(frozen=True)
class Stretch:
    """A part of two texts: the same tokens in both, or what stands in the one where the other has something else.
    ``line`` is where it begins in the newer text, from 1."""

    old: tuple[str, ...]
    new: tuple[str, ...]
    line: int

    @property
    def is_common(self) -> bool:
        return self.old == self.new


def instructions(dockerfile: str) -> list[str]:
    """The instructions of a Dockerfile, each with what is written in front of it; joined, they are the text."""
    tokens, current, end = [], "", ""
    for line in dockerfile.splitlines(keepends=True):
        is_leading = not end and not _continues(current) and bool(_LEADING.match(line.rstrip("\n")))
        current += line
        if end:
            end = "" if line.strip() == end else end
        elif heredoc := (None if is_leading else _HEREDOC.search(line)):
            end = heredoc["word"]
        if not is_leading and not end and not line.rstrip("\n").endswith("\\"):
            tokens.append(current)
            current = ""
    return [*tokens, current] if current else tokens


def _continues(text: str) -> bool:
    return text.endswith("\\\n")


def hunks(patch: str) -> list[str]:
    """The hunks of a patch, and the heads of its files; joined, they are the text."""
    return [token for token in _HUNK.split(patch) if token]


def lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def stretches(old: Sequence[str], new: Sequence[str]) -> Iterator[Stretch]:
    """The stretches of two texts, in their order."""
    line = 1
    for _, old_start, old_end, new_start, new_end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        yield Stretch(tuple(old[old_start:old_end]), tuple(new[new_start:new_end]), line)
        line += sum(token.count("\n") for token in new[new_start:new_end])


def single(stretch: Stretch) -> Iterator[Stretch]:
    """The stretch token by token: each is taken by itself, where as many stand on either side in place of the other."""
    if stretch.is_common:
        yield stretch
        return
    line = stretch.line
    is_replaced = len(stretch.old) == len(stretch.new)
    if not is_replaced:
        yield from (Stretch((token,), (), line) for token in stretch.old)
    for place, token in enumerate(stretch.new):
        yield Stretch((stretch.old[place],) if is_replaced else (), (token,), line)
        line += token.count("\n")
