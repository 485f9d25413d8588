"""Substitution of a command's placeholders; no value is ever taken for anything but text."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from builder.definitions.recipes import placeholders
from builder.definitions.recipes.placeholders import CommandProblem, Placeholder, Scalar
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
class PlaceholderValues:
    """The values of placeholders by key; those of the keys ``typed`` come from the command line, not the recipe."""

    values: Mapping[str, Scalar]
    typed: frozenset[str] = frozenset()

    def text(self, piece: Placeholder) -> str:
        return placeholders.text_of(piece, self.values[piece.key])


def words(parsed: ParsedCommand, values: PlaceholderValues) -> tuple[str, ...]:
    """The words of all commands, as arguments."""
    return tuple(text for command in parsed.commands for word in command for text in _arguments(word, values))


def _arguments(word: Word, values: PlaceholderValues) -> tuple[str, ...]:
    if len(word) == 1 and word[0].placeholder and word[0].context is ShellContext.PLAIN:
        return _alone(word[0].placeholder, values)
    texts = (values.text(t.placeholder) if t.placeholder else t.raw for t in word if t.kind is TokenKind.TEXT)
    return ("".join(texts),)


def _alone(piece: Placeholder, values: PlaceholderValues) -> tuple[str, ...]:
    """The arguments for a placeholder that is a whole unquoted word: none for an empty value, several where a default
    of the recipe lists options, as in ``extra_args: --enable-expert-parallel --seed 7``, and one otherwise."""
    text = values.text(piece)
    if text.startswith("-") and piece.key not in values.typed and re.search(r"\s", text):
        try:
            return tuple(shlex.split(text))
        except ValueError:
            return (text,)
    return (text,) if text else ()


def script(parsed: ParsedCommand, values: PlaceholderValues, extra: tuple[str, ...]) -> tuple[str, ...]:
    """The argument vector that runs the script as written, with each value quoted for its context. ``extra`` replaces
    its ``"$@"``, or else follows its last command. Raises UsageError where that command is not vLLM's."""
    # By identity: equal tokens may belong to different words.
    alone = {id(word[0]) for command in parsed.commands for word in command if len(word) == 1}
    pieces = [_quoted(token, values, alone=id(token) in alone) for token in parsed.tokens]
    if any(
        (token.raw, following.raw, token.context) == ("$", "@", ShellContext.DOUBLE)
        for token, following in pairwise(parsed.tokens)
    ):
        return ("bash", "-c", "".join(pieces).strip("\n"), "bash", *extra)
    if extra and not _ends_in_vllm(parsed):
        raise UsageError(
            "the recipe's command is a script that does not end in `vllm serve`: there is no place for more arguments",
            hint='write "$@" in the command where they belong',
        )
    kinds = (TokenKind.TEXT, TokenKind.MARK, TokenKind.OPERATOR)
    end = max(number for number, token in enumerate(parsed.tokens, 1) if token.kind in kinds)
    tail = f" {shlex.join(extra)}" if extra else ""
    return ("bash", "-c", "".join([*pieces[:end], tail, *pieces[end:]]).strip("\n"))


def _quoted(token: Token, values: PlaceholderValues, *, alone: bool) -> str:
    piece = token.placeholder
    if piece is None or token.context is ShellContext.COMMENT:
        return token.raw
    if token.context is ShellContext.PLAIN:
        return shlex.join(_alone(piece, values)) if alone else shlex.quote(values.text(piece))
    if token.context is ShellContext.SINGLE:
        return values.text(piece).replace("'", "'\\''")
    # A value in an opaque context is harmless here: `unquotable` reports those that are not.
    return _SPECIAL_IN_DOUBLE_QUOTES.sub(r"\\\1", values.text(piece))


def unquotable(parsed: ParsedCommand, values: PlaceholderValues) -> Iterator[CommandProblem]:
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


def _ends_in_vllm(parsed: ParsedCommand) -> bool:
    return any(_base_name(word) == "vllm" or _base_name(word).startswith("vllm.") for word in parsed.commands[-1])


def _base_name(word: Word) -> str:
    return "".join(token.raw for token in word if token.kind is TokenKind.TEXT).rpartition("/")[2]
