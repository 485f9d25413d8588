"""What a container printed, as the engine sends it: frames of one byte for the stream, three empty ones, four for the
length, and then the content. In a log each frame is one line, or a piece of a very long one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_HEAD = 8


def payloads(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The content of each frame, whichever way the stream was cut into ``pieces``; one that broke off as far as it
    came."""
    held = b""
    for piece in pieces:
        held += piece
        at = 0
        while at + _HEAD <= len(held):
            end = at + _HEAD + int.from_bytes(held[at + 4 : at + _HEAD])
            if end > len(held):
                break
            yield held[at + _HEAD : end]
            at = end
        held = held[at:]
    if len(held) > _HEAD:
        yield held[_HEAD:]


def text(stream: bytes) -> str:
    """All that was printed, both streams as they came."""
    return b"".join(payloads([stream])).decode(errors="replace")
