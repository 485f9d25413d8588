"""Short buildx commands, run to their end for their output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.engine.client.endpoint import environment

if TYPE_CHECKING:
    import subprocess

    from builder.engine.client.endpoint import Endpoint


def run(endpoint: Endpoint, *arguments: str, timeout: float) -> subprocess.CompletedProcess[str] | None:
    """Runs buildx for this engine; None where it does not start, or does not end within ``timeout`` seconds."""
    import os
    import subprocess

    argv = [*endpoint.buildx, *arguments]
    environ = {**os.environ, **environment(endpoint)}
    try:
        return subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=timeout, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
