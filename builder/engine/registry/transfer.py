"""Pushes and pulls: the engine transfers the layers that the other side lacks.

https://docs.docker.com/reference/api/engine/ (ImagePush, ImageCreate); the response is a JSON object a line.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from builder import humanize
from builder.engine.client import json_lines
from builder.engine.client.api import quoted, stream
from builder.engine.client.errors import NO_ROOM, NO_ROOM_HINT, EngineHTTPError, EngineTimeoutError
from builder.engine.reference import DIGEST, split_tag
from builder.errors import TransferError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.engine.client.endpoint import Endpoint

_NO_CREDENTIALS = {"X-Registry-Auth": "e30="}
# An engine reports its progress several times a second, and repeats itself while a registry hangs.
IDLE = 120.0
_TRANSFERRING = ("Downloading", "Pushing")
# The last status of a push, `7: digest: sha256:… size: 855`, on either image store.
_PUSHED_DIGEST = re.compile(f"digest: ({DIGEST}) size: ")


@dataclass(frozen=True)
class LayerProgress:
    """The progress of a transfer, in bytes of the layers that the other side lacks; ``unpacking`` once the engine has
    them and unpacks them."""

    current: int
    total: int
    unpacking: bool = False

    def __str__(self) -> str:
        return "unpacking" if self.unpacking else humanize.size_of(self.current, self.total)


@dataclass(frozen=True)
class PulledLayers:
    """The layers that a pull fetched: their number, and the bytes of those large enough for progress to be reported."""

    layers: int
    bytes: int

    def __str__(self) -> str:
        count = humanize.counted(self.layers, "layer")
        return f"{count}, {humanize.size(self.bytes)}" if self.bytes else count


OnLayerProgress = Callable[[LayerProgress], None]


@dataclass
class _Layers:
    """The state of each layer of a transfer; ``amounts`` are bytes transferred, and bytes in all."""

    amounts: dict[str, tuple[int, int]] = field(default_factory=dict)
    lacking: set[str] = field(default_factory=set)
    last: dict[str, tuple[object, object]] = field(default_factory=dict)
    digest: str = ""
    changed_at: float = field(default_factory=time.monotonic)

    def is_stuck(self, status: Mapping[str, Any]) -> bool:
        """True if no layer has changed for longer than `IDLE`."""
        layer = status.get("id", "")
        state = (status.get("status"), (status.get("progressDetail") or {}).get("current"))
        if self.last.get(layer) != state:
            self.last[layer] = state
            self.changed_at = time.monotonic()
        return time.monotonic() - self.changed_at > IDLE

    def progress(self, status: Mapping[str, Any]) -> LayerProgress | None:
        """Records a status; returns the progress of all layers where it changes that."""
        phase, layer, detail = status.get("status"), status.get("id", ""), status.get("progressDetail") or {}
        if phase == "Pulling fs layer":
            self.lacking.add(layer)
        if phase in _TRANSFERRING and detail.get("total"):
            self.amounts[layer] = (int(detail.get("current") or 0), int(detail["total"]))
        elif phase != "Extracting":
            return None
        return LayerProgress(*self.sums(), unpacking=phase == "Extracting")

    def sums(self) -> tuple[int, int]:
        """Returns the bytes transferred and the bytes in all, of all layers together."""
        return sum(current for current, _ in self.amounts.values()), sum(total for _, total in self.amounts.values())


def push(endpoint: Endpoint, reference: str, auth_headers: Mapping[str, str], on_progress: OnLayerProgress) -> str:
    """Pushes the engine's image of this reference; returns the digest that the reference now has in the registry.

    Raises TransferError where the registry did not take all of it: the next try need not send those layers again.
    """
    repository, tag = split_tag(reference)
    path = f"/images/{quoted(repository)}/push"
    return _follow(endpoint, path, {"tag": tag}, auth_headers, on_progress, f"{reference} was not pushed").digest


def pull(
    endpoint: Endpoint,
    repository: str,
    version: str,
    auth_headers: Mapping[str, str],
    on_progress: OnLayerProgress,
    platform: str = "",
) -> PulledLayers:
    """Pulls the tag or digest ``version`` of ``repository`` (``HOST/NAME``), for ``platform`` if it is given; returns
    the layers that the engine lacked.

    Raises TransferError where not all of it came, or where the content does not match its digests.
    """
    query = {"fromImage": repository, "tag": version, **({"platform": platform} if platform else {})}
    layers = _follow(endpoint, "/images/create", query, auth_headers, on_progress, f"{repository} was not pulled")
    return PulledLayers(len(layers.lacking), layers.sums()[1])


def _follow(
    endpoint: Endpoint,
    path: str,
    query: Mapping[str, str],
    auth_headers: Mapping[str, str],
    on_progress: OnLayerProgress,
    failed: str,
) -> _Layers:
    layers = _Layers()
    where = f"{failed} ({endpoint.origin})"
    headers = {**_NO_CREDENTIALS, **auth_headers}
    body = stream(endpoint, path, query=dict(query), method="POST", headers=headers, timeout=IDLE, idle=IDLE)
    try:
        for status in json_lines.objects(body):
            if error := status.get("error") or (status.get("errorDetail") or {}).get("message"):
                raise TransferError(f"{where}: {error}", hint=_hint(str(error)))
            if layers.is_stuck(status):
                raise _stuck(where)
            if progress := layers.progress(status):
                on_progress(progress)
            if match := _PUSHED_DIGEST.search(str(status.get("status"))):
                layers.digest = match[1]
    except json.JSONDecodeError:
        raise TransferError(
            "the engine's response broke off", hint="`docker info` tells if the engine runs; then run this again"
        ) from None
    except EngineHTTPError as error:
        raise TransferError(f"{where}: {error.explanation}", hint=_hint(error.explanation)) from None
    except EngineTimeoutError:
        raise _stuck(where) from None
    return layers


def _stuck(where: str) -> TransferError:
    return TransferError(
        f"{where}: nothing has moved for {IDLE:g} seconds",
        hint="does the registry answer, is its disk or the network slow?",
    )


def _hint(error: str) -> str:
    lowered = error.lower()
    for phrases, hint in _HINTS:
        if any(phrase in lowered for phrase in phrases):
            return hint
    return "run it again: layers that were transferred are not transferred again"


_HINTS = (
    ((NO_ROOM,), NO_ROOM_HINT),
    (("unauthorized", "no basic auth", "denied", "authentication required"), "log in first: `docker login REGISTRY`"),
    (
        ("connection refused", "no such host", "i/o timeout", "no route to host"),
        "is the registry running, and is its name right?",
    ),
    (
        ("server gave http response to https client",),
        'engines use plain HTTP for 127.0.0.0/8 only: add the registry to "insecure-registries" of their daemon.json',
    ),
    (
        ("unexpected commit digest", "failed size validation", "invalid checksum", "digest mismatch"),
        "the registry sent content that does not match its digest: its disk or a proxy in front of it is at fault",
    ),
)
