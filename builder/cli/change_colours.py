"""Colours for what was added, removed or changed; the words and signs stay, for whoever sees no colours."""

from __future__ import annotations

from builder.cli.terminal_text import styled

_ADDED, _REMOVED, _CHANGED = "green", "red", "yellow"
_BY_WORD = {
    "added": _ADDED,
    "new": _ADDED,
    "came": _ADDED,
    "removed": _REMOVED,
    "gone": _REMOVED,
    "went": _REMOVED,
    "changed": _CHANGED,
    "up": _CHANGED,
    "down": _CHANGED,
}
_BY_SIGN = {"+": _ADDED, "-": _REMOVED}


def word(text: str) -> str:
    """A word for a change in its colour; any other word as it is."""
    return styled(text, fg=_BY_WORD[text]) if text in _BY_WORD else text


def line(text: str) -> str:
    """A line of a unified diff in the colour of its sign."""
    colour = _BY_SIGN.get(text[:1])
    return styled(text, fg=colour) if colour else text


def moved(before: str, after: str) -> str:
    """`before → after`, where a pointer went from one to the other."""
    return f"{styled(before, fg=_REMOVED)} → {styled(after, fg=_ADDED)}"
