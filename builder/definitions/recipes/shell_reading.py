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
from builder.definitions.recipes.placeholders import CommandProblem, Literal, Piece, Placeholder
from builder.definitions.recipes.shell import ParsedCommand, ShellContext, Token, TokenKind

if TYPE_CHECKING:
    from builder.definitions.recipes.shell_lookahead import HereDocument

_OPERATORS = frozenset("|&;<>()")
_GLOBS = frozenset("*?[")
_AFTER_DOLLAR = re.compile(r"[A-Za-z0-9_@*#?$!-]")
_CLOSING = {"(": ")", "`": "`", "{": "}", "$'": "'"}
_SUBSTITUTION = re.compile(r"\$\(|`")
_COMMENT_LINE = re.compile(r"[ \t]*#[^\n]*(\n|\Z)")
_OPTION_LINE = re.compile(r"[ \t]*-")


def scan(pieces: tuple[Piece, ...]) -> ParsedCommand:
    """Parses the pieces of a command."""
    return _Reader(pieces).read()


@dataclass
class _Reader:
    """One pass over the text. ``stack`` holds the open constructs: quotes, substitutions, and ``opaque``, which never
    ends; ``cut_off`` holds the indexes of options that no backslash joins to their command; ``sources`` the
    placeholders whose values the items are, by index; ``documents`` the here-documents whose texts are to come."""

    pieces: tuple[Piece, ...]
    items: list[tuple[str | Placeholder, int]] = field(default_factory=list)
    sources: dict[int, Placeholder] = field(default_factory=dict)
    documents: list[HereDocument] = field(default_factory=list)
    at: int = 0
    stack: list[tuple[str, int]] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)
    wrong: list[CommandProblem] = field(default_factory=list)
    cut_off: list[int] = field(default_factory=list)

    def read(self) -> ParsedCommand:
        for piece in self.pieces:
            if isinstance(piece, Literal) and piece.source:
                self.sources |= dict.fromkeys(range(len(self.items), len(self.items) + len(piece.text)), piece.source)
                self.items += [(char, piece.offset) for char in piece.text]
            elif isinstance(piece, Literal):
                self.items += [(char, piece.offset + index) for index, char in enumerate(piece.text)]
            else:
                self.items.append((piece, piece.offset))
        # Placeholders become a character that no pattern here matches.
        self.text = "".join(item if isinstance(item, str) else "\0" for item, _ in self.items)
        # The `)` of a case's pattern would end the substitution around it.
        if re.search(r"\besac\b", self.text) and _SUBSTITUTION.search(self.text):
            self.stack.append(("opaque", 0))
        while self.at < len(self.items):
            self._step()
        for opened, at in self.stack:
            if opened in {"'", '"'}:
                self._report(at, opened, f"the quote {opened} that opens here is never closed")
        if self.cut_off:
            first, *others = self.cut_off
            more = f"; further lines like it: {len(others)}" if others else ""
            self._report(first, "-", f"the line before this option lacks the backslash at its end{more}")
        return ParsedCommand(tuple(self.tokens), tuple(self.wrong))

    @property
    def top(self) -> str:
        return self.stack[-1][0] if self.stack else ""

    @property
    def context(self) -> ShellContext:
        if any(opened not in {"'", '"'} for opened, _ in self.stack):
            return ShellContext.OPAQUE
        return {"'": ShellContext.SINGLE, '"': ShellContext.DOUBLE, "": ShellContext.PLAIN}[self.top]

    def _report(self, at: int, written: str, message: str) -> None:
        """Reports what is wrong with the item at that index: where it is written, or else its value is used."""
        source, offset = self.sources.get(at), self.items[at][1]
        if source:
            self.wrong.append(CommandProblem(source.written, offset, f"in the value of {{{source.key}}}: {message}"))
        else:
            self.wrong.append(CommandProblem(written, offset, message))

    def _put(self, kind: TokenKind, length: int = 1, *, expands: bool = False) -> None:
        context = ShellContext.COMMENT if kind is TokenKind.COMMENT else self.context
        raw = ""
        for item, _ in self.items[self.at : self.at + length]:
            if isinstance(item, Placeholder):
                self.tokens.append(Token(kind, context, item.written, item))
            else:
                raw += item
        if raw:
            self.tokens.append(Token(kind, context, raw, expands=expands))
        self.at += length

    def _open(self, opened: str, length: int, *, expands: bool) -> None:
        at = self.at
        self._put(TokenKind.MARK if opened in {"'", '"'} else TokenKind.TEXT, length, expands=expands)
        self.stack.append((opened, at))

    def _close(self) -> None:
        opened, _ = self.stack.pop()
        self._put(TokenKind.MARK if opened in {"'", '"'} else TokenKind.TEXT)

    def _step(self) -> None:
        item, _ = self.items[self.at]
        source = item if isinstance(item, Placeholder) else self.sources.get(self.at)
        if source and self.sources.get(self.at - 1) != source:
            self._require_apart(source)
        if isinstance(item, Placeholder):
            self._put(TokenKind.TEXT)
        elif self.top == "'":
            self._close() if item == "'" else self._put(TokenKind.TEXT)
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
            self._close()
        elif char == "\\" and following in {"$", "`", '"', "\\", "\n"}:
            self._escape(following)
        elif char == "`":
            self._open("`", 1, expands=True)
        elif char == "$":
            self._dollar(following)
        else:
            self._put(TokenKind.TEXT)

    def _in_opaque(self, char: str) -> None:
        if char == _CLOSING.get(self.top):
            self._close()
        elif char == "\\":
            self._put(TokenKind.TEXT)
            if self.at < len(self.items):
                self._put(TokenKind.TEXT)
        elif self.top == "{" and char in "'\"`$":
            # Only bash can tell where such an expansion ends.
            self._open("opaque", 1, expands=True)
        else:
            self._put(TokenKind.TEXT)

    def _in_plain(self, char: str) -> None:
        following = self.text[self.at + 1 : self.at + 2]
        if char in "'\"":
            self._open(char, 1, expands=False)
        elif char == "\\":
            self._backslash(following)
        elif char == "\n":
            self._newline()
        elif char in " \t":
            self._put(TokenKind.GAP)
        elif char == "#" and self._at_word_start():
            end = self.text.find("\n", self.at)
            self._comment((end if end >= 0 else len(self.text)) - self.at)
        elif char == "$":
            self._dollar(following)
        elif char == "`":
            self._open("`", 1, expands=True)
        elif char in _OPERATORS:
            self._operator(char, following)
        else:
            tilde = char == "~" and (self._at_word_start() or self.text[self.at - 1] in "=:")
            brace = char == "{" and shell_lookahead.is_brace_expansion(self.text, self.at)
            self._put(TokenKind.TEXT, expands=char in _GLOBS or tilde or brace)

    def _comment(self, length: int) -> None:
        for _ in range(length):
            self._put(TokenKind.COMMENT)

    def _backslash(self, following: str) -> None:
        rest = self.text[self.at + 1 :]
        if not rest.strip():
            # The last line ends with a backslash, like those above it: there is no next line to join.
            self.at += 1
        elif following == "\n":
            self._escape(following)
            self._skip_commented_options()
        elif re.match(r"[ \t]+(\n|\Z)", rest):
            message = "blanks follow the backslash: only as the last character of its line does it continue the command"
            self._report(self.at, "\\", message)
            self._put(TokenKind.GAP)
        else:
            self._escape(following)

    def _skip_commented_options(self) -> None:
        """Skips options that are commented out between continued lines, as their authors intend; bash would end the
        command there."""
        end = self.at
        while match := _COMMENT_LINE.match(self.text, end):
            end = match.end()
            if match[1] == "":
                break
        if end > self.at and _OPTION_LINE.match(self.text, end):
            self.at = end

    def _newline(self) -> None:
        self._put(TokenKind.NEWLINE)
        if self.context is ShellContext.PLAIN and self.documents:
            self._here_documents()
        if self.context is not ShellContext.PLAIN or not _OPTION_LINE.match(self.text, self.at):
            return
        if any(token.kind in {TokenKind.TEXT, TokenKind.MARK} for token in self.tokens):
            rest = self.text[self.at :]
            self.cut_off.append(self.at + len(rest) - len(rest.lstrip(" \t")))

    def _escape(self, following: str) -> None:
        if following == "\n":
            self._put(TokenKind.MARK, 2)
            return
        self._put(TokenKind.MARK)
        if following != "\0":
            self._put(TokenKind.TEXT)

    def _dollar(self, following: str) -> None:
        if following == "(":
            self._open("(", 2, expands=True)
        elif following == "{":
            self._open("{", 2, expands=True)
        elif following == "'" and self.top != '"':
            self._open("$'", 2, expands=True)
        elif following == "[":
            self._open("opaque", 2, expands=True)
        else:
            self._put(TokenKind.TEXT, expands=bool(_AFTER_DOLLAR.match(following)) or following == '"')

    def _operator(self, char: str, following: str) -> None:
        if char == ")" and self.top == "(":
            self._close()
        elif char == "(" and self.top == "(":
            self._open("(", 1, expands=True)
        elif char == "<" and following == "<" and self.text[self.at + 2 : self.at + 3] != "<":
            self._here_operator()
        elif char + following == "((":
            # Arithmetic: only bash can tell where it ends.
            self._open("opaque", 2, expands=True)
        else:
            here = char == "<" and following == "<"
            self._put(TokenKind.OPERATOR, 3 if here else 1)

    def _here_operator(self) -> None:
        document = None if self.stack else shell_lookahead.here_document(self.text, self.at)
        if document is None:
            # Only bash can tell where it ends.
            self._open("opaque", 2, expands=True)
            return
        self.documents.append(document)
        self._put(TokenKind.OPERATOR, 2)

    def _here_documents(self) -> None:
        """Reads the texts of the here-documents that the line before began."""
        for document in self.documents:
            stop = document.end(self.text, self.at)
            self.stack.append(("here", self.at))
            while self.at < stop:
                self._put(TokenKind.HERE)
            self.stack.pop()
        self.documents.clear()

    def _at_word_start(self) -> bool:
        return self.at == 0 or self.text[self.at - 1] in " \t\n|&;()<>"
