"""A command as bash parses it: its words, and whether running it takes a shell at all."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from builder.definitions.recipes.placeholders import CommandProblem, Placeholder


class ShellContext(Enum):
    """The quoting context of a piece of a command. OPAQUE is everything that this module does not parse: command
    substitutions, here-documents and the like."""

    PLAIN = "plain"
    SINGLE = "in single quotes"
    DOUBLE = "in double quotes"
    OPAQUE = "inside another shell construct"
    COMMENT = "in a comment"


class TokenKind(Enum):
    """The kind of a token. TEXT belongs to a word; MARK is a quote or a backslash, which the shell removes; GAP,
    NEWLINE and OPERATOR end a word. HERE is the text of a here-document, which is no part of a command."""

    TEXT = "text"
    MARK = "mark"
    GAP = "gap"
    NEWLINE = "newline"
    OPERATOR = "operator"
    COMMENT = "comment"
    HERE = "here-document"


@dataclass(frozen=True)
class Token:
    """A piece of a command: text as written (``raw``), or a placeholder. ``expands`` if the shell would expand it."""

    kind: TokenKind
    context: ShellContext
    raw: str
    placeholder: Placeholder | None = None
    expands: bool = False


Word = tuple[Token, ...]


@dataclass(frozen=True)
class SimpleCommand:
    """The words of one command, and the number of tokens up to their end: the place for further arguments."""

    words: tuple[Word, ...]
    end: int


# What is followed by a file, a descriptor or a text, and not by an argument.
_REDIRECTIONS = frozenset({"<", ">", "<<", "<<<"})
# Reserved words and builtins of the shell: https://www.gnu.org/software/bash/manual/bash.html#Shell-Builtin-Commands
_SHELL_WORD = re.compile(
    r"!|\.|:|\[\[|\{|alias|builtin|case|cd|command|coproc|declare|eval|exec|export|for|function|if|let|local|read"
    r"|readonly|select|set|shift|shopt|source|time|times|trap|type|ulimit|umask|unset|until|wait|while"
)
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")


@dataclass(frozen=True)
class ParsedCommand:
    """A command as bash parses it, and its problems."""

    tokens: tuple[Token, ...]
    wrong: tuple[CommandProblem, ...]

    @property
    def commands(self) -> tuple[tuple[Word, ...], ...]:
        """The words of each command, without those that redirect its input or output."""
        return tuple(command.words for command in self.simple_commands)

    @functools.cached_property
    def simple_commands(self) -> tuple[SimpleCommand, ...]:
        """Each command; a newline or an operator ends one."""
        reader = _CommandReader()
        end_of_text = Token(TokenKind.NEWLINE, ShellContext.PLAIN, "\n")
        for at, token in enumerate((*self.tokens, end_of_text)):
            reader.take(at, token, self.tokens[at + 1 : at + 2])
        return tuple(reader.commands)

    @property
    def needs_shell(self) -> bool:
        """True if it is a shell script, rather than the words of a single command."""
        commands = self.commands
        if any(token.expands or token.kind is TokenKind.OPERATOR for token in self.tokens) or len(commands) > 1:
            return True
        first = "".join(token.raw for token in commands[0][0]) if commands else ""
        return bool(_SHELL_WORD.fullmatch(first) or _ASSIGNMENT.match(first))


@dataclass
class _CommandReader:
    """One pass over the tokens. ``redirects`` is true where the next word is the target of a redirection."""

    commands: list[SimpleCommand] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    word: list[Token] = field(default_factory=list)
    end: int = 0
    redirects: bool = False
    operator_before: str = ""

    def take(self, at: int, token: Token, following: tuple[Token, ...]) -> None:
        if token.kind in {TokenKind.TEXT, TokenKind.MARK}:
            # A backslash at the end of a line joins the lines and is no part of a word.
            if token.raw != "\\\n":
                self.word.append(token)
                self.operator_before = ""
            return
        begins_redirection = token.kind is TokenKind.OPERATOR and token.raw in _REDIRECTIONS
        # In `2>log`, the number is a descriptor.
        if not (begins_redirection and self.word and all(part.raw.isdecimal() for part in self.word)):
            self._end_word(at)
        self.word = []
        if begins_redirection or self._is_part_of_redirection(token, following):
            self.redirects = True
        elif token.kind in {TokenKind.NEWLINE, TokenKind.OPERATOR}:
            self._end_command()
        self.operator_before = token.raw if token.kind is TokenKind.OPERATOR else ""

    def _is_part_of_redirection(self, token: Token, following: tuple[Token, ...]) -> bool:
        """True for the second character of ``>&`` and ``>|``, and the first of ``&>``."""
        if token.kind is not TokenKind.OPERATOR:
            return False
        before_redirection = bool(following) and (following[0].kind, following[0].raw) == (TokenKind.OPERATOR, ">")
        return (token.raw in {"&", "|"} and self.operator_before in {"<", ">"}) or (
            token.raw == "&" and before_redirection
        )

    def _end_word(self, at: int) -> None:
        if not self.word:
            return
        if self.redirects:
            self.redirects = False
        else:
            self.words.append(tuple(self.word))
            self.end = at

    def _end_command(self) -> None:
        if self.words:
            self.commands.append(SimpleCommand(tuple(self.words), self.end))
        self.words, self.redirects = [], False
