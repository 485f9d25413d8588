"""The model that a server answers for, asked over its OpenAI API."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from builder.errors import MeasuringError

if TYPE_CHECKING:
    from collections.abc import Iterator

_Part = TypeVar("_Part", bytes, str)

_SECONDS = 30.0
_LARGEST = 16 << 20
_DEFAULT_CONTEXT = 4096


@dataclass(frozen=True)
class ServedModel:
    """A server's ``address`` (``http://HOST:PORT/v1``), the name of the model there, and the tokens of its longest
    context. ``source`` is the model as the server loaded it: an id of the Hub, or a folder of its own. ``key`` is what
    the server asks its clients for; empty where it asks for none."""

    address: str
    name: str
    context: int
    source: str = ""
    key: str = field(default="", repr=False)

    @property
    def root(self) -> str:
        """The address of what is no part of the OpenAI API."""
        return self.address.removesuffix("/v1")


class NoAnswerError(Exception):
    """A request without a usable answer; the text says why. While a model is measured this is a result."""


def look(address: str, key: str = "") -> ServedModel:
    """The model that the server at ``address``, which asks for ``key``, answers for. Raises MeasuringError where it
    does not answer."""
    try:
        listing = json.loads(get(f"{address}/models", key=key))
        model = listing["data"][0]
        context = model.get("max_model_len")
        longest = context if isinstance(context, int) else _DEFAULT_CONTEXT
        return ServedModel(address, str(model["id"]), longest, str(model.get("root") or ""), key)
    except (NoAnswerError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise MeasuringError(
            f"{address}/models does not list a model: {error}",
            hint="`builder status` tells if the server answers; its key is read from --api-key and VLLM_API_KEY alone",
        ) from None


def get(address: str, seconds: float = _SECONDS, key: str = "") -> str:
    """The text at ``address``, of a server that asks for ``key``. Raises NoAnswerError where it does not come,
    or not completely."""
    import httpx2

    try:
        with _client(seconds, key) as client, client.stream("GET", address) as response:
            content = _content(response.iter_bytes(), seconds)
            if not response.is_success:
                raise NoAnswerError(_refusal(response.status_code, content))
            return content.decode()
    except (httpx2.HTTPError, OSError, UnicodeDecodeError) as error:
        raise NoAnswerError(_reason(error)) from None


def complete(served: ServedModel, body: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The answer to a chat completion. Raises NoAnswerError."""
    return post(served, f"{served.address}/chat/completions", body, seconds)


def post(served: ServedModel, url: str, body: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The answer of the served model's server at ``url`` to a request for the model. Raises NoAnswerError."""
    import httpx2

    try:
        with (
            _client(seconds, served.key) as client,
            client.stream("POST", url, json={"model": served.name, **body}) as answer,
        ):
            content = _content(answer.iter_bytes(), seconds)
            if not answer.is_success:
                raise NoAnswerError(_refusal(answer.status_code, content))
        parsed = json.loads(content)
    except (httpx2.HTTPError, OSError, ValueError) as error:
        raise NoAnswerError(_reason(error)) from None
    if not isinstance(parsed, dict):
        raise NoAnswerError("the answer is no JSON object")
    return parsed


def stream(served: ServedModel, body: dict[str, Any], seconds: float) -> Iterator[dict[str, Any]]:
    """The events of a streamed chat completion. Raises NoAnswerError, also where it ends before it is complete."""
    import httpx2

    wanted = {"model": served.name, "stream": True, "stream_options": {"include_usage": True}, **body}
    is_complete = False
    try:
        with (
            _client(seconds, served.key) as client,
            client.stream("POST", f"{served.address}/chat/completions", json=wanted) as answer,
        ):
            if not answer.is_success:
                raise NoAnswerError(_refusal(answer.status_code, _content(answer.iter_bytes(), seconds)))
            for line in _limited(answer.iter_lines(), seconds):
                text = line.removeprefix("data:").strip()
                if not line.startswith("data:"):
                    continue
                if text == "[DONE]":
                    is_complete = True
                    break
                event = json.loads(text)
                if isinstance(event, dict):
                    yield event
    except (httpx2.HTTPError, OSError, ValueError) as error:
        raise NoAnswerError(_reason(error)) from None
    if not is_complete:
        raise NoAnswerError("the stream ended before it was complete")


def answers(served: ServedModel, seconds: float = _SECONDS) -> bool:
    """True if the model still answers a short question."""
    body = {"messages": [{"role": "user", "content": "Say yes."}], "max_tokens": 4, "temperature": 0}
    try:
        return bool(complete(served, body, seconds).get("choices"))
    except NoAnswerError:
        return False


def _client(seconds: float, key: str) -> Any:
    import ssl

    import httpx2

    # The server is here or on a node: no proxy of the user's environment leads to it. Nor does TLS: to load the
    # certificates takes longer than a short answer.
    headers = {b"Authorization": f"Bearer {key}".encode()} if key else {}
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return httpx2.Client(timeout=seconds, trust_env=False, verify=tls, headers=headers)


def _content(parts: Iterator[bytes], seconds: float) -> bytes:
    return b"".join(_limited(parts, seconds))


def _limited(parts: Iterator[_Part], seconds: float) -> Iterator[_Part]:
    """Passes the parts of an answer on, for so long and as many as an answer may take: one byte a second never ends."""
    began, size = time.monotonic(), 0
    for part in parts:
        size += len(part)
        if size > _LARGEST:
            raise NoAnswerError(f"the answer is longer than {_LARGEST >> 20} MiB")
        if time.monotonic() - began > seconds:
            raise NoAnswerError(f"the answer was not complete after {seconds:g} s")
        yield part


def _refusal(status: int, content: bytes) -> str:
    return f"the server answers {status}: {content[:300].decode(errors='replace')}"


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
