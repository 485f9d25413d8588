"""Bringing an archive of an image into the engine: https://docs.docker.com/reference/api/engine/ (ImageLoad).

The engine takes blobs that are not in the archive from what it has. An archive of which it then still lacks some is
loaded all the same: such an image has no layers (`images.inspect`), and so not the fingerprint of the whole one.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from builder.engine.client import transport
from builder.engine.client.errors import NO_ROOM, NO_ROOM_HINT
from builder.errors import TransferError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from builder.engine.client.endpoint import Endpoint

# It unpacks what it got before it answers: a layer of 20 GB takes minutes on a slow disk.
IDLE = 3600.0


def load(endpoint: Endpoint, size: int, pieces: Iterable[bytes]) -> None:
    """Loads the archive that ``pieces`` of ``size`` bytes together make. Raises TransferError where the engine does not
    take it, and whatever ``pieces`` do: nothing has got a name then."""
    status, body = transport.upload(endpoint, "/images/load?quiet=1", size, pieces, "application/x-tar", IDLE)
    said = _complaint(body)
    if status < 400 and not said:
        return
    hint = NO_ROOM_HINT if NO_ROOM in said.lower() else ""
    raise TransferError(f"the engine did not take the image: {said or f'status {status}'}", hint=hint)


def _complaint(body: bytes) -> str:
    """What an answer, a JSON object a line, says of an error."""
    for line in body.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict) and (error := value.get("error") or value.get("message")):
            return str(error)
    return ""
