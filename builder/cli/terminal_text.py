"""Text for the terminal. What comes from a file, a label, a log or a server may hold control characters: they would
move the cursor, set the window's title, or turn the order of the letters round. They are shown and never obeyed.

Every text passes `visible` at the edge, in `output`; only the colours and the bold letters of `styled` pass.
"""

from __future__ import annotations

import json
import re

import click

from builder import redaction

_KEPT = "\n\t"
# Control and format characters (bidirectional marks, invisible joiners), halves of surrogate pairs, line separators.
_SHOWN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})

# What `styled` makes: one of eight colours, bold letters, and the end of both.
_STYLE = re.compile(r"(\x1b\[(?:[01]|3[0-7])m)")
# Colours and intensity, and nothing that hides text or makes it blink (ECMA-48, 8.3.117).
_ONE_COLOUR = r"(?:[0-47]|2[2-9]|3[0-79]|4[0-79]|9[0-7]|10[0-7]|[34]8;5;\d{1,3}|[34]8;2;\d{1,3};\d{1,3};\d{1,3})"
_COLOUR = re.compile(rf"(\x1b\[(?:{_ONE_COLOUR}(?:;{_ONE_COLOUR})*)?m)")
_END = "\x1b[0m"
_UNUSUAL = re.compile(r"[^ -~\n\t]")


def visible(text: str) -> str:
    """``text`` with its control characters as escapes, such as ``\\x1b``; its lines and tabs stay, and what
    `styled` makes. Secrets are left out."""
    text = redaction.redacted(text)
    if text.isprintable():
        return text
    return "".join(
        part if number % 2 or part.isprintable() else "".join(map(_shown, part))
        for number, part in enumerate(_STYLE.split(text))
    )


def on_one_line(text: str) -> str:
    """``text`` as `visible` shows it, line breaks and tabs made visible, too."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def styled(text: str, *, fg: str | None = None, bold: bool | None = None) -> str:
    """``text`` in one of eight colours, or bold."""
    return click.style(visible(text), fg=fg, bold=bold)


def log_with_colours(text: str) -> str:
    """Text that another program wrote into its log, for a terminal: as `visible` shows it, but its colours stay, to the
    end of the text at most. Of a line that was drawn several times, such as a progress bar, the last state is shown.
    """
    text = redaction.redacted(text)
    if text.isprintable():
        return text
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    parts = _COLOUR.split("\n".join(lines))
    shown = "".join(part if number % 2 else visible(part) for number, part in enumerate(parts))
    return shown + _END if len(parts) > 1 else shown


def log_without_colours(text: str) -> str:
    """Text that another program wrote into its log, for a file: as `visible` shows it, without its colours."""
    if text.isprintable():
        return redaction.redacted(text)
    return visible(_COLOUR.sub("", text.replace("\r\n", "\n").removesuffix("\r")))


def of_json(text: str) -> str:
    """JSON as it was dumped, with the control characters in its strings escaped: JSON itself wants that only of those
    below U+0020. Secrets are left out."""
    text = redaction.redacted(text)
    if text.isprintable():
        return text
    return _UNUSUAL.sub(lambda match: _escaped(match[0]), text)


def _escaped(letter: str) -> str:
    return letter if _shown(letter) == letter else json.dumps(letter)[1:-1]


def _shown(letter: str) -> str:
    if letter.isprintable() or letter in _KEPT:
        return letter
    import unicodedata

    return letter.encode("unicode_escape").decode() if unicodedata.category(letter) in _SHOWN else letter
