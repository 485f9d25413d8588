"""A long English text, always the same, that fills contexts: measurements take no book from the network.

Its sentences are put together from lists of words by a generator of fixed numbers (that of Numerical Recipes). They
seldom repeat, so that neither a cache of prefixes nor a decoder that guesses from earlier text finds much in them.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

LENGTH = 900_000
"""Characters of the whole text: more tokens than the deepest contexts of the usual protocols."""

_WHO = (
    "The keeper of the lighthouse", "A surveyor from the valley", "The youngest clerk", "Every baker in the street",
    "The captain of the ferry", "An old gardener", "The woman at the counter", "A student of maps", "The night porter",
    "One of the carpenters", "The teacher of the upper school", "A traveller in a grey coat", "The clockmaker",
    "A pair of fishermen", "The engineer of the mill", "My neighbour's cousin",
)  # fmt: skip
_DID = (
    "carried", "measured", "forgot", "described", "repaired", "counted", "drew", "sold", "borrowed", "hid", "weighed",
    "praised", "copied", "followed", "questioned", "painted", "collected", "refused", "remembered", "divided",
)  # fmt: skip
_HOW_MANY = ("three", "a dozen", "several", "the last", "forty", "the first", "two", "nearly all of the", "some", "the")
_KIND = (
    "wet", "narrow", "foreign", "heavy", "yellow", "broken", "silent", "careful", "early", "distant", "wooden", "plain",
    "crooked", "generous", "frozen", "numbered", "hollow", "polished",
)  # fmt: skip
_THINGS = (
    "letters", "barrels", "bridges", "lamps", "ledgers", "windows", "stories", "coins", "ropes", "wheels", "gardens",
    "instruments", "promises", "boats", "kettles", "machines", "roads", "drawings", "apples", "bells", "stones",
)  # fmt: skip
_WHERE = (
    "behind the station", "near the harbour", "under the old roof", "beyond the second hill", "in the reading room",
    "along the canal", "at the edge of the market", "above the workshop", "between two rivers", "by the northern gate",
)  # fmt: skip
_WHEN = (
    "before the rain began", "on a Tuesday in March", "while the others slept", "after the long winter",
    "when the bell had rung twice", "an hour past noon", "during the fair", "as the tide went out",
    "in the year of the great frost", "shortly after supper",
)  # fmt: skip
_AND_SO = (
    "Nobody asked why.", "It was not the first time.", "That was enough for a whole evening of talk.",
    "The weather had nothing to do with it.", "What came of it is told further on.", "Some called it luck.",
    "A note of it was kept.", "It cost more than anybody had thought.",
)  # fmt: skip


def text(length: int = LENGTH) -> str:
    """The first ``length`` characters of the text."""
    numbers = _FixedNumbers()
    parts: list[str] = []
    size = 0
    while size < length:
        quantity, kind, things = numbers.pick(_HOW_MANY), numbers.pick(_KIND), numbers.pick(_THINGS)
        sentence = f"{numbers.pick(_WHO)} {numbers.pick(_DID)} {quantity} {kind} {things} {numbers.pick(_WHERE)}"
        sentence += f" {numbers.pick(_WHEN)}. "
        if not numbers.below(5):
            sentence += f"{numbers.pick(_AND_SO)} "
        if not numbers.below(9):
            sentence += f"Number {numbers.below(100_000)} was missing from the list.\n\n"
        parts.append(sentence)
        size += len(sentence)
    return "".join(parts)[:length]


def digest() -> str:
    """The digest of the whole text."""
    return f"sha256:{hashlib.sha256(text().encode()).hexdigest()}"


class _FixedNumbers:
    """A generator of the same numbers with every version of Python."""

    def __init__(self) -> None:
        self._state = 20_031

    def below(self, limit: int) -> int:
        self._state = (1_664_525 * self._state + 1_013_904_223) % (1 << 32)
        return (self._state >> 8) % limit

    def pick(self, words: Sequence[str]) -> str:
        return words[self.below(len(words))]
