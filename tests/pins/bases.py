"""What base images bring, in tests without an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from builder.lock.model import BasePin
    from builder.pins.resolver import BaseContents


def no_contents(base: BasePin, platform: str) -> BaseContents:
    """Nothing asks what a base brings that no source comes with."""
    raise AssertionError(f"{base.requested} was read for {platform}")
