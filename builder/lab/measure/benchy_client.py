"""llama-benchy with answers that are counted as the server counts them; runs inside the environment of the tool.

llama-benchy 0.4.0 times only the chunks that hold text (https://github.com/eugr/llama-benchy, client.py). vLLM sends a
chunk for each step: it may hold several tokens, none, or a token that is not yet text. Here every chunk with tokens
counts, and every request is compared with its `usage`. The file that RECONCILED names gets a line for each request.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from llama_benchy import __main__ as program
from llama_benchy.client import LLMClient

TOLERANCE = 0.02


def differ(first: float, second: float) -> bool:
    return abs(first - second) > TOLERANCE * max(first, second)


class Heard:
    """A session whose answers are kept as they arrive, each part with its time, and the seconds to each first part."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.parts: list[tuple[float, bytes]] = []
        self.first_parts: list[float] = []

    @asynccontextmanager
    async def post(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        began = time.perf_counter()
        async with self._session.post(*args, **options) as response:
            yield SimpleNamespace(status=response.status, text=response.text, content=_Content(self, response, began))

    def events(self) -> list[tuple[float, dict[str, Any]]]:
        """The events of the stream, each with the time of its last byte."""
        events, rest = [], b""
        for when, part in self.parts:
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                text = line.strip().removeprefix(b"data:").strip()
                if line.startswith(b"data:") and text != b"[DONE]":
                    try:
                        events.append((when, json.loads(text)))
                    except ValueError:
                        continue
        return events


class _Content:
    def __init__(self, heard: Heard, response: Any, began: float) -> None:
        self._heard, self._response, self._began = heard, response, began
        self._is_first = True

    def iter_any(self) -> AsyncIterator[bytes]:
        return self._kept(self._response.content.iter_any())

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._kept(self._response.content)

    async def _kept(self, source: Any) -> AsyncIterator[bytes]:
        async for part in source:
            now = time.perf_counter()
            if self._is_first:
                self._heard.first_parts.append(now - self._began)
                self._is_first = False
            self._heard.parts.append((now, part))
            yield part


class ReconciledClient(LLMClient):  # type: ignore[misc]  # the tool has no types
    """The tool's client. It corrects the count of an answer before the tool makes figures of it."""

    async def measure_latency(self, session: Any, mode: str = "api") -> float:
        """The tool's latency, with the time of a first part in each of its requests."""
        heard = Heard(session)
        latency: float = await super().measure_latency(heard, mode)
        _record({"latency": heard.first_parts})
        return latency

    async def run_generation(self, session: Any, *args: Any, **options: Any) -> Any:
        heard = Heard(session)
        result = await super().run_generation(heard, *args, **options)
        counted = result.total_tokens
        self._count_again(result, heard)
        is_warm_up = options.get("progress") is None
        if not is_warm_up and not result.error and differ(counted, result.total_tokens):
            _record({"counted": counted, "tokens": result.total_tokens})
        return result

    def _count_again(self, result: Any, heard: Heard) -> None:
        usage, chunks = None, []
        for when, event in heard.events():
            reported = (event.get("usage") or {}).get("completion_tokens")
            usage = reported if isinstance(reported, int) else usage
            for choice in event.get("choices") or []:
                delta = choice.get("delta") or {}
                text = delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning") or ""
                tokens = choice.get("token_ids")
                if text or tokens:
                    chunks.append({"text": text, "timestamp": when, "token_ids": tokens})
        total = sum(len(chunk["token_ids"] or ()) for chunk in chunks)
        if result.error or not chunks:
            return
        if usage is not None and differ(total, usage):
            # Their times are right, and their tokens are not: the answer's own count lies between first and last.
            chunks = [{**chunk, "token_ids": None} for chunk in chunks]
            total = usage
        if differ(result.total_tokens, total):
            result.total_tokens, result.token_timestamps = 0, []
            result.first_token_ts = chunks[0]["timestamp"]
            self._finalize_stream_tokens(result, chunks, usage)


def _record(line: dict[str, Any]) -> None:
    with Path(os.environ["RECONCILED"]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    _record({})  # the tool is here
    program.LLMClient = ReconciledClient
    if "BUILDER_API_KEY" in os.environ:
        # The tool takes a key as an argument alone, which every user of the machine can list.
        sys.argv[1:1] = ["--api-key", os.environ.pop("BUILDER_API_KEY")]
    program.main()
