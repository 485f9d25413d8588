"""Lines of a recipe that have lost their indentation: settings and parts of the command at the left margin."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from builder.definitions.recipes import outline

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from builder.definitions.recipes.outline import RecipeLine

# The keys whose values are blocks of indented lines.
_MAPPINGS = frozenset({"defaults", "env"})
_COMMAND = "command"
_ENTRY = re.compile(r"(?P<name>[^\s:#'\"-][^:#]*?)\s*:(?:\s|$)")
STEP = "  "


@dataclass(frozen=True)
class LostIndentation:
    """Lines of one block that lost their indentation, by number, with the message that reports them."""

    numbers: tuple[int, ...]
    message: str


def find(text: str, keys: Collection[str]) -> Iterator[LostIndentation]:
    """The blocks that lost their indentation. ``keys`` are the valid keys of a recipe."""
    for key, block in groupby(outline.lines(text, keys), lambda line: line.key):
        head, *rest = block
        if key in _MAPPINGS and not _value(head):
            yield from _lost_entries(head, rest, keys)
        elif key == _COMMAND and (not _value(head) or _value(head)[0] in "|>"):
            yield from _lost_command(head, rest)


def _value(head: RecipeLine) -> str:
    return head.text.partition(":")[2].partition(" #")[0].strip()


def _lost_entries(head: RecipeLine, rest: list[RecipeLine], keys: Collection[str]) -> Iterator[LostIndentation]:
    lost = []
    for line in rest:
        entry = _ENTRY.match(line.text)
        if entry and not difflib.get_close_matches(entry["name"], keys, n=1, cutoff=0.8):
            lost.append((line.number, entry["name"]))
    if lost:
        names = ", ".join(f"`{name}`" for _, name in lost)
        they = "they belong" if len(lost) > 1 else "it belongs"
        message = f"{names}: the indentation is lost; {they} to `{head.key}` (line {head.number}), two spaces in"
        yield LostIndentation(tuple(number for number, _ in lost), message)


def _lost_command(head: RecipeLine, rest: list[RecipeLine]) -> Iterator[LostIndentation]:
    written = [line.number for line in rest if not line.is_blank and not line.is_comment]
    # Comments at the margin end the block, which does no harm after the last line of the command.
    inside = [line for line in rest if (written and line.number < written[-1]) or line.number in written]
    lost = [line.number for line in inside if not line.is_blank and line.text[0] not in " \t"]
    if lost:
        which = f"lines {lost[0]} to {lost[-1]}" if len(lost) > 1 else f"line {lost[0]}"
        they = "they belong" if len(lost) > 1 else "it belongs"
        message = f"the indentation of {which} is lost; {they} to `{head.key}` (line {head.number}), two spaces in"
        yield LostIndentation(tuple(lost), message)
