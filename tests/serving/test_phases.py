"""Phases recognised in vLLM's log lines, which are quoted from the sources that `phases` names."""

from __future__ import annotations

import pytest

from builder.serving import readiness
from builder.serving.readiness import Phase

PREFIX = "(EngineCore pid=113) INFO 11-21 04:00:00 [gpu_model_runner.py:5039] "
SHARDS = "Loading safetensors checkpoint shards:  40% Completed | 2/5 [00:02<00:03,  1.01s/it]"
CAPTURE = "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):"
BAR = f"\r{CAPTURE}   0%|          | 0/67\r{CAPTURE}  28%|██▊       | 19/67"


@pytest.mark.parametrize(
    ("line", "phase"),
    [
        (f"{PREFIX}Starting to load model Qwen/Qwen3-0.6B...", Phase("loading weights")),
        (SHARDS, Phase("loading weights", 40)),
        (f"{PREFIX}Loading weights took 12.31 seconds", Phase("loading weights")),
        ("Fetching 14 files:  7%|▋         | 1/14 [00:01<00:13]", Phase("downloading the model", 7)),
        (f"{PREFIX}Model loading took 14.51 GiB memory and 22.310000 seconds", Phase("warming up")),
        (f"{PREFIX}Using cache directory: /root/.cache/vllm for vLLM's torch.compile", Phase("compiling")),
        (f"{PREFIX}Dynamo bytecode transform time: 5.57 s", Phase("compiling")),
        (f"{PREFIX}Running FlashInfer autotune with 8192 tokens", Phase("warming up")),
        (f"{PREFIX}Rank 0: Torch profiler disabled for CUDA graph capture", Phase("capturing graphs")),
        (BAR, Phase("capturing graphs", 28)),
        (f"{PREFIX}Graph capturing finished in 20 secs, took 0.62 GiB", Phase("starting to answer")),
        (f"{PREFIX}init engine (profile, create kv cache, warmup model) took 40.82 s", Phase("starting to answer")),
        ("(APIServer pid=1) INFO:     Application startup complete.", Phase("ready")),
    ],
)
def test_a_line_tells_its_phase(line: str, phase: Phase) -> None:
    assert readiness.of_line(line) == phase


# From vllm/config/vllm.py, vllm/v1/engine/core.py and vllm/entrypoints/utils.py (0.32.0).
DUMP = (
    f"{PREFIX}Initializing a V1 LLM engine (v0.32.0) with config: model='Qwen/Qwen3-0.6B', "
    "compilation_config={'mode': 3, 'backend': 'inductor', 'cudagraph_mode': 'FULL'}, "
    "kernel_config={'enable_flashinfer_autotune': True}, torch.compile"
)
ARGS = f"{PREFIX}non-default args: {{'model_tag': 'Qwen/Qwen3-0.6B', 'autotune': True}}"


@pytest.mark.parametrize(
    "line",
    [
        "",
        "INFO: 127.0.0.1 - GET /health 200 OK",
        f"{PREFIX}GPU KV cache size: 1,000",
        f"{PREFIX}Enforce eager set, disabling torch.compile and CUDAGraphs.",
        f"{PREFIX}Skipping FlashInfer autotune because it is disabled.",
        DUMP,
        ARGS,
    ],
)
def test_other_lines_tell_none(line: str) -> None:
    assert readiness.of_line(line) is None


def test_the_last_phase_counts() -> None:
    assert readiness.latest_phase([SHARDS, BAR, "something else"]) == Phase("capturing graphs", 28)
    assert readiness.latest_phase(["something else"]) is None


def test_as_words() -> None:
    assert [str(Phase("loading weights", 40)), str(Phase("ready"))] == ["loading weights, 40 %", "ready"]
