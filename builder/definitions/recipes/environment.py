"""The environment variables of a recipe.

The community's launcher writes each into a script, between double quotes: ``\\"`` is a quote there, and ``$HOME`` is
what it is in the container. Here they are variables of the container, and only those that bash has to expand come to a
script. A quote without a backslash, which ends the text there and leaves broken JSON behind, is kept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.definitions.recipes.placeholders import Scalar

_ESCAPED = re.compile(r'\\(?:([$`"\\])|\n)')
_EXPANSION = re.compile(r"(?<!\\)(?:\\\\)*(?:`|\$(?:[A-Za-z0-9_@*#?$!({-]))")
_BARE_QUOTE = re.compile(r'((?<!\\)(?:\\\\)*)"')

_SUBSTITUTION = re.compile(r"`|\$\(")
_LAST_BACKSLASH = re.compile(r"(?<!\\)((?:\\\\)*)\\\Z")


@dataclass(frozen=True)
class RecipeEnvironment:
    """The variables of a recipe: those ``fixed`` by its text, and those ``expanded`` by bash in the container, as text
    between double quotes."""

    fixed: dict[str, str]
    expanded: dict[str, str]

    def exported_by(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """The argument vector that runs ``argv`` with the variables that bash expands."""
        if not self.expanded:
            return argv
        exports = "\n".join(f'export {name}="{text}"' for name, text in self.expanded.items())
        if argv[:2] == ("bash", "-c"):
            return (*argv[:2], f"{exports}\n{argv[2]}", *argv[3:])
        return ("bash", "-c", f'{exports}\nexec "$@"', "bash", *argv)


def read(env: Mapping[str, Scalar]) -> RecipeEnvironment:
    """The variables under ``env``. Values become text as Python writes them, such as ``True``; null is an empty one."""
    texts = {name: "" if value is None else str(value) for name, value in env.items()}
    expanded = {name: _between_quotes(text) for name, text in texts.items() if _EXPANSION.search(text)}
    fixed = {name: _ESCAPED.sub(r"\1", text) for name, text in texts.items() if name not in expanded}
    return RecipeEnvironment(fixed, expanded)


def _between_quotes(text: str) -> str:
    """``text`` between double quotes, which nothing in it ends; quotes in a command substitution are its own."""
    if _SUBSTITUTION.search(text):
        return text
    return _LAST_BACKSLASH.sub(r"\1\\\\", _BARE_QUOTE.sub(r"\1\"", text))
