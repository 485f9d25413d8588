"""HTTP requests: the clients, the limits of an answer in size and time, and one exception for every failure.

httpx2 limits the wait for the next piece of an answer, but not the size or the time of the whole answer: a server that
sends one byte a second would never end. huggingface_hub has its own client (`sources/hub.py`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import httpx2


_Part = TypeVar("_Part", bytes, str)

PIECE_SECONDS = 60.0
"""The longest wait for a connection, and for each piece of an answer."""
ANSWER_SECONDS = 900.0
"""The longest time for a whole answer, such as a file of 64 MiB on a slow line."""


class NoAnswerError(Exception):
    """A request without a usable answer; the text says why. If the failure is ``transient``, the same request may
    succeed later."""

    def __init__(self, why: str, *, transient: bool = False) -> None:
        super().__init__(why)
        self.transient = transient


@contextmanager
def following(ca_file: Path | None = None, *, login: httpx2.Auth | None = None) -> Iterator[httpx2.Client]:
    """A client that follows redirects and trusts the certificates of this machine and of SSL_CERT_FILE, or those in
    ``ca_file`` instead. In the block every failure is a NoAnswerError."""
    import ssl

    import httpx2

    with _failures():
        verify = ssl.create_default_context(cafile=ca_file) if ca_file else True
        with httpx2.Client(verify=verify, auth=login, timeout=PIECE_SECONDS, follow_redirects=True) as client:
            yield client


@contextmanager
def near(seconds: float, headers: Mapping[bytes, bytes]) -> Iterator[httpx2.Client]:
    """A client for a server on this machine or on a node. It uses no proxy, and loads no certificates: loading them
    takes longer than a short answer. In the block every failure is a NoAnswerError."""
    import ssl

    import httpx2

    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with _failures(), httpx2.Client(timeout=seconds, trust_env=False, verify=tls, headers=headers) as client:
        yield client


@contextmanager
def _failures() -> Iterator[None]:
    """Turns what httpx2 and the system raise into NoAnswerErrors."""
    import httpx2

    final = (httpx2.UnsupportedProtocol, httpx2.LocalProtocolError)
    try:
        yield
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
        is_transient = isinstance(error, httpx2.TransportError) and not isinstance(error, final)
        raise NoAnswerError(reason(error), transient=is_transient) from None


def send(
    client: httpx2.Client,
    method: str,
    url: str,
    *,
    largest: int,
    seconds: float = ANSWER_SECONDS,
    headers: Mapping[str, str] | None = None,
    body: Any = None,
) -> httpx2.Response:
    """The whole answer to a request, with ``body`` as JSON. Raises NoAnswerError for more than ``largest`` bytes and
    after ``seconds``."""
    import httpx2

    with client.stream(method, url, headers=headers, json=body) as answer:
        received = b"".join(limited(answer.iter_bytes(), largest, seconds))
        plain = {name: value for name, value in answer.headers.items() if name != "content-encoding"}
        return httpx2.Response(answer.status_code, headers=plain, content=received, request=answer.request)


def limited(parts: Iterable[_Part], largest: int, seconds: float = ANSWER_SECONDS) -> Iterator[_Part]:
    """Yields the parts of an answer. Raises NoAnswerError for more than ``largest`` bytes (characters of text) and
    after ``seconds``."""
    began, size = time.monotonic(), 0
    for part in parts:
        size += len(part)
        if size > largest:
            raise NoAnswerError(f"the server sent more than {largest:,} bytes")
        if time.monotonic() - began > seconds:
            raise NoAnswerError(f"the server did not finish its answer within {seconds:g} s", transient=True)
        yield part


def reason(error: Exception) -> str:
    """Returns the text of a failure without the number that the system puts before it."""
    import re

    return re.sub(r"^\[Errno -?\d+\] ", "", str(error)) or type(error).__name__


def status(answer: httpx2.Response) -> str:
    """The status of an answer in words, such as ``404 Not Found``."""
    return f"{answer.status_code} {answer.reason_phrase}".strip()
