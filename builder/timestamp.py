"""Times as images.lock and every --json have them: RFC 3339, UTC, to the second."""

from __future__ import annotations

import time
from datetime import UTC
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

_FORMAT = "%Y-%m-%dT%H:%M:%SZ"


def now() -> str:
    """The present, such as ``2026-11-20T22:00:00Z``."""
    return time.strftime(_FORMAT, time.gmtime())


def of(moment: datetime) -> str:
    """A moment, which knows its time zone."""
    return moment.astimezone(UTC).strftime(_FORMAT)
