"""Runs a server's command on one of several nodes, and ends it when the command of another node ends. Runs in
containers.

Its arguments are the rank of the node, address and port of the head node, the server's name, and the command.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress


def connect(address: str, port: int, name: bytes) -> socket.socket | None:
    """Returns the connection of another node to the head; None while the head does not answer."""
    try:
        connection = socket.create_connection((address, port), timeout=5)
        connection.sendall(name)
    except OSError:
        time.sleep(1)
        return None
    return connection


def received(connection: socket.socket) -> bytes:
    """Returns the data from the other end; empty if the other end is gone."""
    with suppress(OSError):
        return connection.recv(4096)
    return b""


def main(rank: str, address: str, port: str, name: str, *argv: str) -> int:
    """Runs the command; returns its exit code, or 1 if another node ended first."""
    command = subprocess.Popen(argv)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda sent, _: command.send_signal(sent))
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listening = [socket.create_server((address, int(port)), family=family)] if rank == "0" else []
    partners: list[socket.socket] = []
    strangers: list[socket.socket] = []
    while command.poll() is None:
        if not listening and not partners:
            connection = connect(address, int(port), name.encode())
            partners += [connection] if connection else []
        for ready in select.select([*listening, *strangers, *partners], [], [], 1)[0]:
            if ready in listening:
                strangers.append(ready.accept()[0])
            elif ready in strangers:
                strangers.remove(ready)
                partners += [ready] if received(ready) == name.encode() else []
            elif not received(ready):
                os.write(1, b"the server on another node has ended, so this server ends, too\n")
                for each in (*listening, *strangers, *partners):
                    each.close()
                command.terminate()
                with suppress(subprocess.TimeoutExpired):
                    command.wait(5)
                command.kill()
                return 1
        for partner in partners:
            # A machine that loses power closes no connection: the kernel must probe it.
            partner.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            partner.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15)
            partner.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
            partner.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 6)
    return command.returncode if command.returncode >= 0 else 128 - command.returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
