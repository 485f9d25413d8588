"""Typographic characters that a word processor or a forum substituted for the ones typed: curly quotes, long dashes,
bullets, special spaces. Each is reported with its correction. They are allowed in prose: comments, descriptions, quoted
text.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.definitions.recipes import outline

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from builder.definitions.recipes.outline import RecipeLine

_DOUBLE = "“”„‟″«»"
_SINGLE = "‘’‚‛′´"  # noqa: RUF001
_LONG_DASHES = "–—―"  # noqa: RUF001
_HYPHENS = "‐‑‒−"  # noqa: RUF001
_BULLETS = "•◦‣▪▫●○·∙⁃*"  # noqa: RUF001
_SPACES = "\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000"
_INVISIBLE = "\u00ad\u200b-\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff"

_BULLET = re.compile(rf"[ \t{_SPACES}]*(?P<bullet>[{_BULLETS}{_LONG_DASHES}{_HYPHENS}])(?=[ \t{_SPACES}])")
_INDENTATION = re.compile(r"(?P<blank>[ \t]*)\S")
_SUSPECT = re.compile(
    rf"(?P<double>[{_DOUBLE}])|(?P<single>[{_SINGLE}])|(?P<dashes>[{_LONG_DASHES}{_HYPHENS}]+)"
    rf"|(?P<space>[{_SPACES}])|(?P<invisible>[{_INVISIBLE}])"
)
_OPTION = re.compile(r"-*[A-Za-z][A-Za-z0-9_.-]*")
# Quoted text that does not look like JSON, where typographic characters are allowed.
_QUOTED = re.compile(r"""(?<![^\s=:,(\[{])(?:'(?!\s*[{\[])[^']*'|"(?!\s*[{\[])(?:[^"\\]|\\.)*")""")
_TRAILING_COMMENT = re.compile(r"\s#.*")
_PROSE = frozenset({"name", "description"})
_COMMAND = "command"


@dataclass(frozen=True)
class Correction:
    """A correction of ``length`` characters at ``column`` (from 0) of line ``number`` (from 1), with the message that
    reports it."""

    number: int
    column: int
    length: int
    replacement: str
    message: str


def find(text: str, keys: Collection[str]) -> Iterator[Correction]:
    """All corrections of a recipe's text, from top to bottom. ``keys`` are the valid keys of a recipe."""
    for line in outline.lines(text, keys):
        if line.is_comment or line.is_blank:
            continue
        yield from _tabs(line)
        if line.key in _PROSE:
            yield from _wrapping_quotes(line)
        else:
            yield from _in_line(line)


def _tabs(line: RecipeLine) -> Iterator[Correction]:
    indentation = _INDENTATION.match(line.text)
    blank = indentation["blank"] if indentation else ""
    # In a block of text, what follows the block's own indentation is part of the text.
    if "\t" in blank and not (line.key == _COMMAND and blank.startswith(" ")):
        for column, char in enumerate(blank):
            if char == "\t":
                yield Correction(line.number, column, 1, "  ", "a tab in the indentation: YAML takes spaces only")


def _in_line(line: RecipeLine) -> Iterator[Correction]:
    spared = [match.span() for match in _QUOTED.finditer(line.text)]
    comment = next((c for c in _TRAILING_COMMENT.finditer(line.text) if not _within(c.start(), spared)), None)
    if comment:
        spared.append((comment.start() + 1, len(line.text)))
    bullet = None if line.key == _COMMAND else _BULLET.match(line.text)
    if bullet:
        char = bullet["bullet"]
        message = f"{_named(char)}: an item of a list begins with `- `"
        yield Correction(line.number, bullet.start("bullet"), 1, "-", message)
    for match in _SUSPECT.finditer(line.text):
        if _within(match.start(), spared) or (bullet and match.start() < bullet.end()):
            continue
        if match["dashes"]:
            yield from _dashes(line, match)
        elif not (match["single"] and line.key != _COMMAND and _is_apostrophe(line.text, match.start())):
            yield _character(line, match.start())


def _within(at: int, spans: list[tuple[int, int]]) -> bool:
    return any(start <= at < end for start, end in spans)


def _is_apostrophe(text: str, at: int) -> bool:
    return text[max(at - 1, 0) : at].isalpha() and text[at + 1 : at + 2].isalpha()


def _wrapping_quotes(line: RecipeLine) -> Iterator[Correction]:
    """Corrects quotes around a whole name or description, which YAML would take for a part of it."""
    value = line.text.partition(":")[2].strip() if line.is_key else ""
    if len(value) > 1 and value[0] in _DOUBLE + _SINGLE and value[-1] in _DOUBLE + _SINGLE:
        for column in (line.text.index(value), line.text.index(value) + len(value) - 1):
            yield _character(line, column)


def _character(line: RecipeLine, column: int) -> Correction:
    char = line.text[column]
    if char in _DOUBLE + _SINGLE:
        replacement = '"' if char in _DOUBLE else "'"
        message = f"{_named(char)}: the straight {replacement} is meant"
    elif re.match(f"[{_SPACES}]", char):
        replacement, message = " ", f"{_named(char)}: an ordinary space is meant"
    else:
        replacement, message = "", f"{_named(char)}: nothing is meant to be here"
    return Correction(line.number, column, 1, replacement, message)


def _dashes(line: RecipeLine, match: re.Match[str]) -> Iterator[Correction]:
    """Corrects a dash to `--` before a word, to `-` before one or two letters (-tp), and to `-` everywhere else."""
    start, dashes = match.start(), match[0]
    option = _OPTION.match(line.text, match.end())
    before = re.sub(f"[{_INVISIBLE}]+$", "", line.text[:start])[-1:]
    begins = not before or before.isspace() or before in "'\""
    if not (option and begins):
        for column, char in enumerate(dashes, start):
            yield Correction(line.number, column, 1, "-", f"{_named(char)}: the hyphen `-` is meant")
        return
    name = option[0].lstrip("-")
    short = len(name.partition(".")[0]) <= 2
    replacement = "-" if short and len(dashes) == 1 else "--"
    typed = option[0][: len(option[0]) - len(name)]
    message = f"{_named(dashes[0])}: `{replacement}{name}` is meant"
    yield Correction(line.number, start, len(dashes) + len(typed), replacement, message)


def _named(char: str) -> str:
    name = unicodedata.name(char, "").lower()
    shown = f"`{char}` " if char.isprintable() and not char.isspace() else ""
    return f"{shown}({f'U+{ord(char):04X}'}{f', {name}' if name else ''})".strip()
