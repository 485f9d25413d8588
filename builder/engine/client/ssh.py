"""The ssh command for a node's machine: the user's own, with their keys and their configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from builder.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Sequence

_FORM = "an address is ssh://HOST, with USER@ before the host and :PORT behind it where they are not the usual ones"


def argv(host: str, options: Sequence[str], command: Sequence[str]) -> list[str]:
    """Returns the argument vector that runs ``command`` on the machine of ``ssh://[USER@]HOST[:PORT]``. Raises
    EngineError for any other address."""
    try:
        address = urlsplit(host)
        name, port = address.hostname or "", address.port
    except ValueError as error:
        raise EngineError(f"{host} is not an address: {error}", hint=_FORM) from None
    if not name or name.startswith("-"):
        raise EngineError(f"{host} is not an address: it names no machine", hint=_FORM)
    return [
        "ssh",
        *options,
        *(("-l", address.username) if address.username else ()),
        *(("-p", str(port)) if port else ()),
        "--",
        name,
        *command,
    ]
