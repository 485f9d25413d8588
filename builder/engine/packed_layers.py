"""The bytes of layers that the engine's BuildKit has packed so far, which its own progress does not tell.

buildx 0.29 reports ``exporting layers`` without an amount. BuildKit's content store has it, and whoever may build may
read that store: https://github.com/moby/buildkit/blob/master/control/control.go (roContentStore), and
api/services/content/v1/content.proto of containerd. One gRPC call needs few of HTTP/2's frames (RFC 9113)."""

from __future__ import annotations

import re
import threading
from contextlib import contextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING

from builder.base.errors import EngineError
from builder.engine import client
from builder.engine.build_log import LayersPacked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from builder.engine.client import Endpoint


_UPGRADE = b"POST /grpc HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 0\r\n\r\n"
_METHOD = "/containerd.services.content.v1.Content/ListStatuses"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_END, _WHOLE, _ACKNOWLEDGED = 1, 4, 1  # flags
_WAIT = 10.0  # seconds for an answer
_PAUSE = 1.0
# A Status in protobuf's encoding: its ref (field 3) and its offset (4). BuildKit's ref for a layer that it packs is a
# random word; what an engine pulls has a digest in its ref.
_STATUS = re.compile(rb"\x1a.([a-z0-9]{20,})\x20([\x80-\xff]*[\x00-\x7f])", re.DOTALL)


@contextmanager
def followed(endpoint: Endpoint, step: str, on_event: Callable[[LayersPacked], None]) -> Iterator[None]:
    """Reports the bytes that ``step`` packed since the block began, each second in which they grew. The engine tells
    nothing with the classic image store, which packs no layers. Other builds that export meanwhile are counted, too."""
    over = threading.Event()

    def follow() -> None:
        sizes: dict[bytes, int] = {}
        listings = _listings(endpoint)
        with suppress(OSError, EngineError):
            while not over.wait(_PAUSE):
                before = sum(sizes.values())
                sizes |= next(listings, {})
                if (amount := sum(sizes.values())) > before:
                    on_event(LayersPacked(step, amount))

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_PAUSE)


def _listings(endpoint: Endpoint) -> Iterator[dict[bytes, int]]:
    """The size of each layer that is being packed now, by its name, each time that one is asked for."""
    headers = {":method": "POST", ":scheme": "http", ":path": _METHOD, ":authority": "docker"}
    headers["content-type"] = "application/grpc"
    # Each as a literal without a table (RFC 7541, 6.2.2).
    block = b"".join(b"\0" + b"".join(bytes((len(x),)) + x.encode() for x in pair) for pair in headers.items())
    with client.connected(endpoint, _WAIT) as (connection, _):
        connection.sendall(_UPGRADE)
        stream = connection.makefile("rb")
        upgraded = b" 101 " in stream.readline()
        while upgraded and stream.readline().strip():
            pass
        # However much comes in the end, it need not be confirmed.
        window = _frame(_WINDOW, 0, 0, (2**31 - 2**16).to_bytes(4, "big"))
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(_SETTINGS, 0, 0) + window)
        for number in count(1, 2) if upgraded else ():
            connection.sendall(_frame(_HEADERS, _WHOLE, number, block) + _frame(_DATA, _END, number, bytes(5)))
            answer, ended = b"", False
            while not ended:
                head = stream.read(9)
                content = stream.read(int.from_bytes(head[:3], "big"))
                if len(head) < 9 or head[3] in (_RESET, _GOAWAY):
                    return
                kind, flags = head[3], head[4]
                if kind in (_SETTINGS, _PING) and not flags & _ACKNOWLEDGED:
                    connection.sendall(_frame(kind, _ACKNOWLEDGED, 0, content if kind == _PING else b""))
                answer += content if kind == _DATA else b""
                ended = kind in (_DATA, _HEADERS) and bool(flags & _END)
            yield {
                ref: sum((byte & 127) << 7 * place for place, byte in enumerate(offset))
                for ref, offset in _STATUS.findall(answer)
            }


def _frame(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
    return len(content).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + content
