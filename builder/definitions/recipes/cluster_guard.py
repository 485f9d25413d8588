"""The guard round the command of each of several nodes: the whole ends when one of them does.

vLLM's further nodes wait for ever for a head that is gone, and a head whose node is gone answers nobody until it
notices (vLLM 0.32 by pipeline over two machines: the head ended with an error, the other stayed up). So each holds a
connection to the head, which the kernel closes when the other end dies, and ends with it; the engines then start all of
them again, which meet anew.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from builder.definitions.recipes.container import LABEL

if TYPE_CHECKING:
    from builder.definitions.recipes.container import ContainerSettings

# How far the guard's port is from the one at which the nodes meet: a second server on them has another.
_DISTANCE = 10
# The line that the guard writes where not its own command ended first.
ENDED_ELSEWHERE = "another node has ended: so does this one"
_LAST_PORT = 65535
_SCRIPT = Path(__file__).with_name("guard_script.py")


def guarded(settings: ContainerSettings, rank: int, head: str, meeting_port: str) -> ContainerSettings:
    """``settings`` whose command ends with those of the other nodes; they meet at ``meeting_port`` of the ``head``'s
    address."""
    script = _SCRIPT.read_text(encoding="utf-8")
    guard = ("python3", "-ISc", script, str(rank), head, str(port(meeting_port)), settings.labels[LABEL])
    return replace(settings, argv=(*guard, *settings.argv))


def port(meeting_port: str) -> int:
    """The port of the guard beside that one."""
    number = int(meeting_port) if meeting_port.isascii() and meeting_port.isdecimal() else 0
    return number + _DISTANCE if number + _DISTANCE <= _LAST_PORT else number - _DISTANCE
