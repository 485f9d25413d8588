"""Programs that the tests start handle SIGINT and SIGHUP by default, even if the tests themselves ignore them.

A shell without job control (a script with ``make test &``, some CI) starts background processes with SIGINT ignored,
nohup with SIGHUP ignored, and programs inherit that. A ``builder`` that gets ^C from a test would then never end.
"""

from __future__ import annotations

import signal
from typing import Any


def restore() -> None:
    """Lets both signals end the programs that this process starts. This process still ignores them if it did before.
    Exec restores the default only for signals with a handler."""
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, _nothing)


def _nothing(*_: Any) -> None:
    pass
