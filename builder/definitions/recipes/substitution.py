"""Substitution of a command's placeholders; no value is ever taken for anything but text."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from builder.definitions.recipes import placeholders
from builder.definitions.recipes.placeholders import CommandProblem, Placeholder
from builder.definitions.recipes.shell import ParsedCommand, ShellContext, Token, TokenKind, Word
from builder.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Programs that take a command as text, or evaluate text: a value substituted there would be executed.
_TAKES_A_COMMAND = frozenset(
    {"bash", "sh", "dash", "zsh", "ksh", "eval", "su", "ssh", "xargs", "watch", "script"}
    | {"trap", "alias", "let", "declare", "typeset", "[["}
)
_HARMLESS = re.compile(r"[A-Za-z0-9_@%+=:,./-]*")
_SPECIAL_IN_DOUBLE_QUOTES = re.compile(r'([$`"\\])')


@dataclass(frozen=True)
class TypedValues:
    """The values of placeholders by key that come from the command line: each is one argument, whatever it holds.
    Values of the recipe are text of the command and stand in it already."""

    values: Mapping[str, str]

    def text(self, piece: Placeholder) -> str:
        return placeholders.text_of(piece, self.values[piece.key])


def words(parsed: ParsedCommand, values: TypedValues) -> tuple[str, ...]:
    """The words of all commands, as arguments."""
    return tuple(text for command in parsed.commands for word in command for text in _arguments(word, values))


def _arguments(word: Word, values: TypedValues) -> tuple[str, ...]:
    texts = (values.text(t.placeholder) if t.placeholder else t.raw for t in word if t.kind is TokenKind.TEXT)
    text = "".join(texts)
    # As in the shell, an unquoted word with nothing in it is no argument.
    return (text,) if text or any(token.kind is TokenKind.MARK for token in word) else ()


def script(parsed: ParsedCommand, values: TypedValues, extra: tuple[str, ...]) -> tuple[str, ...]:
    """The argument vector that runs the script as written, with each value quoted for its context. ``extra`` replaces
    its ``"$@"``, or else follows its ``vllm serve``. Raises UsageError where there is none."""
    # By identity: equal tokens may belong to different words.
    alone = {id(word[0]) for command in parsed.commands for word in command if len(word) == 1}
    pieces = [_quoted(token, values, alone=id(token) in alone) for token in parsed.tokens]
    if any(
        (token.raw, following.raw, token.context) == ("$", "@", ShellContext.DOUBLE)
        for token, following in pairwise(parsed.tokens)
    ):
        return ("bash", "-c", "".join(pieces).strip("\n"), "bash", *extra)
    tail = f" {shlex.join(extra)}"
    for end in reversed(_places(parsed)) if extra else ():
        pieces.insert(end, tail)
    return ("bash", "-c", "".join(pieces).strip("\n"))


def _places(parsed: ParsedCommand) -> tuple[int, ...]:
    """The places for further arguments: behind each `vllm serve`, or behind the only command."""
    serving = [command.end for command in parsed.simple_commands if _serves(command.words)]
    if not serving and len(parsed.simple_commands) == 1:
        serving = [parsed.simple_commands[0].end]
    if not serving:
        raise UsageError(
            "the recipe's command is a script without a `vllm serve` of its own: there is no place for more arguments",
            hint='write "$@" in the command where they belong',
        )
    return tuple(serving)


def _serves(command: tuple[Word, ...]) -> bool:
    names = [_base_name(word) for word in command]
    return ("vllm", "serve") in pairwise(names) or any(name.startswith("vllm.entrypoints") for name in names)


def _quoted(token: Token, values: TypedValues, *, alone: bool) -> str:
    piece = token.placeholder
    if piece is None or token.context is ShellContext.COMMENT:
        return token.raw
    text = values.text(piece)
    if token.context is ShellContext.PLAIN:
        return "" if alone and not text else shlex.quote(text)
    if token.context is ShellContext.SINGLE:
        return text.replace("'", "'\\''")
    # A value in an opaque context is harmless here: `unquotable` reports those that are not.
    return _SPECIAL_IN_DOUBLE_QUOTES.sub(r"\\\1", text)


def unquotable(parsed: ParsedCommand, values: TypedValues) -> Iterator[CommandProblem]:
    """The placeholders whose values the shell would interpret, in contexts where no quoting prevents it."""
    nested = any(_takes_a_command(word) for command in parsed.commands for word in command)
    for token in parsed.tokens:
        piece = token.placeholder
        opaque = token.context is ShellContext.OPAQUE
        if piece and (nested or opaque) and token.context is not ShellContext.COMMENT:
            if _HARMLESS.fullmatch(values.text(piece)):
                continue
            where = "`$(…)`, backquotes or a here-document" if opaque else "a command that evaluates it once more"
            message = f"the value of {{{piece.key}}} stands in {where}, where it cannot be quoted"
            yield CommandProblem(piece.written, piece.offset, message)


def _takes_a_command(word: Word) -> bool:
    return _base_name(word) in _TAKES_A_COMMAND


def _base_name(word: Word) -> str:
    return "".join(token.raw for token in word if token.kind is TokenKind.TEXT).rpartition("/")[2]
