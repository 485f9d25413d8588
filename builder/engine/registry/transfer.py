"""Moving images between an engine and a registry. The engine moves the layers, and only those that are lacking.

https://docs.docker.com/reference/api/engine/ (ImagePush, ImageCreate); the answer is a JSON object a line.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from builder.engine.client.api import quoted, stream
from builder.engine.client.errors import NO_ROOM, NO_ROOM_HINT, EngineHTTPError, EngineTimeoutError
from builder.errors import TransferError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from builder.engine.client.endpoint import Endpoint

_NO_LOGIN = {"X-Registry-Auth": "e30="}
# An engine says several times a second how far it is, the same again where nothing moves: a registry that hangs.
IDLE = 120.0
_AMOUNTS = ("Downloading", "Pushing")
# The last thing that an engine says of a push, `7: digest: sha256:… size: 855`, whatever its image store.
_DIGEST = re.compile(r"digest: (sha256:[0-9a-f]{64}) size: ")


@dataclass(frozen=True)
class LayerProgress:
    """How far a transfer is: bytes of the layers that move (those that are there already do not), and whether the
    engine is past them and unpacks."""

    current: int
    total: int
    unpacking: bool = False


@dataclass(frozen=True)
class PulledLayers:
    """What an engine lacked and got: layers, and the bytes of those large enough that it said how far it was."""

    layers: int
    bytes: int


OnLayerProgress = Callable[[LayerProgress], None]


@dataclass
class _Layers:
    """What was said of each layer: bytes moved, bytes in all."""

    known: dict[str, tuple[int, int]] = field(default_factory=dict)
    lacking: set[str] = field(default_factory=set)
    last: dict[str, tuple[object, object]] = field(default_factory=dict)
    digest: str = ""
    news_at: float = field(default_factory=time.monotonic)

    def is_stuck(self, said: Mapping[str, Any]) -> bool:
        """Whether nothing new has been said of any layer for longer than `IDLE`."""
        layer = said.get("id", "")
        now = (said.get("status"), (said.get("progressDetail") or {}).get("current"))
        if self.last.get(layer) != now:
            self.last[layer] = now
            self.news_at = time.monotonic()
        return time.monotonic() - self.news_at > IDLE

    def amount(self, said: Mapping[str, Any]) -> LayerProgress | None:
        word, layer, detail = said.get("status"), said.get("id", ""), said.get("progressDetail") or {}
        if word == "Pulling fs layer":
            self.lacking.add(layer)
        if word in _AMOUNTS and detail.get("total"):
            self.known[layer] = (int(detail.get("current") or 0), int(detail["total"]))
        elif word != "Extracting":
            return None
        return LayerProgress(*self.sums(), unpacking=word == "Extracting")

    def sums(self) -> tuple[int, int]:
        return sum(now for now, _ in self.known.values()), sum(total for _, total in self.known.values())


def push(endpoint: Endpoint, reference: str, login: Mapping[str, str], on_progress: OnLayerProgress) -> str:
    """Pushes the image that the engine has under this reference; returns the digest that the registry now has there.

    Raises TransferError where the registry did not take all of it: what it took is there for the next try.
    """
    _, _, tag = reference.rpartition(":")
    path = f"/images/{quoted(reference.removesuffix(':' + tag))}/push"
    return _follow(endpoint, path, {"tag": tag}, login, on_progress, f"{reference} was not pushed").digest


def pull(
    endpoint: Endpoint, repository: str, version: str, login: Mapping[str, str], on_progress: OnLayerProgress
) -> PulledLayers:
    """Pulls the tag or digest ``version`` of ``repository`` (``HOST/NAME``); returns what the engine
    lacked. Raises TransferError where not all of it came, or something else than its digests say."""
    query = {"fromImage": repository, "tag": version}
    layers = _follow(endpoint, "/images/create", query, login, on_progress, f"{repository} was not pulled")
    return PulledLayers(len(layers.lacking), layers.sums()[1])


def _follow(
    endpoint: Endpoint,
    path: str,
    query: Mapping[str, str],
    login: Mapping[str, str],
    on_progress: OnLayerProgress,
    failed: str,
) -> _Layers:
    layers = _Layers()
    where = f"{failed} ({endpoint.origin})"
    headers = {**_NO_LOGIN, **login}
    try:
        for said in _objects(
            stream(endpoint, path, query=dict(query), method="POST", headers=headers, timeout=IDLE, idle=IDLE)
        ):
            if error := said.get("error") or (said.get("errorDetail") or {}).get("message"):
                raise TransferError(f"{where}: {error}", hint=_hint(str(error)))
            if layers.is_stuck(said):
                raise _stuck(where)
            if amount := layers.amount(said):
                on_progress(amount)
            if found := _DIGEST.search(str(said.get("status"))):
                layers.digest = found[1]
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


def _objects(pieces: Iterator[bytes]) -> Iterator[dict[str, Any]]:
    """The JSON objects of the lines; an answer that ends in the middle of one was cut off."""
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.strip():
                yield json.loads(line)
    if rest.strip():
        try:
            yield json.loads(rest)
        except ValueError:
            raise TransferError("the engine stopped in mid-answer", hint="is it running? Then try again") from None


def _hint(said: str) -> str:
    words = said.lower()
    for signs, hint in _HINTS:
        if any(sign in words for sign in signs):
            return hint
    return "run it again: what has moved need not move again"


_HINTS = (
    ((NO_ROOM,), NO_ROOM_HINT),
    (("unauthorized", "no basic auth", "denied", "authentication required"), "log in first: `docker login REGISTRY`"),
    (
        ("connection refused", "no such host", "i/o timeout", "no route to host"),
        "does the registry run, is its name right?",
    ),
    (
        ("server gave http response to https client",),
        'engines take plain HTTP from 127.0.0.0/8 alone: add it to "insecure-registries" of their daemon.json',
    ),
    (
        ("unexpected commit digest", "failed size validation", "invalid checksum", "digest mismatch"),
        "the registry sent other bytes than the digest says: its disk or a proxy before it is at fault",
    ),
)
