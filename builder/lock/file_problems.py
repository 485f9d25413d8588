"""Problems of images.lock as a whole, found before its YAML is read, and what to do about each."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from builder.errors import Location, LockError, Problem

if TYPE_CHECKING:
    from collections.abc import Iterable

END = "..."  # the last line of every lock: YAML's own mark for the end of a document
TAKE_BACK = "take back the committed one with `git checkout -- images.lock`, or `builder lock --recover` makes it anew"
CORRECT = "correct these lines, or take back the committed file with `git checkout -- images.lock`"
RENUMBER = "`builder lock --renumber` keeps what both sides built and gives one of each pair the next free number"
MERGE = f"{RENUMBER}; or take one side whole with `git checkout --ours images.lock` or `--theirs`"

_MARKERS = ("<<<<<<<", "|||||||", "=======", ">>>>>>>")
_MARKER_LINE = re.compile(r"^(?:<<<<<<<|\|\|\|\|\|\|\||=======|>>>>>>>)(?: .*|\r?)$", re.MULTILINE)


def lock_error(problems: Iterable[Problem], hint: str) -> LockError:
    """One error that names every problem, in the order of the file."""
    return LockError("\n".join(str(problem) for problem in sorted(set(problems))), hint=hint)


def conflict_marks(text: str) -> list[tuple[int, str]]:
    """The lines that git left of an unfinished merge: the number of each, from 1 on, and its text."""
    if not any(marker in text for marker in _MARKERS):
        return []
    return [(text.count("\n", 0, match.start()) + 1, match[0].strip()) for match in _MARKER_LINE.finditer(text)]


def refuse_cut_off(text: str, file: str) -> None:
    """Raises LockError for an empty file, and for one without its last line: a part of a lock that happens to be valid
    YAML would pass for a lock with fewer images."""
    written = text.rstrip()
    if not written:
        raise lock_error([Problem(Location(file), "the file is empty")], TAKE_BACK)
    if written.rpartition("\n")[2] != END:
        place = Location(file, written.count("\n") + 1)
        raise lock_error([Problem(place, f"cut off here: the last line must be `{END}`")], TAKE_BACK)
