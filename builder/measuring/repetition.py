"""The number of times that something is tried: as often as its results differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.evidence import statistics

if TYPE_CHECKING:
    from collections.abc import Sequence

FEWEST = 4
"""Two whole and two streamed, where that is taken in turns."""
MOST = 10
_FEWEST_VALUES = 3
# The usual spread of decoding: https://github.com/eugr/llama-benchy
_SPREAD = 0.05


def needs_more(passed: Sequence[bool]) -> bool:
    """True while results do not tell enough: `FEWEST` that agree do; where some passed and some failed, `MOST` tell how
    often."""
    if len(passed) >= MOST:
        return False
    return len(passed) < FEWEST or len(set(passed)) > 1


def needs_more_values(series: Sequence[Sequence[float]]) -> bool:
    """True while one of several series of values spreads too far for its mean to be sure."""
    count = min(map(len, series), default=0)
    if not series or count >= MOST:
        return False
    return count < _FEWEST_VALUES or any(statistics.spread(values) / count**0.5 > _SPREAD / 2 for values in series)
