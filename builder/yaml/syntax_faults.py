"""Faults of syntax in our own words, at the line that has them.

libyaml reports where it could not go on, which is often a line or many after the mistake, and in terms of its grammar.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import yaml

_CONFLICT = re.compile(r"(<{7}|\|{7}|={7}|>{7})( |$)")
_KEY = r"[A-Za-z_][\w.-]*"
_ENTRY = re.compile(rf"(?P<indentation> *)(?:- +)?(?P<key>{_KEY}|'[^']*'|\"[^\"]*\") *:(?: +(?P<value>.*))?$")
_NO_SPACE = re.compile(rf"(?P<indentation> *)(?P<key>{_KEY}):(?P<value>[^\s:/].*)$")
_NO_COLON = re.compile(rf"(?P<indentation> *)(?P<key>{_KEY}) +(?P<value>[^\s:#][^:]*)$")
_WORD = re.compile(rf"(?P<indentation> *)(?P<key>{_KEY}) *$")
_LONGEST = 60
# The key of a recipe whose value is a text over several lines.
_TEXT = "command"

# What libyaml reports, and what it means where no line tells more.
_MEANINGS = (
    ("did not find expected comment or line break", "a text begins on the line after its `|` or `>`"),
    ("block sequence entries are not allowed", "a list begins on the line after its key"),
    ("did not find expected '-' indicator", "an item of a list begins with `- `, all at the same column"),
    ("but found another document", "a second document begins here; a file holds one"),
    ("did not find expected <document start>", "the document ended above; a file holds one"),
    ("found undefined alias", "a value cannot begin with `*`; quote it"),
    ("did not find expected alphabetic or numeric character", "a value cannot begin with `*` or `&`; quote it"),
    ("found unknown escape character", "double quotes know no such escape; use single quotes"),
    ("control characters are not allowed", "a control character; remove it"),
    ("mapping keys are not allowed", "a `?` has no place here"),
    ("found duplicate anchor", "an anchor of this name was there before"),
    ("found incompatible YAML document", "another version of YAML than 1.1 or 1.2"),
)


@dataclass(frozen=True)
class SyntaxFault:
    """A fault in line ``line``, column ``column``, both from 1."""

    line: int
    column: int
    message: str


@dataclass(frozen=True)
class _Stop:
    """The message of libyaml, and its places: the line and column, from 0, at which it could not go on (``at``), and
    those at which it began what it was reading (``begun``)."""

    message: str
    at: tuple[int, int]
    begun: tuple[int, int]


def explain(error: yaml.MarkedYAMLError, text: str) -> SyntaxFault:
    """The fault in ``text`` that ``error`` reports."""
    lines = text.splitlines() or [""]
    mark = error.problem_mark or error.context_mark
    begun = error.context_mark or mark
    stop = _Stop(
        error.problem or error.context or "",
        (mark.line, mark.column) if mark else (0, 0),
        (begun.line, begun.column) if begun else (0, 0),
    )
    for explained in (conflict(text), _tab(lines, stop), _by_message(lines, stop)):
        if explained:
            return explained
    meaning = next((meaning for raw, meaning in _MEANINGS if raw in stop.message), "")
    return _fault(stop.at, meaning or f"YAML cannot read on from here: {stop.message}")


def _fault(at: tuple[int, int], message: str) -> SyntaxFault:
    return SyntaxFault(at[0] + 1, at[1] + 1, message)


def conflict(text: str) -> SyntaxFault | None:
    """The marks that git leaves where a merge was not finished, if there are any."""
    if "<<<<<<<" not in text and ">>>>>>>" not in text:
        return None
    lines = text.splitlines()
    marked = [number for number, line in enumerate(lines, 1) if _CONFLICT.match(line)]
    if not any(lines[number - 1][0] in "<>" for number in marked):
        return None
    where = f" (lines {', '.join(map(str, marked))})" if len(marked) > 1 else ""
    return SyntaxFault(marked[0], 1, f"marks of a merge conflict{where}: keep one version, and remove the marks")


def _tab(lines: list[str], stop: _Stop) -> SyntaxFault | None:
    line = _line(lines, stop.at[0])
    blank = line[: len(line) - len(line.lstrip())]
    if "\t" in blank and ("tab" in stop.message or "cannot start any token" in stop.message):
        return SyntaxFault(stop.at[0] + 1, blank.index("\t") + 1, "a tab in the indentation: YAML takes spaces only")
    return None


def _by_message(lines: list[str], stop: _Stop) -> SyntaxFault | None:
    message = stop.message
    if "mapping values are not allowed" in message:
        return _second_colon(lines, stop)
    if "could not find expected ':'" in message:
        return _no_key(lines, stop.begun[0])
    if "found unexpected end of stream" in message:
        return _fault(stop.begun, "the quote that opens here is never closed")
    if "cannot start any token" in message:
        char = _line(lines, stop.at[0])[stop.at[1] : stop.at[1] + 1]
        return _fault(stop.at, f"a value cannot begin with {'a backtick' if char == '`' else f'`{char}`'}; quote it")
    if "did not find expected ','" in message:
        bracket = _line(lines, stop.begun[0])[stop.begun[1] : stop.begun[1] + 1]
        return _fault(stop.begun, f"the `{bracket}` that opens here is not closed, or a comma is missing in it")
    if "alias" in message or "alphabetic or numeric" in message:
        return _fault(stop.begun, next(meaning for raw, meaning in _MEANINGS if raw in message))
    if "did not find expected key" in message:
        return _no_entry(lines, stop)
    if "did not find expected <document start>" in message:
        return _first_line_indented(lines)
    return None


def _second_colon(lines: list[str], stop: _Stop) -> SyntaxFault:
    """A colon where no key can be: in a plain value, or after a line that lacks its own."""
    number, column = stop.at
    line = _line(lines, number)
    above = _above(lines, number)
    head = _head(lines, number)
    if head and head[1] == _TEXT:
        return SyntaxFault(head[0] + 1, 1, f"a text over several lines begins with `|`: `{_TEXT}: |`")
    if above is not None and len(_indentation(lines[above])) <= len(_indentation(line)):
        lacking = _lacking(lines, above)
        if lacking:
            return lacking
    entry = _ENTRY.match(line)
    if entry and entry["value"] and column >= entry.start("value"):
        key = entry["key"]
        advice = f"put it below `{key}: |`" if key == _TEXT else f"quote it: {key}: {_quoted(entry['value'])}"
        return _fault(stop.at, f"the value of `{key}` holds a colon and a space; {advice}")
    if entry and above is not None and (_ENTRY.match(lines[above]) or lines[above].lstrip().startswith("- ")):
        at = (number, len(_indentation(line)))
        return _fault(at, "this line is indented more than the one above, whose value is complete")
    return _fault(stop.at, "a colon and a space inside a value; quote the value")


def _no_key(lines: list[str], number: int) -> SyntaxFault:
    """A line without colon where a key must be."""
    lacking = _lacking(lines, number)
    if lacking:
        return lacking
    line = _line(lines, number)
    return SyntaxFault(number + 1, len(_indentation(line)) + 1, f"no `key: value`: `{_short(line.strip())}`")


def _lacking(lines: list[str], number: int) -> SyntaxFault | None:
    """The fault of a line that lacks its colon, or the space after it."""
    line = lines[number].partition(" #")[0].rstrip()
    match = _NO_SPACE.match(line)
    if match:
        written = f"`{match['key']}: {_short(match['value'])}`"
        return SyntaxFault(number + 1, match.end("key") + 1, f"a space is missing after the colon: {written}")
    match = _NO_COLON.match(line)
    if match:
        written = f"`{match['key']}: {_short(match['value'])}`"
        return SyntaxFault(number + 1, match.end("key") + 1, f"a colon is missing: {written}")
    match = _WORD.match(line)
    if match:
        return SyntaxFault(number + 1, match.end("key") + 1, f"a colon is missing: `{match['key']}:`")
    return None


def _no_entry(lines: list[str], stop: _Stop) -> SyntaxFault:
    """Something in a mapping that is no entry of it."""
    number, column = stop.at
    line = _line(lines, number)
    entry = _ENTRY.match(line)
    if entry and entry["value"] and column > entry.start("value"):
        quote = line[:column].rstrip()[-1:]
        if quote not in {'"', "'"}:
            advice = f"ends where that is closed; quote the value of `{entry['key']}`"
            return _fault(stop.at, f"a value that begins with `{entry['value'][0]}` {advice}")
        unclosed = _unclosed(lines, number, quote)
        if unclosed:
            return unclosed
        return _fault(stop.at, f"text follows the closing quote; quote the whole value of `{entry['key']}`")
    rest = line[column:]
    if rest.startswith("- ") and not any(above.startswith(f"{' ' * column}- ") for above in lines[:number]):
        item = next((above for above in reversed(lines[:number]) if above.lstrip().startswith("- ")), None)
        if item is None or len(_indentation(item)) < column:
            return _fault(stop.at, "an item of a list among keys")
    if rest.startswith(":"):
        return _fault(stop.at, "a key is missing before the colon")
    return _fault(stop.at, "the indentation of this line fits none above it")


def _first_line_indented(lines: list[str]) -> SyntaxFault | None:
    first = next((n for n, line in enumerate(lines) if line.strip() and not line.lstrip().startswith("#")), 0)
    if not lines[first].startswith(" "):
        return None
    return SyntaxFault(first + 1, 1, "this line is indented, and those below that belong beside it are not")


def _unclosed(lines: list[str], number: int, quote: str) -> SyntaxFault | None:
    """The fault of a line above whose value begins with ``quote`` and does not end with it."""
    for n in range(number - 1, -1, -1):
        entry = _ENTRY.match(lines[n].rstrip())
        if entry and (entry["value"] or "").startswith(quote) and entry["value"].count(quote) == 1:
            return _fault((n, entry.start("value")), "the quote that opens here is not closed on its line")
    return None


def _above(lines: list[str], number: int) -> int | None:
    """The number of the nearest line above that is neither blank nor a comment."""
    return next(
        (
            n
            for n in range(min(number, len(lines)) - 1, -1, -1)
            if lines[n].strip() and not lines[n].lstrip().startswith("#")
        ),
        None,
    )


def _head(lines: list[str], number: int) -> tuple[int, str] | None:
    """The key without a value that line ``number``, and others that are no entries, stand below: its line, and it."""
    indentation = len(_indentation(_line(lines, number)))
    for n in range(number - 1, -1, -1):
        entry = _ENTRY.match(lines[n].rstrip())
        if entry and len(_indentation(lines[n])) < indentation:
            return (n, entry["key"]) if not entry["value"] else None
        if entry:
            return None
    return None


def _line(lines: list[str], number: int) -> str:
    return lines[number] if number < len(lines) else ""


def _indentation(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" "))]


def _quoted(value: str) -> str:
    escaped = _short(value.strip()).replace("'", "''")
    return f"'{escaped}'"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
