"""The stop verb: ends what serves, as gently as it lets itself be ended."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.engine import services

if TYPE_CHECKING:
    from builder.serving.running import RunningServer

_KILLED = 137


@dataclass(frozen=True)
class Stopped:
    """How it ended. ``killed`` are the containers that did not end by themselves in time."""

    seconds: float
    killed: tuple[str, ...]


def run(running: RunningServer, limit: int) -> Stopped:
    """Asks each container to end, the one that answers first, kills it after ``limit`` seconds, and removes it."""
    began = time.monotonic()
    killed = []
    for member in running.members:
        was_up = member.service.is_up
        ended = services.stop(member.engine.endpoint, member.service.id, limit)
        if was_up and ended and ended.exit_code == _KILLED:
            killed.append(ended.name)
    return Stopped(time.monotonic() - began, tuple(killed))
