"""JSON lines, the form of the engine's and BuildKit's streams: one object a line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def parse(line: str | bytes) -> dict[str, Any] | None:
    """Returns the object of a line; None for text that is no JSON object."""
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def objects(pieces: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yields the object of each line, however the stream was cut into ``pieces``.

    Raises json.JSONDecodeError (a ValueError) for a line that is not JSON, such as the last line of a stream that broke
    off.
    """
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        yield from (json.loads(line) for line in lines if line.strip())
    if rest.strip():
        yield json.loads(rest)
