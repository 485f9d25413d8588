"""The errors of a connection to an engine, each with a hint where the user can do something."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.errors import EngineError

if TYPE_CHECKING:
    from builder.engine.client.endpoint import Endpoint

START_HINT = "start Docker (`sudo systemctl start docker`), or start a private engine with `scripts/engine up`"

NO_ROOM = "no space left"  # in whatever case an engine or a registry says it
NO_ROOM_HINT = "make room on the disk of that engine (`docker system df` there), and run it again"


class EngineHTTPError(EngineError):
    """An HTTP error status from the engine: ``status`` is 400 or above, ``explanation`` the engine's own message."""

    def __init__(self, status: int, explanation: str) -> None:
        super().__init__(f"the Docker engine says: {explanation}")
        self.status = status
        self.explanation = explanation

    @property
    def is_not_found(self) -> bool:
        """True if the engine has no such image, container or other object."""
        return self.status == 404

    @property
    def is_conflict(self) -> bool:
        """True if the request conflicts with the object's state: a name taken, an image in use."""
        return self.status == 409


class EngineTimeoutError(EngineError):
    """A response that was not complete in time; ``partial`` is the part of the body that did arrive."""

    def __init__(self, message: str, *, partial: bytes = b"", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.partial = partial


class EngineAnswerTooLargeError(EngineError):
    """A response that is larger than its request can have."""


def timeout_error(endpoint: Endpoint, timeout: float, partial: bytes = b"") -> EngineTimeoutError:
    """Returns the error for no response within ``timeout`` seconds."""
    return EngineTimeoutError(
        f"the engine at {endpoint.host} has not answered for {timeout:g} seconds",
        partial=partial,
        hint="is the machine overloaded, or its disk full? `docker info` shows whether the engine is well",
    )


def unreachable_error(endpoint: Endpoint, error: Exception) -> EngineError:
    """Returns the error for an engine that cannot be reached, with the reason from ``error``."""
    where = f"{endpoint.host} (from {endpoint.origin})"
    if isinstance(error, PermissionError):
        return EngineError(
            f"no permission to use the Docker engine at {where}",
            hint="add yourself to its group, then log in again: `sudo usermod -aG docker $USER`",
        )
    why = getattr(error, "strerror", None) or str(error)
    return EngineError(f"no Docker engine answers at {where}: {why}", hint=START_HINT)


def not_an_engine_error(endpoint: Endpoint, detail: str = "") -> EngineError:
    """Returns the error for an answer that is empty or not an engine's; ``detail`` is ssh's error output."""
    why = f": {detail}" if detail else ""
    return EngineError(
        f"what answers at {endpoint.host} (from {endpoint.origin}) is not a Docker engine, or it stopped{why}",
        hint=START_HINT,
    )
