"""The ssh command for a node's machine: the user's own, with their keys and their configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Sequence


def argv(host: str, options: Sequence[str], command: Sequence[str]) -> list[str]:
    """Returns the argument vector that runs ``command`` on the machine of ``ssh://[USER@]HOST[:PORT]``."""
    address = urlsplit(host)
    return [
        "ssh",
        *options,
        *(("-l", address.username) if address.username else ()),
        *(("-p", str(address.port)) if address.port else ()),
        "--",
        address.hostname or "",
        *command,
    ]
