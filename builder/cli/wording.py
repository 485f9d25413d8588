"""How numbers are said to people."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from builder import humanize

if TYPE_CHECKING:
    from builder.engine.registry.transfer import LayerProgress, PulledLayers

_DAY = 86400
_UNITS = (("year", 365 * _DAY), ("month", 30 * _DAY), ("week", 7 * _DAY), ("day", _DAY), ("hour", 3600), ("min", 60))


def ago(stamp: str, now: datetime | None = None) -> str:
    """How long ago an RFC 3339 time was, in its largest whole unit; the text itself where it is no time."""
    try:
        then = datetime.fromisoformat(stamp)
    except ValueError:
        return stamp
    seconds = ((now or datetime.now(UTC)) - then).total_seconds()
    for word, length in _UNITS:
        count = int(seconds // length)
        if count >= 1:
            plural = "s" if count > 1 and word != "min" else ""
            return f"{count} {word}{plural} ago"
    return "just now"


def counted(number: int, word: str) -> str:
    """How many there are of what ``word`` names: 1 layer, 2 layers."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def layers(moved: PulledLayers) -> str:
    """Layers that moved, with their bytes where the engine said them."""
    count = counted(moved.layers, "layer")
    return f"{count}, {humanize.of_bytes(moved.bytes)}" if moved.bytes else count


def amount(of: LayerProgress) -> str:
    """How far a transfer is."""
    return "unpacking" if of.unpacking else f"{humanize.of_bytes(of.current)} of {humanize.of_bytes(of.total)}"


def duration(seconds: float) -> str:
    """A time taken, as 4.2 s, 3 min 12 s or 2 h 05 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"
