"""Amounts in human-readable form."""

from __future__ import annotations


def of_bytes(count: int) -> str:
    """A number of bytes in the decimal units that Docker prints."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"
