"""The lines of images.lock as ``builder.lock.text`` writes them: how a string stands on one, and a reader of them.

Nearly every file that is read was written by this program, and importing and running a YAML parser takes several times
as long as all the rest. Any other layout is left to ``builder.lock.yaml_tree``, which reads all YAML and names what is
wrong; where both can read a text, they read the same.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeAlias

from builder.errors import UsageError
from builder.lock.file_problems import END

if TYPE_CHECKING:
    from collections.abc import Iterator

Data: TypeAlias = "dict[str, Data] | list[Data] | str | None"

# Patterns of scalars on one line. Possessive, so that a long line that does not match costs no more than one that does.
# The quoted one is narrower than YAML: it has only the escapes that are written here.
_PLAIN_TEXT = r"[A-Za-z0-9_/](?:[A-Za-z0-9_./+=<>~!@,;()\[\]*%$^&'\"-]++|:(?! |\Z)| (?![ #:]|\Z))*+"
_NOT_AS_IT_IS = r"\x00-\x1f\"\\\x7f-\xa0\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff"
_QUOTED_TEXT = rf'"(?:[^{_NOT_AS_IT_IS}]++|\\u(?!d[89a-f])[0-9a-f]{{4}}|\\["\\nt])*+"'

LONGEST_KEY = 1000  # in characters; YAML wants the colon within 1024 after the start of a key

_LINE = re.compile(rf"((?:  )*)(- )?(?:({_PLAIN_TEXT}|{_QUOTED_TEXT}):(?: (.+))?|(?<=- )(.+))")
_COMMENT = re.compile(" *#[ -~]*")  # others may hold what YAML takes for a line break
_PLAIN = re.compile(_PLAIN_TEXT)
_QUOTED = re.compile(_QUOTED_TEXT)
# What YAML 1.1 (PyYAML) or 1.2 (yq, Go) takes for a number, a date, a truth value or nothing. Times stay plain: they
# are times to those readers and text to this one.
_OTHER_TYPE = re.compile(
    r"[0-9][0-9_]*(?::[0-5]?[0-9])*(?:\.[0-9_]*)?(?:e[-+]?[0-9]+)?|0x[0-9a-f_]+|0o[0-7_]+|0b[01_]+"
    r"|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}|null|true|false|yes|no|on|off|y|n",
    re.IGNORECASE,
)
_ESCAPED = re.compile(f"[{_NOT_AS_IT_IS}]")
_ESCAPE = re.compile(r"\\(?:u(....)|(.))")
_SHORT = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}
_LONG = {"n": "\n", "t": "\t"}
_SURROGATE = re.compile("[\ud800-\udfff]")


def quote(text: str) -> str:
    """``text`` as a YAML scalar on one line. Raises UsageError for what is not Unicode text: bytes that Python could
    not decode in an argument or a file name."""
    if _PLAIN.fullmatch(text) and not _OTHER_TYPE.fullmatch(text):
        return text
    if _SURROGATE.search(text):
        raise UsageError(f"{text!r} is not UTF-8 text, so images.lock cannot hold it", hint="write it in UTF-8")
    return f'"{_ESCAPED.sub(_escape, text)}"'


def unquote(quoted: str) -> str:
    """The string that a scalar in double quotes stands for, as ``quote`` writes it."""
    inner = quoted[1:-1]
    return _ESCAPE.sub(_unescape, inner) if "\\" in inner else inner


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    return _SHORT.get(character) or f"\\u{ord(character):04x}"


def _unescape(match: re.Match[str]) -> str:
    code, short = match.groups()
    return chr(int(code, 16)) if code else _LONG.get(short, short)


class _OtherLayoutError(Exception):
    """A line that this program did not write."""


def read_layout(text: str) -> Data:
    """The data of ``text``, every scalar as text and None for ``null``; None alone where the layout is another one."""
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
