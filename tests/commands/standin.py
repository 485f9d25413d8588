#!/usr/bin/env python3
"""Stands in for `vllm serve` where no model is served: logs as vLLM does, and answers /health, /metrics and /v1/models.
It rates forced texts, too: each byte is a token.

--crash          ends with an error while it starts; --crash-message TEXT is that
--crash-once     does so the first time only
--slow SECONDS   takes so long to start; --slow-head SECONDS on the first node only
--crash-further  ends with an error on further nodes only
--stubborn       ignores SIGTERM
--headless       answers nobody, as vLLM on further nodes
--chooses NAME   says that it chose this attention backend
"""

import json
import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

METRICS = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="a {{b}} c"}} 2.0
vllm:num_requests_waiting{{engine="0",model_name="a {{b}} c"}} 1.0
vllm:prompt_tokens_total{{engine="0",model_name="a {{b}} c"}} 1200.0
vllm:generation_tokens_total{{engine="0",model_name="a {{b}} c"}} {tokens}
vllm:kv_cache_usage_perc{{engine="0",model_name="a {{b}} c"}} 0.25
vllm:spec_decode_num_draft_tokens_total{{engine="0",model_name="a {{b}} c"}} 2000.0
vllm:spec_decode_num_accepted_tokens_total{{engine="0",model_name="a {{b}} c"}} 1760.0
"""
# vllm/v1/worker/utils.py (0.32.0)
NO_MEMORY = (
    "ValueError: Free memory on device cuda:0 (9.31/119.7 GiB) on startup is less than desired GPU memory utilization "
    "(0.92, 110.12 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
)
BEGAN = time.monotonic()
LOSS = 0.0  # of the logarithm of each probability


def option(name: str, default: str) -> str:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class Server(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/die":
            os._exit(1)
        text = METRICS.format(tokens=1000 * (time.monotonic() - BEGAN)) if self.path == "/metrics" else "ok"
        if self.path == "/v1/models":
            text = json.dumps({"data": [{"id": sys.argv[2], "root": sys.argv[2], "max_model_len": 4096}]})
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = body.get("prompt", json.dumps(body.get("messages")))
        if self.path == "/tokenize":
            answer = {"tokens": list(prompt.encode())}
        elif "prompt_logprobs" in body:
            scores = [{str(token): {"logprob": -1 - token % 7 - LOSS, "rank": 1}} for token in prompt[1:]]
            answer = {"choices": [{"prompt_logprobs": [None, *scores]}]}
        else:
            answer = {"choices": [{"message": {"content": "42"}}]}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_request(self, *_: object) -> None:
        pass


def crashes() -> bool:
    before = Path("/crashed")
    if "--crash-once" in sys.argv and not before.exists():
        before.touch()
        return True
    return "--crash" in sys.argv or {"--crash-further", "--headless"} <= set(sys.argv)


say("arguments " + json.dumps(sys.argv))
say("token " + str(len(os.environ.get("HF_TOKEN", ""))))
if "--stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "--chooses" in sys.argv:
    backend = option("--chooses", "")
    say(
        f"INFO 11-21 04:00:00 [cuda.py:381] Using {backend} attention backend out of potential backends: ['{backend}']."
    )
say(f"INFO Starting to load model {sys.argv[2]}...")
time.sleep(float(option("--slow", "0")))
if "--headless" not in sys.argv:
    time.sleep(float(option("--slow-head", "0")))
if crashes():
    say(f"(EngineCore pid=7) ERROR 11-21 04:00:00 [core.py:946] {option('--crash-message', NO_MEMORY)}")
    say("RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}")
    sys.exit(1)
say("Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:00<00:00,  1.00it/s]")
say("INFO Graph capturing finished in 2 secs, took 0.10 GiB")
if "--headless" in sys.argv:
    signal.pause()
say("INFO:     Application startup complete.")
ThreadingHTTPServer((option("--host", "127.0.0.1"), int(option("--port", "8000"))), Server).serve_forever()
