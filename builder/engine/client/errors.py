"""What goes wrong in talking to an engine, as errors that say what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.errors import EngineError

if TYPE_CHECKING:
    from builder.engine.client.endpoint import Endpoint

START_HINT = "start Docker (`sudo systemctl start docker`), or start a private engine with `make engine`"

NO_ROOM = "no space left"  # in whatever case an engine or a registry says it
NO_ROOM_HINT = "make room on the disk of that engine (`docker system df` there), and run it again"


class RefusedError(EngineError):
    """The engine answered, and said no: ``status`` is the HTTP status, ``said`` the engine's own words."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(f"the Docker engine says: {said}")
        self.status = status
        self.said = said


class SlowError(EngineError):
    """No whole answer in time; ``partial`` is the part of the body that did arrive."""

    def __init__(self, message: str, *, partial: bytes = b"", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.partial = partial


def slow(endpoint: Endpoint, timeout: float, partial: bytes = b"") -> SlowError:
    """No answer within ``timeout`` seconds."""
    return SlowError(
        f"the engine at {endpoint.host} has not answered for {timeout:g} seconds",
        partial=partial,
        hint="is the machine overloaded, or its disk full? `docker info` shows whether the engine is well",
    )


def unreachable(endpoint: Endpoint, error: Exception) -> EngineError:
    """Nobody answers there, for the reason in ``error``."""
    where = f"{endpoint.host} (from {endpoint.origin})"
    if isinstance(error, PermissionError):
        return EngineError(
            f"no permission to use the Docker engine at {where}",
            hint="add yourself to its group, then log in again: `sudo usermod -aG docker $USER`",
        )
    why = getattr(error, "strerror", None) or str(error)
    return EngineError(f"no Docker engine answers at {where}: {why}", hint=START_HINT)


def foreign(endpoint: Endpoint, said: str = "") -> EngineError:
    """Something else than an engine answers there, or nothing more; ``said`` is what the way to it says."""
    why = f": {said}" if said else ""
    return EngineError(
        f"what answers at {endpoint.host} (from {endpoint.origin}) is not a Docker engine, or it stopped{why}",
        hint=START_HINT,
    )
