"""The layout that ``builder.lock.text`` writes, read line by line.

Nearly every file that is read was written by this program, and importing a YAML parser and running it takes several
times as long as all the rest. Whatever is not exactly that layout is left to ``builder.lock.nodes``, which reads any
YAML and names what is wrong; where both can read a text, they read the same.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeAlias

from builder.lock.file_problems import END
from builder.lock.quoting import LONGEST_KEY, PLAIN, QUOTED, unquote

if TYPE_CHECKING:
    from collections.abc import Iterator

Data: TypeAlias = "dict[str, Data] | list[Data] | str | None"

_LINE = re.compile(rf"((?:  )*)(- )?(?:({PLAIN}|{QUOTED}):(?: (.+))?|(?<=- )(.+))")
_COMMENT = re.compile(" *#[ -~]*")  # others may hold what YAML takes for a line break
_PLAIN = re.compile(PLAIN)
_QUOTED = re.compile(QUOTED)


class _OtherLayoutError(Exception):
    """A line that this program did not write."""


def read_layout(text: str) -> Data:
    """What ``text`` says, every scalar as text and None for ``null``; None alone where the layout is another one."""
    try:
        return _read(text.rstrip().removesuffix(END)) or None
    except _OtherLayoutError:
        return None


def _read(text: str) -> dict[str, Data]:
    root: dict[str, Data] = {}
    around: list[Any] = [root]  # the block or list that is open at each depth
    opened: str | None = None  # the key whose value begins on the next line
    for indent, dash, key, value, item in _lines(text):
        depth = len(indent) // 2
        if opened is not None:
            around.append([] if dash else {})
            around[-2][opened] = around[-1]
            opened = None
        else:
            del around[depth + 1 :]
        if depth != len(around) - 1 or isinstance(around[depth], list) != bool(dash):
            raise _OtherLayoutError
        if item:
            around[depth].append(_value(item))
            continue
        if dash:
            around.append({})
            around[depth].append(around[-1])
        name = _name(key, around[-1])
        if value:
            around[-1][name] = _value(value)
        else:
            opened = name
    if opened is not None:
        raise _OtherLayoutError
    return root


def _lines(text: str) -> Iterator[tuple[str, ...]]:
    for line in text.split("\n"):
        if line and not _COMMENT.fullmatch(line):
            match = _LINE.fullmatch(line)
            if not match:
                raise _OtherLayoutError
            yield match.groups()


def _name(key: str, block: dict[str, Data]) -> str:
    name = unquote(key) if key[0] == '"' else key
    if name in block or len(key) > LONGEST_KEY:
        raise _OtherLayoutError
    return name


def _value(text: str) -> Data:
    if _PLAIN.fullmatch(text) and text not in ("Null", "NULL"):
        return text if text != "null" else None
    if _QUOTED.fullmatch(text):
        return unquote(text)
    if text == "[]":
        return []
    if text == "{}":
        return {}
    raise _OtherLayoutError
