"""The engine's multiplexed stream of a container's output: frames of one byte for the stream, three empty ones, four
for the length, and then the content. In a log each frame is one line, or a piece of a very long one.

https://docs.docker.com/reference/api/engine/ (ContainerAttach, "Stream format")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_HEADER = 8


def payloads(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yields the content of each frame, however the stream was cut into ``pieces``; of an incomplete last frame, the
    part that came."""
    buffer = b""
    for piece in pieces:
        buffer += piece
        start = 0
        while start + _HEADER <= len(buffer):
            end = start + _HEADER + int.from_bytes(buffer[start + 4 : start + _HEADER])
            if end > len(buffer):
                break
            yield buffer[start + _HEADER : end]
            start = end
        buffer = buffer[start:]
    if len(buffer) > _HEADER:
        yield buffer[_HEADER:]


def text(stream: bytes) -> str:
    """Returns the whole output, standard output and standard error as they came."""
    return b"".join(payloads([stream])).decode(errors="replace")
