"""A command as bash parses it: its words, and whether running it takes a shell at all."""

from __future__ import annotations

import re
from dataclasses import dataclass
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
    NEWLINE and OPERATOR end a word."""

    TEXT = "text"
    MARK = "mark"
    GAP = "gap"
    NEWLINE = "newline"
    OPERATOR = "operator"
    COMMENT = "comment"


@dataclass(frozen=True)
class Token:
    """A piece of a command: text as written (``raw``), or a placeholder. ``expands`` if the shell would expand it."""

    kind: TokenKind
    context: ShellContext
    raw: str
    placeholder: Placeholder | None = None
    expands: bool = False


Word = tuple[Token, ...]

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
        """The words of each command; a newline or an operator ends one."""
        commands: list[list[Word]] = [[]]
        word: list[Token] = []
        for token in (*self.tokens, Token(TokenKind.NEWLINE, ShellContext.PLAIN, "\n")):
            if token.kind in {TokenKind.TEXT, TokenKind.MARK}:
                # A backslash at the end of a line joins the lines and is no part of a word.
                if token.raw != "\\\n":
                    word.append(token)
                continue
            if word:
                commands[-1].append(tuple(word))
                word = []
            if token.kind in {TokenKind.NEWLINE, TokenKind.OPERATOR} and commands[-1]:
                commands.append([])
        return tuple(tuple(command) for command in commands if command)

    @property
    def needs_shell(self) -> bool:
        """True if it is a shell script, rather than the words of a single command."""
        commands = self.commands
        if any(token.expands or token.kind is TokenKind.OPERATOR for token in self.tokens) or len(commands) > 1:
            return True
        first = "".join(token.raw for token in commands[0][0]) if commands else ""
        return bool(_SHELL_WORD.fullmatch(first) or _ASSIGNMENT.match(first))
