"""Texts in tokens, and those of two texts side by side."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_HEREDOC = re.compile(r"<<-?\s*(?P<quote>['\"]?)(?P<word>\w+)(?P=quote)")
_TITLE = re.compile(r"<<-?\s*['\"]?\w+['\"]?\n# (.+)$", re.MULTILINE)
# Comments, arguments, and the stage that a mod with a script gets belong to the instruction that follows.
_LEADING = re.compile(r"\s*(?:#.*)?$|ARG\s|FROM \0below\0 AS \0mod\0$")


def instructions(dockerfile: str) -> list[str]:
    """The instructions of a Dockerfile, each with the lines in front of it that belong to it; joined, they are the
    text."""
    tokens, current, end = [], "", ""
    for line in dockerfile.splitlines(keepends=True):
        is_leading = not end and not current.endswith("\\\n") and is_leading_line(line)
        current += line
        if end:
            end = "" if line.strip() == end else end
        elif heredoc := (None if is_leading else _HEREDOC.search(line)):
            end = heredoc["word"]
        if not is_leading and not end and not line.rstrip("\n").endswith("\\"):
            tokens.append(current)
            current = ""
    return [*tokens, current] if current else tokens


def is_leading_line(line: str) -> bool:
    """True for a line that belongs to the instruction that follows."""
    return bool(_LEADING.match(line.rstrip("\n")))


def title(instruction: str) -> str:
    """The comment with which the script of an instruction begins; empty where it has none."""
    comment = _TITLE.search(instruction)
    return comment[1] if comment else ""


def pairs(old: Sequence[str], new: Sequence[str], key: Callable[[str], str] = str) -> Iterator[tuple[str, str]]:
    """Yields the tokens of two texts in their order: two with the same ``key`` together, each of the others with an
    empty one."""
    matcher = SequenceMatcher(None, list(map(key, old)), list(map(key, new)), autojunk=False)
    for tag, old_start, old_end, new_start, new_end in matcher.get_opcodes():
        if tag == "equal":
            yield from zip(old[old_start:old_end], new[new_start:new_end], strict=True)
        else:
            yield from ((token, "") for token in old[old_start:old_end])
            yield from (("", token) for token in new[new_start:new_end])
