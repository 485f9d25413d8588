"""The progress of bytes that are fetched or written."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from builder.events import TransferProgress

if TYPE_CHECKING:
    from builder.events import Report


class MovedBytes:
    """The bytes that several threads have moved, reported as they are counted."""

    def __init__(self, report: Report, what: str, total: int) -> None:
        self._report, self._what, self._total = report, what, total
        self._current = 0
        self._lock = threading.Lock()

    def add(self, size: int) -> None:
        """Counts bytes; a negative number takes some back."""
        with self._lock:
            self._current += size
            self._report(TransferProgress(self._what, self._current, self._total))
