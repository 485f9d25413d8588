"""llama-benchy with answers that are counted as the server counts them; runs inside the environment of the tool.

llama-benchy 0.4.0 times only the chunks that hold text (https://github.com/eugr/llama-benchy, client.py). vLLM sends a
chunk for each step: it may hold several tokens, none, or a token that is not yet text. Here every chunk with tokens
counts, every request is compared with its `usage`, and the requests that run side by side with the server's counters.
A run that agrees with neither leaves no figure. Each comparison is a line of the file that RECONCILED names.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
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
# A server counts a step a moment after it sent it.
_LATE_SECONDS = (0.1, 0.3, 0.6)
_SAMPLE = re.compile(r"^vllm:(prompt|generation)_tokens_total(?:\{.*\})? (\S+)$", re.MULTILINE)


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
    """The tool's client; what it measured of an answer is put right, or taken away, before the tool makes figures."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._open = 0
        self._before: asyncio.Future[dict[str, float]] | None = None
        self._batch: list[tuple[Any, int, int | None]] = []

    async def measure_latency(self, session: Any, mode: str = "api") -> float:
        """The tool's latency, with the time of a first part in each of its requests."""
        heard = Heard(session)
        latency: float = await super().measure_latency(heard, mode)
        _record({"latency": heard.first_parts})
        return latency

    async def run_generation(self, session: Any, *args: Any, **options: Any) -> Any:
        """One request of the tool. Its result is whole when the last one beside it has ended."""
        if not self._open:
            self._before = asyncio.ensure_future(self._counters(session))
        self._open += 1
        before = await self._before if self._before else {}
        heard = Heard(session)
        result = await super().run_generation(heard, *args, **options)
        counted = result.total_tokens
        self._batch.append((result, counted, self._put_right(result, heard)))
        self._open -= 1
        if not self._open:
            batch, self._batch = self._batch, []
            await self._compare(session, before, batch, is_warm_up=options.get("progress") is None)
        return result

    def _put_right(self, result: Any, heard: Heard) -> int | None:
        """Counts every token of the answer; returns the answer's `usage`, None where it gives none."""
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
            return usage
        if usage is not None and differ(total, usage):
            # Their times are right, and their tokens are not: the answer's own count lies between first and last.
            chunks = [{**chunk, "token_ids": None} for chunk in chunks]
            total = usage
        if differ(result.total_tokens, total):
            result.total_tokens, result.token_timestamps = 0, []
            result.first_token_ts = chunks[0]["timestamp"]
            self._finalize_stream_tokens(result, chunks, usage)
        return usage

    async def _compare(
        self, session: Any, before: dict[str, float], batch: list[tuple[Any, int, int | None]], *, is_warm_up: bool
    ) -> None:
        results = [result for result, _, _ in batch]
        tokens = sum(result.total_tokens for result in results)
        prompt = sum(result.prompt_tokens for result in results)
        grown: dict[str, float] = {}
        for pause in _LATE_SECONDS:
            after = await self._counters(session)
            grown = {name: after[name] - before[name] for name in before if name in after}
            if not differ(grown.get("generation", tokens), tokens):
                break
            await asyncio.sleep(pause)
        if is_warm_up or any(result.error for result in results):
            return
        void = ""
        if differ(grown.get("generation", tokens), tokens):
            void = f"the server generated {grown['generation']:.0f} tokens, and its answers hold {tokens}"
        elif prompt and differ(grown.get("prompt", prompt), prompt):
            void = f"the server read {grown['prompt']:.0f} tokens of prompts, and its answers report {prompt}"
        elif any(usage is not None and differ(result.total_tokens, usage) for result, _, usage in batch):
            void = "an answer and its `usage` differ in the number of tokens"
        for result in results if void else ():
            # Without these the tool takes no figure from a result.
            result.first_response_ts = result.first_token_ts = None
            result.total_tokens, result.token_timestamps = 0, []
        counted = sum(counted for _, counted, _ in batch)
        is_recounted = not void and differ(counted, tokens)
        has_counters = "generation" in grown
        line = {"counted": counted, "tokens": tokens, "is_recounted": is_recounted}
        _record({**line, "void": void, "has_counters": has_counters})

    async def _counters(self, session: Any) -> dict[str, float]:
        """The server's tokens so far; nothing where it has no such page."""
        try:
            async with session.get(f"{self.base_url.removesuffix('/v1')}/metrics", headers=self.headers) as response:
                text = await response.text() if response.status == 200 else ""
        except (OSError, ValueError):
            return {}
        sums: dict[str, float] = {}
        for name, value in _SAMPLE.findall(text):
            sums[name] = sums.get(name, 0.0) + float(value)
        return sums


def _record(line: dict[str, Any]) -> None:
    with Path(os.environ["RECONCILED"]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    program.LLMClient = ReconciledClient
    if "BUILDER_API_KEY" in os.environ:
        # The tool takes a key as an argument alone, which every user of the machine can list.
        sys.argv[1:1] = ["--api-key", os.environ.pop("BUILDER_API_KEY")]
    program.main()
