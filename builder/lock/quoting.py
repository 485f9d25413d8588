"""One string as one line of YAML: plain where every reader takes it for that string, in double quotes elsewhere."""

from __future__ import annotations

import re

from builder.errors import UsageError

# Patterns of what stands on one line. Possessive, so that a long line that does not match costs no more than one that
# does. The quoted one is narrower than YAML: only the escapes that are written here.
PLAIN = r"[A-Za-z0-9_/](?:[A-Za-z0-9_./+=<>~!@,;()\[\]*%$^&'\"-]++|:(?! |\Z)| (?![ #:]|\Z))*+"
_NOT_AS_IT_IS = r"\x00-\x1f\"\\\x7f-\xa0\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff"
QUOTED = rf'"(?:[^{_NOT_AS_IT_IS}]++|\\u(?!d[89a-f])[0-9a-f]{{4}}|\\["\\nt])*+"'

LONGEST_KEY = 1000  # in characters; YAML wants the colon within 1024 after the start of a key

_PLAIN = re.compile(PLAIN)
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
    """The string that text matching ``QUOTED`` stands for."""
    inner = quoted[1:-1]
    return _ESCAPE.sub(_unescape, inner) if "\\" in inner else inner


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    return _SHORT.get(character) or f"\\u{ord(character):04x}"


def _unescape(found: re.Match[str]) -> str:
    code, short = found.groups()
    return chr(int(code, 16)) if code else _LONG.get(short, short)
