"""What a registry has under a name, without pulling it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from builder.engine import images, logins
from builder.engine.api import quoted, request
from builder.engine.endpoint import environment
from builder.engine.faults import RefusedError, SlowError
from builder.errors import EngineError, TransferError

if TYPE_CHECKING:
    from builder.engine.endpoint import Endpoint

WAIT = 20.0  # seconds
_UNKNOWN = ("manifest unknown", "name unknown", "not found", "no such manifest")


def digest(endpoint: Endpoint, reference: str) -> str | None:
    """The digest of what the registry has under ``reference``, asked by the engine with the person's login; None where
    it has nothing. Raises TransferError where it does not answer, or lets nobody in."""
    try:
        path = f"/distribution/{quoted(reference)}/json"
        said = request(endpoint, "GET", path, headers=logins.headers(reference), timeout=WAIT)
    except RefusedError as error:
        if any(word in error.said.lower() for word in _UNKNOWN):
            return None
        raise TransferError(f"the registry was asked for {reference}: {error.said}", hint=_ASK) from None
    except SlowError:
        raise TransferError(f"the registry with {reference} has not answered for {WAIT:g} seconds", hint=_ASK) from None
    return str(said["Descriptor"]["digest"])


_ASK = "is the registry of builder.yaml running, and are you logged in (`docker login`)?"


def fingerprint(endpoint: Endpoint, reference: str, platform: str) -> str:
    """The fingerprint (`images.fingerprint`) of what the registry has under ``reference``: its configuration tells.

    Where that is for several platforms, the one for ``platform`` counts. Raises TransferError where it cannot be read.
    """
    try:
        said = json.loads(inspected(endpoint, reference, "--format", "{{json .Image}}"))
        found = said.get(platform) or said
        config = {
            "Id": "",
            "Os": found.get("os"),
            "Architecture": found.get("architecture"),
            "Variant": found.get("variant"),
            "RootFS": {"Layers": found["rootfs"]["diff_ids"]},
            "Config": found.get("config"),
        }
    except (KeyError, AttributeError):
        raise TransferError(f"{reference} is no image: its configuration names no layers") from None
    return images.fingerprint(images.details(config))


def inspected(endpoint: Endpoint, reference: str, *how: str) -> str:
    """What ``docker buildx imagetools inspect`` prints of ``reference``, as JSON.

    Raises TransferError where that cannot be read, EngineError where buildx does not run.
    """
    import os
    import subprocess

    argv = [*endpoint.buildx, "imagetools", "inspect", reference, *how]
    try:
        done = subprocess.run(
            argv, env={**os.environ, **environment(endpoint)}, capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        raise EngineError(f"`{' '.join(argv[: -len(how) - 2])}` does not run, or not to its end") from None
    try:
        json.loads(done.stdout)
    except ValueError:
        raise TransferError(f"what {reference} is cannot be read: {done.stderr.strip()[-300:]}", hint=_ASK) from None
    return done.stdout


def repository(reference: str) -> str:
    """``reference`` without its tag and digest; a colon before a slash belongs to the registry's port."""
    return images.split(reference.partition("@")[0])[0]
