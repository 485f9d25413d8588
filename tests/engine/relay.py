"""A relay in front of the real engine: other addresses for it, and an engine that stops on demand."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class Relay:
    """A relay that passes on every connection to the engine's socket, until it is cut."""

    listening: socket.socket
    target: str
    _open: list[socket.socket] = field(default_factory=list)

    def run(self) -> None:
        while True:
            try:
                near, _ = self.listening.accept()
            except OSError:
                return
            far = self.connect()
            self._open += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=_pass_on, args=(source, sink), daemon=True).start()

    def connect(self) -> socket.socket:
        """Connects to the engine's socket."""
        far = socket.socket(socket.AF_UNIX)
        far.connect(self.target)
        return far

    def cut(self) -> None:
        """Ends every connection and accepts no more, as a stopped engine does."""
        with suppress(OSError):
            self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


@contextmanager
def relaying(listening: socket.socket, target: str) -> Iterator[Relay]:
    """Runs a relay during the block."""
    listening.listen()
    relay = Relay(listening, target)
    thread = threading.Thread(target=relay.run, daemon=True)
    thread.start()
    try:
        yield relay
    finally:
        relay.cut()
        thread.join(timeout=5)


@contextmanager
def over_tcp(host: str) -> Iterator[str]:
    """Serves the engine of the unix socket ``host`` over TCP during the block; yields that address."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    with relaying(listening, host.removeprefix("unix://")):
        yield f"tcp://127.0.0.1:{listening.getsockname()[1]}"
