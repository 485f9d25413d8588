"""A server that speaks as vLLM does and has the faults that measurements are to find. It stands for a faulty model: the
input of what is under test."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from builder.lab.measure.measurement import ServedModel

METRICS = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0"}} 0.0
vllm:prompt_tokens_total{{engine="0"}} {prompts}
vllm:generation_tokens_total{{engine="0"}} {tokens}
vllm:spec_decode_num_drafts_total{{engine="0"}} {drafts}
vllm:spec_decode_num_draft_tokens_total{{engine="0"}} {drafted}
vllm:spec_decode_num_accepted_tokens_total{{engine="0"}} {accepted}
"""

# The model: takes the request's body, and returns the message of its answer.
Model = Callable[[dict[str, Any]], dict[str, Any]]


# Rates the tokens of a prompt: what vLLM's `prompt_logprobs` are.
Rater = Callable[[list[int]], list[dict[str, dict[str, Any]] | None]]


def paris(_body: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": "Paris"}


@dataclass
class Behaviour:
    """How the server behaves; a test may change it meanwhile. Times are in seconds."""

    model: Model = paris
    prefill: float = 0.005
    prompt_character: float = 0.0
    """What a character of the prompt adds to ``prefill``."""
    token: float = 0.002
    context: int = 4096
    is_silent: bool = False
    """Takes requests and never answers them."""
    dies_after: int | None = None
    """The requests after which it answers 500."""
    page: Callable[[str], str] = field(default=lambda text: text)
    """The page of metrics as it is sent, for the whole one."""
    drafts: int = 0
    key: str = ""
    """Asks every client of /v1 for this key."""
    rater: Rater | None = None
    template: Callable[[dict[str, Any]], str | None] = field(default=lambda body: json.dumps(body["messages"]))
    """The prompt of messages that are to be tokenized; None where the model has no template."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    text_every: int = 1
    """Only each so-many-th token becomes text, as with characters of several tokens."""
    tokens: int = 0
    prompts: int = 0


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # As uvicorn's: each token leaves at once, also before the ones before it are acknowledged.
    disable_nagle_algorithm = True
    behaviour: Behaviour

    def do_GET(self) -> None:
        behaviour = self.behaviour
        if self.path == "/metrics":
            counts = {"drafts": behaviour.drafts, "drafted": 3 * behaviour.drafts, "accepted": 2 * behaviour.drafts}
            self._send(
                behaviour.page(METRICS.format(tokens=behaviour.tokens, prompts=behaviour.prompts, **counts)).encode()
            )
        else:
            if self._is_refused():
                return
            model = {"id": "served", "root": "org/served", "max_model_len": behaviour.context}
            self._send(json.dumps({"object": "list", "data": [model]}).encode())

    def do_POST(self) -> None:
        behaviour = self.behaviour
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self._is_refused():
            return
        behaviour.requests.append(body)
        while behaviour.is_silent:
            time.sleep(0.05)
        if behaviour.dies_after is not None and len(behaviour.requests) > behaviour.dies_after:
            self._send(b"EngineDeadError", 500)
            return
        if behaviour.rater and (self.path == "/tokenize" or "prompt" in body):
            self._send(json.dumps(self._rated(behaviour.rater, body)).encode())
            return
        prompt = len(json.dumps(body["messages"])) + len(json.dumps(body.get("tools", [])))
        time.sleep(behaviour.prefill + prompt * behaviour.prompt_character)
        message = behaviour.model(body)
        count = body["max_tokens"] if body.get("ignore_eos") else min(body.get("max_tokens", 16), 16)
        usage = {"prompt_tokens": prompt, "completion_tokens": count, "total_tokens": prompt + count}
        behaviour.tokens += count
        behaviour.prompts += prompt
        if behaviour.drafts:
            behaviour.drafts += count
        if body.get("stream"):
            self._stream(message, count, usage)
        else:
            reason = "tool_calls" if message.get("tool_calls") else "stop"
            answer = {"choices": [{"index": 0, "message": message, "finish_reason": reason}], "usage": usage}
            self._send(json.dumps(answer).encode())

    def _rated(self, rater: Rater, body: dict[str, Any]) -> dict[str, Any]:
        """The tokens of a text, a byte each; the rated prompt where it is tokens."""
        if self.path == "/tokenize":
            text = body["prompt"] if "prompt" in body else self.behaviour.template(body)
            start = [1] if body.get("add_special_tokens", True) and "prompt" in body else []
            return {"tokens": [*start, *text.encode()] if text is not None else None}
        assert self.path == "/v1/completions"
        return {"choices": [{"index": 0, "text": "x", "prompt_logprobs": rater(body["prompt"])}]}

    def _is_refused(self) -> bool:
        key = self.behaviour.key
        if key and self.headers["Authorization"] != f"Bearer {key}":
            self._send(b'{"error": "Unauthorized"}', 401)
            return True
        return False

    def _stream(self, message: dict[str, Any], count: int, usage: dict[str, int]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        calls = message.get("tool_calls") or []
        for number, call in enumerate(calls):
            function = call["function"]
            head = {"index": number, "id": call["id"], "type": "function", "function": {"name": function["name"]}}
            deltas.append({"tool_calls": [head]})
            text = function["arguments"]
            parts = (text[:3], text[3:])
            deltas += [{"tool_calls": [{"index": number, "function": {"arguments": part}}]} for part in parts]
        if not calls:
            every = self.behaviour.text_every
            texts = [message["content"] if number == 0 else " x" for number in range(count)]
            deltas += [{"content": text} if number % every == 0 else {} for number, text in enumerate(texts)]
        for number, delta in enumerate(deltas):
            # The chunk with the role comes with the first token, and holds none.
            self._event(json.dumps({"choices": [{"index": 0, "delta": delta, "token_ids": [1] if number else None}]}))
            if number:
                time.sleep(self.behaviour.token)
        reason = "tool_calls" if calls else "stop"
        self._event(json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}))
        self._event(json.dumps({"choices": [], "usage": usage}))
        self._event("[DONE]")

    def _event(self, text: str) -> None:
        self.wfile.write(f"data: {text}\n\n".encode())

    def _send(self, content: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(behaviour: Behaviour) -> Iterator[ServedModel]:
    """The server, and the model that it serves."""
    handler = type("Handler", (_Handler,), {"behaviour": behaviour})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        address = f"http://127.0.0.1:{server.server_address[1]}/v1"
        yield ServedModel(address, "served", behaviour.context, "org/served", behaviour.key)
    finally:
        behaviour.is_silent = False
        server.shutdown()
        server.server_close()
        thread.join()


def write_tokenizer(path: Path) -> Path:
    """Writes a tokenizer of one token for every byte, as the tokenizers package reads it."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    letters = [chr(byte) for byte in plain] + [chr(256 + number) for number in range(len(others))]
    bytewise = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    model = {"type": "BPE", "vocab": {letter: number for number, letter in enumerate(letters)}, "merges": []}
    content = {"version": "1.0", "added_tokens": [], "pre_tokenizer": bytewise, "decoder": bytewise, "model": model}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path
