"""Placeholders such as ``{key}`` in the commands of recipes, by the rules of Python's ``str.format``.

Only plain keys are accepted: ``{a.b}`` and ``{a[0]}`` would reach into objects, ``{}`` and ``{0}`` name nothing. Keys
may contain hyphens. ``{{`` and ``}}`` are literal braces.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_TOKEN = re.compile(r"\{\{|\}\}|\{[^{}]*\}|[{}]")
_FIELD = re.compile(r"\{(?P<key>[A-Za-z_][A-Za-z0-9_-]*)(?:!(?P<conversion>[rsa]))?(?::(?P<spec>[^{}]*))?\}")

_CONVERSIONS: dict[str, Callable[[object], str]] = {"r": repr, "s": str, "a": ascii}

Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class Placeholder:
    """A placeholder ``{key}`` at ``offset`` in its template; ``spec`` follows a colon, as in ``{share:.2f}``."""

    key: str
    written: str
    offset: int
    conversion: str = ""
    spec: str = ""


@dataclass(frozen=True)
class Literal:
    """Literal text from ``offset`` on, its doubled braces already single; or the text of a value, which stands at the
    offset of its placeholder ``source``."""

    text: str
    offset: int
    source: Placeholder | None = None


@dataclass(frozen=True)
class CommandProblem:
    """A problem with the text ``written`` at ``offset`` in a command."""

    written: str
    offset: int
    message: str


Piece = Literal | Placeholder


def parse(template: str) -> tuple[tuple[Piece, ...], tuple[CommandProblem, ...]]:
    """Parses a template into its pieces, in order, and its problems."""
    pieces: list[Piece] = []
    wrong = [CommandProblem("\0", at, "a NUL character") for at, char in enumerate(template) if char == "\0"]
    end = 0
    for match in _TOKEN.finditer(template):
        if match.start() > end:
            pieces.append(Literal(template[end : match.start()], end))
        end = match.end()
        written = match[0]
        if written in {"{{", "}}"}:
            pieces.append(Literal(written[0], match.start()))
            continue
        field = _FIELD.fullmatch(written)
        if field:
            conversion, spec = field["conversion"] or "", field["spec"] or ""
            pieces.append(Placeholder(field["key"], written, match.start(), conversion, spec))
        else:
            wrong.append(CommandProblem(written, match.start(), _why(written)))
    if end < len(template):
        pieces.append(Literal(template[end:], end))
    return tuple(pieces), tuple(wrong)


def _why(written: str) -> str:
    inner = written.strip("{}")
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*\s*[.\[].*", inner, re.DOTALL):
        return f"`{_short(written)}`: a placeholder is a plain key, without `.` or `[…]`"
    if len(written) > 1 and re.fullmatch(r"\s*\d*\s*", inner):
        return f"`{_short(written)}`: a placeholder names a key, such as {{port}}"
    return f"`{_short(written)}` is no placeholder; braces that are meant as such are doubled: {{{{ and }}}}"


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:39] + "…"


def filled(pieces: tuple[Piece, ...], values: Mapping[str, Scalar]) -> tuple[Piece, ...]:
    """``pieces`` with the text of its value in place of each placeholder that ``values`` has a fitting one for."""
    return tuple(_literal(piece, values) if isinstance(piece, Placeholder) else piece for piece in pieces)


def _literal(piece: Placeholder, values: Mapping[str, Scalar]) -> Piece:
    try:
        return Literal(text_of(piece, values[piece.key]), piece.offset, piece)
    except (KeyError, ValueError):
        return piece


def text_of(placeholder: Placeholder, value: Scalar) -> str:
    """The text that replaces a placeholder: what ``str.format`` makes of the value, ``True`` and ``None`` included.

    Raises ValueError where the value does not take the placeholder's format.
    """
    if value is None:
        value = str(value)
    if placeholder.conversion:
        value = _CONVERSIONS[placeholder.conversion](value)
    elif placeholder.spec and isinstance(value, str):
        value = _number(value)
    return format(value, placeholder.spec)


def _number(text: str) -> str | int | float:
    """The number that ``text`` spells, or else ``text``: values from the command line are text, and formats such as
    ``.2f`` need a number."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def keys(pieces: tuple[Piece, ...]) -> tuple[str, ...]:
    """The keys of a template, each once, in order."""
    return tuple(dict.fromkeys(piece.key for piece in pieces if isinstance(piece, Placeholder)))
