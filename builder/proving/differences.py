"""Differences of two texts: side by side, and in words that are the same wherever the difference is the same."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# A difference of more parts, or longer ones, is shown and not put into words.
_MOST_EDITS, _LONGEST_EDIT = 3, 80
_MOST_LINES, _LONGEST_BLOCK = 200, 600
# The beginning of what stands for a prompt or an answer where the template or the parser gave none.
REFUSED = "refused: "
_PIECES = re.compile(r"\w+|\W")


def side_by_side(before: str, now: str, longest: int = 400) -> str:
    """Two texts where they begin to differ, one below the other."""
    start = common(before, now)
    begin = max(0, before.rfind("\n", 0, start) + 1, start - longest // 4)
    return f"  before: {cut(before[begin:], longest)}\n  now:    {cut(now[begin:], longest)}"


def difference(before: str, now: str) -> str:
    """The difference of two texts in words, which are the same for the same difference: `one newline more at the end`.
    Empty where too much differs to say it in words."""
    if now.startswith(REFUSED) and not before.startswith(REFUSED):
        return now  # the same reason wherever it is given, whatever was there
    edits = dict.fromkeys(_edits(before, now))
    if not 0 < len(edits) <= _MOST_EDITS or any(len(part) > _LONGEST_EDIT for edit in edits for part in edit):
        return ""
    return "; ".join(map(_in_words, edits))


def _edits(before: str, now: str) -> Iterator[tuple[str, str, str]]:
    """The parts of ``before`` with those that stand in their places now, and where: at the beginning, at the end."""
    start = common(before, now)
    end = common(before[start:][::-1], now[start:][::-1])
    # Whole lines first: a comparison by characters takes the square of their number.
    start, end = before.rfind("\n", 0, start) + 1, max(0, end - 1 - before[::-1][:end][::-1].find("\n")) if end else 0
    old, new = before[start : len(before) - end], now[start : len(now) - end]
    lines_before, lines_now = old.splitlines(keepends=True), new.splitlines(keepends=True)
    if max(len(lines_before), len(lines_now)) > _MOST_LINES:
        yield old, new, ""
        return
    for tag, a, b, c, d in difflib.SequenceMatcher(None, lines_before, lines_now, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        gone, come = "".join(lines_before[a:b]), "".join(lines_now[c:d])
        is_last = b == len(lines_before) and not end
        is_first = a == 0 and not start
        if max(len(gone), len(come)) > _LONGEST_BLOCK:
            yield gone, come, ""
            continue
        old_words, new_words = _PIECES.findall(gone), _PIECES.findall(come)
        for kind, e, f, g, h in difflib.SequenceMatcher(None, old_words, new_words, autojunk=False).get_opcodes():
            if kind != "equal":
                at_end = is_last and f == len(old_words) and h == len(new_words)
                place = "at the end" if at_end else "at the beginning" if is_first and e == 0 and g == 0 else ""
                yield "".join(old_words[e:f]), "".join(new_words[g:h]), place


def _in_words(edit: tuple[str, str, str]) -> str:
    gone, come, place = edit
    if gone and come:
        what = f"{come!r} instead of {gone!r}"
    elif set(gone + come) == {"\n"}:
        count = len(gone + come)
        what = f"{'one newline' if count == 1 else f'{count} newlines'} {'less' if gone else 'more'}"
    else:
        what = f"{(gone or come)!r} {'less' if gone else 'more'}"
    return f"{what} {place}".strip()


def cut(text: str, longest: int) -> str:
    """A text as Python writes it, no more than ``longest`` characters of it."""
    return repr(text if len(text) <= longest else f"{text[:longest]}…")


def common(first: str, second: str) -> int:
    """The number of first characters that two texts share."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(first), len(second)))
