"""Suggestions for a word that was probably mistyped."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def did_you_mean(word: str, choices: Iterable[str], *, most: int = 1, code: bool = False, near: float = 0.6) -> str:
    """Returns ``did you mean X?`` with the choices that ``word`` resembles, at most ``most`` of them; empty if it
    resembles none. With ``code`` they are put in backquotes; ``near`` is the least resemblance, from 0 to 1."""
    # Imported here, since only an error needs it and commands must start fast.
    import difflib

    matches = difflib.get_close_matches(word, list(choices), n=most, cutoff=near)
    return f"did you mean {' or '.join(f'`{match}`' if code else match for match in matches)}?" if matches else ""
