"""The uv that this program brings along, and what the user's settings mean to it."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.sources.environment import UserSettings

_FIND_LOCK = threading.Lock()  # sysconfig, which find_uv_bin uses, is not thread-safe on its first call


def path() -> str:
    """The path of the program."""
    from uv import find_uv_bin

    with _FIND_LOCK:
        return find_uv_bin()


def only_wheels() -> bool:
    """True unless the user's environment lets the code of packages run on this machine, which no file of a project
    may."""
    return os.environ.get("UV_NO_BUILD", "").lower() not in {"0", "false", "no"}


def options_of_user() -> tuple[str, ...]:
    """The options that the user's environment decides."""
    return ("--no-build",) if only_wheels() else ()


def variables(settings: UserSettings, links: Sequence[str]) -> dict[str, str]:
    """The user's settings as uv's own variables: an address may hold a password, and arguments anybody may list.
    ``links`` are the folders and addresses with wheels."""
    named = {
        "SSL_CERT_FILE": str(settings.ca_file or ""),
        "UV_DEFAULT_INDEX": settings.index_url,
        "UV_INDEX": " ".join(settings.extra_index_urls),
        "UV_FIND_LINKS": ",".join(links),
    }
    return {name: value for name, value in named.items() if value}
