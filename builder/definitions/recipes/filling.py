"""Putting values in place of a command's placeholders, so that each stays the text that it is."""

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

# What takes a command as text, or evaluates a text: what is put into it would be run.
_TAKES_A_COMMAND = frozenset(
    {"bash", "sh", "dash", "zsh", "ksh", "eval", "su", "ssh", "xargs", "watch", "script"}
    | {"trap", "alias", "let", "declare", "typeset", "[["}
)
_HARMLESS = re.compile(r"[A-Za-z0-9_@%+=:,./-]*")
_SPECIAL_IN_DOUBLE_QUOTES = re.compile(r'([$`"\\])')


@dataclass(frozen=True)
class PlaceholderValues:
    """The values by key. ``typed`` are the keys whose values come from the command line, not from the recipe."""

    values: Mapping[str, Scalar]
    typed: frozenset[str] = frozenset()

    def text(self, piece: Placeholder) -> str:
        return placeholders.text_of(piece, self.values[piece.key])


def words(scanned: ParsedCommand, filling: PlaceholderValues) -> tuple[str, ...]:
    """The words of all commands, as arguments."""
    return tuple(text for command in scanned.commands for word in command for text in _arguments(word, filling))


def _arguments(word: Word, filling: PlaceholderValues) -> tuple[str, ...]:
    if len(word) == 1 and word[0].placeholder and word[0].context is ShellContext.PLAIN:
        return _alone(word[0].placeholder, filling)
    texts = (filling.text(t.placeholder) if t.placeholder else t.raw for t in word if t.kind is TokenKind.TEXT)
    return ("".join(texts),)


def _alone(piece: Placeholder, filling: PlaceholderValues) -> tuple[str, ...]:
    """A placeholder that is a whole unquoted word: no argument where its value is empty, several where a default of the
    recipe is a row of options, as in ``extra_args: --enable-expert-parallel --seed 7``, and one otherwise."""
    text = filling.text(piece)
    if text.startswith("-") and piece.key not in filling.typed and re.search(r"\s", text):
        try:
            return tuple(shlex.split(text))
        except ValueError:
            return (text,)
    return (text,) if text else ()


def script(scanned: ParsedCommand, filling: PlaceholderValues, extra: tuple[str, ...]) -> tuple[str, ...]:
    """The vector that runs the script as written, with its values quoted for where they stand. ``extra`` takes the
    place of its ``"$@"``, or else follows its last command; UsageError where that is not vLLM's."""
    # By identity: two tokens that read the same may stand in different words.
    alone = {id(word[0]) for command in scanned.commands for word in command if len(word) == 1}
    pieces = [_quoted(token, filling, alone=id(token) in alone) for token in scanned.tokens]
    if any(
        (one.raw, other.raw, one.context) == ("$", "@", ShellContext.DOUBLE) for one, other in pairwise(scanned.tokens)
    ):
        return ("bash", "-c", "".join(pieces).strip("\n"), "bash", *extra)
    if extra and not _ends_in_vllm(scanned):
        raise UsageError(
            "the recipe's command is a script that does not end in `vllm serve`: there is no place for more arguments",
            hint='write "$@" in the command where they belong',
        )
    kinds = (TokenKind.TEXT, TokenKind.MARK, TokenKind.OPERATOR)
    end = max(number for number, token in enumerate(scanned.tokens, 1) if token.kind in kinds)
    tail = f" {shlex.join(extra)}" if extra else ""
    return ("bash", "-c", "".join([*pieces[:end], tail, *pieces[end:]]).strip("\n"))


def _quoted(token: Token, filling: PlaceholderValues, *, alone: bool) -> str:
    piece = token.placeholder
    if piece is None or token.context is ShellContext.COMMENT:
        return token.raw
    if token.context is ShellContext.PLAIN:
        return shlex.join(_alone(piece, filling)) if alone else shlex.quote(filling.text(piece))
    if token.context is ShellContext.SINGLE:
        return filling.text(piece).replace("'", "'\\''")
    # What stands in an opaque place is harmless: `unquotable` names what is not.
    return _SPECIAL_IN_DOUBLE_QUOTES.sub(r"\\\1", filling.text(piece))


def unquotable(scanned: ParsedCommand, filling: PlaceholderValues) -> Iterator[CommandProblem]:
    """The placeholders whose values a shell would read as more than text, where no quoting keeps it from that."""
    nested = any(_takes_a_command(word) for command in scanned.commands for word in command)
    for token in scanned.tokens:
        piece = token.placeholder
        opaque = token.context is ShellContext.OPAQUE
        if piece and (nested or opaque) and token.context is not ShellContext.COMMENT:
            if _HARMLESS.fullmatch(filling.text(piece)):
                continue
            where = "`$(…)`, backquotes or a here-document" if opaque else "a command that evaluates it once more"
            said = f"the value of {{{piece.key}}} stands in {where}, where it cannot be quoted"
            yield CommandProblem(piece.written, piece.offset, said)


def _takes_a_command(word: Word) -> bool:
    return _base_name(word) in _TAKES_A_COMMAND


def _ends_in_vllm(scanned: ParsedCommand) -> bool:
    return any(_base_name(word) == "vllm" or _base_name(word).startswith("vllm.") for word in scanned.commands[-1])


def _base_name(word: Word) -> str:
    return "".join(token.raw for token in word if token.kind is TokenKind.TEXT).rpartition("/")[2]
