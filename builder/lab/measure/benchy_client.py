"""llama-benchy with the server's token counts; runs in the environment of the tool.

llama-benchy 0.4.0 counts only chunks that contain text (https://github.com/eugr/llama-benchy, client.py). vLLM sends a
chunk for each step. A chunk may contain several tokens, no token, or a token that is not text yet. If the counted
tokens of an answer differ from its `usage`, the `usage` counts. The file in RECOUNTED gets a line for each such answer.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from llama_benchy import __main__ as program
from llama_benchy.client import LLMClient

TOLERANCE = 0.02


class ReconciledClient(LLMClient):  # type: ignore[misc]  # the tool has no types
    def _finalize_stream_tokens(self, result: Any, chunks: list[dict[str, Any]], usage: int | None, *more: Any) -> None:
        """Counts the tokens of an answer, from the ``chunks`` of its text."""
        counted = sum(len(chunk["token_ids"] or ()) for chunk in chunks)
        if usage and counted and abs(counted - usage) > TOLERANCE * usage:
            # Tokens that are not text yet came between the chunks with text: each chunk gets an equal share of all
            # tokens.
            share, rest = divmod(usage, len(chunks))
            shares = [share + (number < rest) for number in range(len(chunks))]
            chunks = [{**chunk, "token_ids": [0] * size} for chunk, size in zip(chunks, shares, strict=True)]
            _record({"counted": counted, "tokens": usage})
        super()._finalize_stream_tokens(result, chunks, usage, *more)


def _record(line: dict[str, Any]) -> None:
    with Path(os.environ["RECOUNTED"]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    _record({})  # the tool is installed
    program.LLMClient = ReconciledClient
    if "BUILDER_API_KEY" in os.environ:
        # The tool accepts a key only as an argument, which every user of the machine can see.
        sys.argv[1:1] = ["--api-key", os.environ.pop("BUILDER_API_KEY")]
    program.main()
