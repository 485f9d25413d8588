"""A server that was started as JSON, for the commands that start one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from builder.commands.run import ServeResult


def document(result: ServeResult) -> dict[str, Any]:
    """The server for programs."""
    server = result.server
    return {
        "name": server.name,
        "model": server.model or None,
        "image": server.image,
        "address": server.address or None,
        "already": result.already,
        "ready_seconds": None if result.seconds is None else round(result.seconds, 1),
        "put_back_from": str(result.put_back.origin) if result.put_back else None,
    }
