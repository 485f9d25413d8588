"""Published ports: a port of the machine that leads to one of a container with a network of its own."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_FORM = re.compile(r"(?:(?:(\[[0-9A-Fa-f:]+\]|[0-9.]+):)?([0-9]{1,5}):)?([0-9]{1,5})(?:/(tcp|udp))?")
_HIGHEST = 65535


@dataclass(frozen=True)
class PublishedPort:
    """A port of the machine, on all its addresses unless one is given, and the one ``inside`` the container."""

    port: int
    inside: int
    address: str = ""
    protocol: str = "tcp"

    def __str__(self) -> str:
        """As Docker writes it: ``[ADDRESS:]PORT:INSIDE[/udp]``."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        protocol = "" if self.protocol == "tcp" else f"/{self.protocol}"
        return f"{f'{host}:' if host else ''}{self.port}:{self.inside}{protocol}"


def parse(text: str) -> PublishedPort:
    """Parses ``[[ADDRESS:]PORT:]INSIDE[/udp]``. Raises ValueError with the reason for anything else."""
    match = _FORM.fullmatch(text)
    if not match:
        raise ValueError("PORT:INSIDE is wanted, such as 8001:8000")
    inside = int(match[3])
    port = int(match[2] or inside)
    for number in (port, inside):
        if not 1 <= number <= _HIGHEST:
            raise ValueError(f"{number} is no port")
    return PublishedPort(port, inside, (match[1] or "").strip("[]"), match[4] or "tcp")


def with_server(ports: Sequence[PublishedPort], port: int | None) -> tuple[PublishedPort, ...]:
    """``ports``, and the server's own where none of them leads to it."""
    if port is None or of_server(ports, port):
        return tuple(ports)
    return (*ports, PublishedPort(port, port))


def of_server(ports: Sequence[PublishedPort], port: int | None) -> PublishedPort | None:
    """The first of ``ports`` that leads to the server, which listens on ``port``."""
    return next((published for published in ports if published.inside == port and published.protocol == "tcp"), None)
