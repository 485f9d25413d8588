"""The model that a server answers for, asked over its OpenAI API."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from builder import http_client
from builder.errors import MeasuringError
from builder.http_client import NoAnswerError

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    return _sent("GET", address, key, seconds).decode(errors="replace")


def complete(served: ServedModel, body: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The answer to a chat completion. Raises NoAnswerError."""
    return post(served, f"{served.address}/chat/completions", body, seconds)


def post(served: ServedModel, url: str, body: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The answer of the served model's server at ``url`` to a request for the model. Raises NoAnswerError."""
    content = _sent("POST", url, served.key, seconds, {"model": served.name, **body})
    try:
        parsed = json.loads(content)
    except ValueError as error:
        raise NoAnswerError(str(error)) from None
    if not isinstance(parsed, dict):
        raise NoAnswerError("the answer is no JSON object")
    return parsed


def stream(served: ServedModel, body: dict[str, Any], seconds: float) -> Iterator[dict[str, Any]]:
    """The events of a streamed chat completion. Raises NoAnswerError, also where it ends before it is complete."""
    wanted = {"model": served.name, "stream": True, "stream_options": {"include_usage": True}, **body}
    with (
        http_client.near(seconds, _headers(served.key)) as client,
        client.stream("POST", f"{served.address}/chat/completions", json=wanted) as answer,
    ):
        if not answer.is_success:
            refusal = b"".join(http_client.limited(answer.iter_bytes(), _LARGEST, seconds))
            raise _refused(answer.status_code, refusal)
        for line in http_client.limited(answer.iter_lines(), _LARGEST, seconds):
            text = line.removeprefix("data:").strip()
            if not line.startswith("data:"):
                continue
            if text == "[DONE]":
                return
            try:
                event = json.loads(text)
            except ValueError as error:
                raise NoAnswerError(str(error)) from None
            if isinstance(event, dict):
                yield event
    raise NoAnswerError("the stream ended before it was complete")


def answers(served: ServedModel, seconds: float = _SECONDS) -> bool:
    """True if the model still answers a short question."""
    body = {"messages": [{"role": "user", "content": "Say yes."}], "max_tokens": 4, "temperature": 0}
    try:
        return bool(complete(served, body, seconds).get("choices"))
    except NoAnswerError:
        return False


def _sent(method: str, url: str, key: str, seconds: float, body: dict[str, Any] | None = None) -> bytes:
    with http_client.near(seconds, _headers(key)) as client:
        answer = http_client.send(client, method, url, largest=_LARGEST, seconds=seconds, body=body)
    if not answer.is_success:
        raise _refused(answer.status_code, answer.content)
    return answer.content


def _headers(key: str) -> dict[bytes, bytes]:
    return {b"Authorization": f"Bearer {key}".encode()} if key else {}


def _refused(status: int, content: bytes) -> NoAnswerError:
    return NoAnswerError(f"the server answers {status}: {content[:300].decode(errors='replace')}")
