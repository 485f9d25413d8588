"""Programs that the tests start handle SIGINT by default, even if the tests themselves ignore it.

A shell without job control (a script with ``make test &``, nohup, some CI) starts background processes with SIGINT
ignored, and programs inherit that. A ``builder`` that gets ^C from a test would then never end.
"""

from __future__ import annotations

import signal
from typing import Any


def restore() -> None:
    """Lets SIGINT end the programs that this process starts. This process still ignores SIGINT if it did before. Exec
    restores the default only for signals with a handler."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, _nothing)


def _nothing(*_: Any) -> None:
    pass
