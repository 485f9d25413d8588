"""Amounts and digests in human-readable form."""

from __future__ import annotations


def of_bytes(count: int) -> str:
    """A number of bytes in the decimal units that Docker prints."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def digest(value: str) -> str:
    """A digest or a commit by its first 12 digits; any other value as it is."""
    prefix, _, digits = value.rpartition(":")
    if prefix.endswith("sha256") and len(digits) == 64:
        return digits[:12]
    if len(value) == 64 and all(c in "0123456789abcdef" for c in value):
        return value[:12]
    return value[:12] if len(value) == 40 and all(c in "0123456789abcdef" for c in value) else value
