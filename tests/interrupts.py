"""SIGINT in what the tests start: the default, also where the tests themselves were started to ignore it.

A shell without job control (a script with ``make test &``, nohup, some CI) starts what it puts into the background with
SIGINT ignored, and a program inherits that. A ``builder`` that is sent ^C by a test would then never end.
"""

from __future__ import annotations

import signal
from typing import Any


def restore() -> None:
    """Has the programs that this process starts end by SIGINT. The process itself goes on ignoring it where it did:
    only a signal that is handled is back at its default after exec."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, _nothing)


def _nothing(*_: Any) -> None:
    pass
