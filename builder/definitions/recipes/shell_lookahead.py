"""Constructs of the shell that are told by what follows them: brace expansions, here-documents, commented options."""

from __future__ import annotations

import re
from dataclasses import dataclass

_HERE = re.compile(r"<<(-?)[ \t]*(?:'([^'\n]+)'|\"([^\"\\$`\n]+)\"|\\?([A-Za-z0-9_.:@%+-]+))(?=[\s;|&)<>]|\Z)")
_COMMENT_LINE = re.compile(r"[ \t]*#[^\n]*(\n|\Z)")
OPTION_LINE = re.compile(r"[ \t]*-")
_END_OF_WORD = " \t\n|&;<>()"


@dataclass(frozen=True)
class HereDocument:
    """A here-document that ends with the line ``delimiter``, before which tabs may stand where it ``strips_tabs``."""

    delimiter: str
    strips_tabs: bool

    def end(self, text: str, start: int) -> int:
        """The offset behind the document whose text begins at ``start``."""
        tabs = "\t*" if self.strips_tabs else ""
        last = re.compile(rf"^{tabs}{re.escape(self.delimiter)}(?:\n|\Z)", re.MULTILINE).search(text, start)
        return last.end() if last else len(text)


def here_document(text: str, at: int) -> HereDocument | None:
    """The here-document that the ``<<`` at that offset announces; None where only bash can tell how it ends."""
    match = _HERE.match(text, at)
    return HereDocument(match[2] or match[3] or match[4], bool(match[1])) if match else None


def is_brace_expansion(text: str, at: int) -> bool:
    """True if bash may make several words of the ``{`` at that offset: an unquoted ``,`` or ``..`` follows in its word.
    https://www.gnu.org/software/bash/manual/bash.html#Brace-Expansion"""
    at, quote = at + 1, ""
    while at < len(text):
        char = text[at]
        if char == "\\" and quote != "'":
            at += 1
        elif quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char == "," or text.startswith("..", at):
            return True
        elif char in _END_OF_WORD:
            return False
        at += 1
    return False


def behind_commented_options(text: str, at: int) -> int:
    """The offset behind options that are commented out between continued lines, as their authors intend; bash would end
    the command there."""
    end = at
    while match := _COMMENT_LINE.match(text, end):
        end = match.end()
        if match[1] == "":
            break
    return end if end > at and OPTION_LINE.match(text, end) else at
