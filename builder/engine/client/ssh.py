"""The ssh command that leads to a node's machine: the person's own, with their keys and their configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Sequence


def argv(host: str, options: Sequence[str], command: Sequence[str]) -> list[str]:
    """What runs ``command`` on the machine of ``ssh://[USER@]HOST[:PORT]``."""
    place = urlsplit(host)
    return [
        "ssh",
        *options,
        *(("-l", place.username) if place.username else ()),
        *(("-p", str(place.port)) if place.port else ()),
        "--",
        place.hostname or "",
        *command,
    ]
