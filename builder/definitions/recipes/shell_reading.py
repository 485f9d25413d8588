"""Parsing a command as bash would, without running it.

Each placeholder in the command is one unit: its value can neither end a quote nor start a command. The text of a value
that was put in its place is read like the rest.
https://www.gnu.org/software/bash/manual/bash.html#Quoting has the rules.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from builder.definitions.recipes import shell_lookahead
from builder.definitions.recipes.placeholders import CommandProblem, Placeholder
from builder.definitions.recipes.shell import ParsedCommand, ShellContext, TokenKind
from builder.definitions.recipes.shell_cursor import ShellCursor

if TYPE_CHECKING:
    from builder.definitions.recipes.placeholders import Piece
    from builder.definitions.recipes.shell_lookahead import HereDocument

_OPERATORS = frozenset("|&;<>()")
_GLOBS = frozenset("*?[")
_AFTER_DOLLAR = re.compile(r"[A-Za-z0-9_@*#?$!-]")
_CLOSING = {"(": ")", "`": "`", "{": "}", "$'": "'"}
_SUBSTITUTION = re.compile(r"\$\(|`")


def scan(pieces: tuple[Piece, ...]) -> ParsedCommand:
    """Parses the pieces of a command."""
    return _Reader(pieces).read()


@dataclass
class _Reader(ShellCursor):
    """The rules of bash. ``cut_off`` holds the indexes of options that no backslash joins to their command;
    ``documents`` the here-documents whose texts are to come."""

    documents: list[HereDocument] = field(default_factory=list)
    cut_off: list[int] = field(default_factory=list)

    def read(self) -> ParsedCommand:
        # The `)` of a case's pattern would end the substitution around it.
        if re.search(r"\besac\b", self.text) and _SUBSTITUTION.search(self.text):
            self.stack.append(("opaque", 0))
        while self.at < len(self.items):
            self._step()
        for opened, at in self.stack:
            if opened in {"'", '"'}:
                self.report(at, opened, f"the quote {opened} that opens here is never closed")
        if self.cut_off:
            first, *others = self.cut_off
            more = f"; further lines like it: {len(others)}" if others else ""
            self.report(first, "-", f"the line before this option lacks the backslash at its end{more}")
        return ParsedCommand(tuple(self.tokens), tuple(self.wrong))

    def _step(self) -> None:
        item, _ = self.items[self.at]
        source = item if isinstance(item, Placeholder) else self.sources.get(self.at)
        if source and self.sources.get(self.at - 1) != source:
            self._require_apart(source)
        if isinstance(item, Placeholder):
            self.put(TokenKind.TEXT)
        elif self.top == "'":
            self.close() if item == "'" else self.put(TokenKind.TEXT)
        elif self.top == '"':
            self._in_double(item)
        elif self.top in {"opaque", "`", "{", "$'"}:
            self._in_opaque(item)
        else:
            self._in_plain(item)

    def _require_apart(self, item: Placeholder) -> None:
        """Reports a placeholder after a backslash or a `$`: they change its value's first character despite quoting."""
        before = self.text[self.at - 1 : self.at]
        if self.context is not ShellContext.SINGLE and before in {"\\", "$"} and before:
            message = f"`{before}` right before `{item.written}` would change the value"
            if before == "$":
                message += f"; a variable of the shell is written ${{{item.written}}}"
            self.wrong.append(CommandProblem(item.written, item.offset, message))

    def _in_double(self, char: str) -> None:
        following = self.text[self.at + 1 : self.at + 2]
        if char == '"':
            self.close()
        elif char == "\\" and following in {"$", "`", '"', "\\", "\n"}:
            self._escape(following)
        elif char == "`":
            self.open("`", 1, expands=True)
        elif char == "$":
            self._dollar(following)
        else:
            self.put(TokenKind.TEXT)

    def _in_opaque(self, char: str) -> None:
        if char == _CLOSING.get(self.top):
            self.close()
        elif char == "\\":
            self.put(TokenKind.TEXT)
            if self.at < len(self.items):
                self.put(TokenKind.TEXT)
        elif self.top == "{" and char in "'\"`$":
            # Only bash can tell where such an expansion ends.
            self.open("opaque", 1, expands=True)
        else:
            self.put(TokenKind.TEXT)

    def _in_plain(self, char: str) -> None:
        following = self.text[self.at + 1 : self.at + 2]
        if char in "'\"":
            self.open(char, 1, expands=False)
        elif char == "\\":
            self._backslash(following)
        elif char == "\n":
            self._newline()
        elif char in " \t":
            self.put(TokenKind.GAP)
        elif char == "#" and self.at_word_start():
            end = self.text.find("\n", self.at)
            self._comment((end if end >= 0 else len(self.text)) - self.at)
        elif char == "$":
            self._dollar(following)
        elif char == "`":
            self.open("`", 1, expands=True)
        elif char in _OPERATORS:
            self._operator(char, following)
        else:
            tilde = char == "~" and (self.at_word_start() or self.text[self.at - 1] in "=:")
            brace = char == "{" and shell_lookahead.is_brace_expansion(self.text, self.at)
            self.put(TokenKind.TEXT, expands=char in _GLOBS or tilde or brace)

    def _comment(self, length: int) -> None:
        for _ in range(length):
            self.put(TokenKind.COMMENT)

    def _backslash(self, following: str) -> None:
        rest = self.text[self.at + 1 :]
        if not rest.strip():
            # The last line ends with a backslash, like those above it: there is no next line to join.
            self.at += 1
        elif following == "\n":
            self._escape(following)
            self.at = shell_lookahead.behind_commented_options(self.text, self.at)
        elif re.match(r"[ \t]+(\n|\Z)", rest):
            message = "blanks follow the backslash: only as the last character of its line does it continue the command"
            self.report(self.at, "\\", message)
            self.put(TokenKind.GAP)
        else:
            self._escape(following)

    def _newline(self) -> None:
        self.put(TokenKind.NEWLINE)
        if self.context is ShellContext.PLAIN and self.documents:
            self._here_documents()
        if self.context is not ShellContext.PLAIN or not shell_lookahead.OPTION_LINE.match(self.text, self.at):
            return
        if any(token.kind in {TokenKind.TEXT, TokenKind.MARK} for token in self.tokens):
            rest = self.text[self.at :]
            self.cut_off.append(self.at + len(rest) - len(rest.lstrip(" \t")))

    def _escape(self, following: str) -> None:
        if following == "\n":
            self.put(TokenKind.MARK, 2)
            return
        self.put(TokenKind.MARK)
        if following != "\0":
            self.put(TokenKind.TEXT)

    def _dollar(self, following: str) -> None:
        if following == "(":
            self.open("(", 2, expands=True)
        elif following == "{":
            self.open("{", 2, expands=True)
        elif following == "'" and self.top != '"':
            self.open("$'", 2, expands=True)
        elif following == "[":
            self.open("opaque", 2, expands=True)
        else:
            self.put(TokenKind.TEXT, expands=bool(_AFTER_DOLLAR.match(following)) or following == '"')

    def _operator(self, char: str, following: str) -> None:
        if char == ")" and self.top == "(":
            self.close()
        elif char == "(" and self.top == "(":
            self.open("(", 1, expands=True)
        elif char == "<" and following == "<" and self.text[self.at + 2 : self.at + 3] != "<":
            self._here_operator()
        elif char + following == "((":
            # Arithmetic: only bash can tell where it ends.
            self.open("opaque", 2, expands=True)
        else:
            here = char == "<" and following == "<"
            self.put(TokenKind.OPERATOR, 3 if here else 1)

    def _here_operator(self) -> None:
        document = None if self.stack else shell_lookahead.here_document(self.text, self.at)
        if document is None:
            # Only bash can tell where it ends.
            self.open("opaque", 2, expands=True)
            return
        self.documents.append(document)
        self.put(TokenKind.OPERATOR, 2)

    def _here_documents(self) -> None:
        """Reads the texts of the here-documents that the line before began."""
        for document in self.documents:
            stop = document.end(self.text, self.at)
            self.stack.append(("here", self.at))
            while self.at < stop:
                self.put(TokenKind.HERE)
            self.stack.pop()
        self.documents.clear()
