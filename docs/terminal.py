"""Runs commands in a pseudo-terminal and returns the screen that a user would see: for examples and pictures."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import TYPE_CHECKING

import pyte

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

COLUMNS, LINES = 80, 400  # as wide as a plain terminal, and so long that nothing scrolls away


class Screen(pyte.Screen):
    """A screen that remembers which of its lines were too long and continue in the next one."""

    def __init__(self) -> None:
        super().__init__(COLUMNS, LINES)
        self.wrapped: set[int] = set()
        self._is_drawing = False

    def draw(self, data: str) -> None:
        self._is_drawing = True
        super().draw(data)
        self._is_drawing = False

    def linefeed(self) -> None:
        (self.wrapped.add if self._is_drawing else self.wrapped.discard)(self.cursor.y)
        super().linefeed()


def with_builder(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns ``environ`` with the ``builder`` of this Python on PATH."""
    return {**environ, "PATH": f"{Path(sys.executable).parent}:{environ['PATH']}"}


def run(command: str, cwd: Path, environ: Mapping[str, str], watch: Callable[[Screen], None] | None = None) -> Screen:
    """Runs ``command``, a line of bash; returns the final screen. ``watch`` is called after every piece of output."""
    screen = Screen()
    stream = pyte.ByteStream(screen)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    env = {**environ, "TERM": "xterm-256color"}
    process = subprocess.Popen(
        ["bash", "-c", command], cwd=cwd, env=env, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    while piece := _read(ours):
        stream.feed(piece)
        if watch:
            watch(screen)
    os.close(ours)
    process.wait()
    return screen


def text(screen: Screen) -> str:
    """Returns the text on the screen, without the empty lines at its end, each line as long as the program wrote it."""
    lines = (line if y in screen.wrapped else line.rstrip() + "\n" for y, line in enumerate(screen.display))
    return "".join(lines).rstrip()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # on Linux: the last process has closed the other end
        return b""
