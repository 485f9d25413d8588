"""Recipes that were pasted from a page: the text as its author typed it.

Forums and word processors put curly quotes, long dashes, bullets and special spaces in place of what was typed, and
drop indentation. Prose may hold such characters: comments, descriptions, quoted text. Only what is sure is corrected.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from builder.errors import Location, Problem

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_DOUBLE = "“”„‟″«»"
_SINGLE = "‘’‚‛′´"  # noqa: RUF001
_DASHES = "–—―‐‑‒−"  # noqa: RUF001
_BULLETS = "•◦‣▪▫●○·∙⁃*"  # noqa: RUF001
_SPACES = "\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000"
_INVISIBLE = "\u00ad\u200b-\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff"

_BULLET = re.compile(rf"^(?P<before>[ \t{_SPACES}]*)[{_BULLETS}{_DASHES}](?=[ \t{_SPACES}])")
# Quoted text that does not look like JSON may hold typographic characters, and so may a comment after a value.
_PROSE = r"""(?<![^\s=:,(\[{])(?:'(?!\s*[{\[])[^']*'|"(?!\s*[{\[])(?:[^"\\]|\\.)*")|(?<=\s)#.*"""
_SUSPECT = re.compile(
    rf"(?P<prose>{_PROSE})|(?P<double>[{_DOUBLE}])|(?P<single>[{_SINGLE}])"
    rf"|(?P<dashes>[{_DASHES}]+)(?P<option>-*[A-Za-z][\w.-]*)?|(?P<space>[{_SPACES}])|[{_INVISIBLE}]"
)
_WHOLE_VALUE = re.compile(rf"(?P<key>[^:]*:\s*)(?P<quote>[{_DOUBLE}{_SINGLE}])(?P<value>.*)[{_DOUBLE}{_SINGLE}]\s*$")

# Around a text that was copied with its Markdown.
_FENCE = re.compile(r"(?:```|~~~)[\w-]*\s*")

_KEY = re.compile(r"(?P<key>[A-Za-z_]+)[ \t]*:(?=[ \t]|$)")
# A key that no recipe of version 1 has, or the end of a document. No line of a shell begins so.
_FOREIGN_KEY = re.compile(r"(?P<key>[A-Za-z_][\w.-]*:(?=[ \t]|$)|---$|\.\.\.$)")
_ENTRY = {
    "env": re.compile(r"(?P<name>[A-Z_][A-Z0-9_]*)\s*:\s+\S"),
    "defaults": re.compile(r"(?P<name>[\w-]+)\s*:\s+\S"),
}
_STEP = "  "


@dataclass(frozen=True)
class _Line:
    """A line of a recipe by its index, and the key that it belongs to; ``is_key`` if it is the line with that key."""

    index: int
    text: str
    key: str
    is_key: bool

    @property
    def is_written(self) -> bool:
        """True where there is more than a comment."""
        return bool(self.text.strip()) and not self.text.lstrip().startswith("#")


def as_typed(text: str, keys: Collection[str]) -> str:
    """``text`` with the characters and the indentation that its author typed, line for line; the same text where
    nothing was lost. ``keys`` are the valid keys of a recipe."""
    lines = _lines(_without_fences(text), keys)
    corrected = [_corrected(line) if line.is_written else line.text for line in lines]
    for index in _without_indentation("\n".join(corrected), keys):
        corrected[index] = _STEP + corrected[index]
    return "\n".join(corrected)


def mended(text: str, keys: Collection[str]) -> str:
    """``text`` as it was typed, with the backslashes that pages drop at the ends of a command's lines as well. A line
    within quotes, and one with a comment, stays."""
    text = as_typed(text, keys)
    result = text.split("\n")
    command = ""
    for line, following in pairwise(_lines(text, keys)):
        bare = line.text.rstrip()
        goes_on = line.is_written and not line.is_key and line.key == following.key == "command"
        command += bare if goes_on else ""
        is_whole = not (command.count("'") % 2 or command.count('"') % 2 or re.search(r"\s#", bare))
        if goes_on and is_whole and following.text.lstrip().startswith("-"):
            result[line.index] = bare if bare.endswith("\\") else f"{bare} \\"
    return "\n".join(result)


def problem(text: str, file: str, keys: Collection[str]) -> Problem | None:
    """The one problem of a text that a page changed, at the first place; None where the text is as it was typed."""
    pairs = zip(text.split("\n"), as_typed(text, keys).split("\n"), strict=True)
    line, old, new = next(((n, old, new) for n, (old, new) in enumerate(pairs, 1) if old != new), (0, "", ""))
    if not line:
        return None
    column = next((n for n, (a, b) in enumerate(zip(old, new, strict=False), 1) if a != b), len(new) + 1)
    command = f"builder recipes add --mend {shlex.quote(file)}"
    return Problem(Location(file, line, column), f"this recipe was pasted from a page: `{command}` corrects that")


def _without_fences(text: str) -> str:
    """``text`` with the fences before its first written line and after its last one left empty."""
    lines = text.split("\n")
    for indexes in (range(len(lines)), reversed(range(len(lines)))):
        for index in indexes:
            if _FENCE.fullmatch(lines[index]):
                lines[index] = ""
            elif lines[index].strip():
                break
    return "\n".join(lines)


def _lines(text: str, keys: Collection[str]) -> Iterator[_Line]:
    """The lines of a recipe, which need not be valid YAML; those before the first key belong to ``""``."""
    key = ""
    for index, line in enumerate(text.split("\n")):
        match = _KEY.match(re.sub(f"^[{_SPACES}{_INVISIBLE}]+", "", line))
        is_key = bool(match and match["key"] in keys)
        foreign = _FOREIGN_KEY.match(line) if key == "command" else None
        if (begins := match if is_key else foreign) is not None:
            key = begins["key"]
        yield _Line(index, line, key, is_key)


def _corrected(line: _Line) -> str:
    text = line.text
    blank = text[: len(text) - len(text.lstrip(" \t"))]
    # In a block of text, what follows the block's own indentation is part of the text.
    if "\t" in blank and not (line.key == "command" and blank.startswith(" ")):
        text = blank.replace("\t", _STEP) + text[len(blank) :]
    if line.key in {"name", "description"}:
        whole = _WHOLE_VALUE.match(text) if line.is_key else None
        quote = '"' if whole and whole["quote"] in _DOUBLE else "'"
        return f"{whole['key']}{quote}{whole['value']}{quote}" if whole and quote not in whole["value"] else text
    if line.key != "command":
        text = _BULLET.sub(r"\g<before>-", text)
    return _SUSPECT.sub(lambda match: _meant(match, line.key), text)


def _meant(match: re.Match[str], key: str) -> str:
    """The text that was typed where a page has something else. A dash is ``--`` before a word and ``-`` before one or
    two letters (-tp); everywhere else each dash is a hyphen."""
    before, after = match.string[: match.start()], match.string[match.end() :]
    if match["prose"] or (match["single"] and key != "command" and before[-1:].isalpha() and after[:1].isalpha()):
        return match[0]  # an apostrophe, too
    if match["double"] or match["single"]:
        return '"' if match["double"] else "'"
    if match["dashes"] is None:
        return " " if match["space"] else ""
    dashes, option = match["dashes"], match["option"] or ""
    before = re.sub(f"[{_INVISIBLE}]+$", "", before)[-1:]
    if not option or not (not before or before.isspace() or before in f"'\"{_SINGLE}{_DOUBLE}"):
        return "-" * len(dashes) + option
    name = option.lstrip("-")
    return ("-" if len(name.partition(".")[0]) <= 2 and len(dashes) == 1 else "--") + name


def _without_indentation(text: str, keys: Collection[str]) -> Iterator[int]:
    """The indexes of the lines at the left margin that belong to the key above them, the text of a command and the
    entries of `env` and `defaults`."""
    for key, block in groupby(_lines(text, keys), lambda line: line.key):
        head, *rest = block
        value = head.text.partition(":")[2].partition(" #")[0].strip()
        written = [line for line in rest if line.is_written]
        if key == "command" and written and (not value or value[0] in "|>"):
            # Comments at the margin end the block, which does no harm after the last line of the command.
            inside = (line for line in rest if line.index <= written[-1].index and line.text.strip())
            yield from (line.index for line in inside if line.text[0] not in " \t")
        elif key in _ENTRY and not value:
            entries = [(line, match["name"]) for line in written if (match := _ENTRY[key].match(line.text))]
            # Newer launchers have keys that are not known here: a default is one that the command uses.
            if key == "env" or any(f"{{{name}" in text for _, name in entries):
                yield from (line.index for line, _ in entries)
