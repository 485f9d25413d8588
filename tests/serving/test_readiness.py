"""The cause of a crash, the phases of a start and the metrics, as vLLM's logs and pages tell them."""

from __future__ import annotations

import pytest

from builder.serving import readiness
from builder.serving.readiness import Phase, ServerMetrics

# The cause of a crash is told in a line, and whether another image would mend it. The logs are those of vLLM.

API = "(APIServer pid=1) "
CORE = "(EngineCore pid=113) ERROR 11-21 04:00:00 [core.py:946] "
TOO_LONG = [
    f"{API}Traceback (most recent call last):",
    f'{API}  File "/usr/local/bin/vllm", line 8, in <module>',
    f"{API}pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
    f"{API}  Value error, User-specified max_model_len (99999) is greater than the derived max_model_len "
    "(max_position_embeddings=40960 or model_max_length=None in model's config.json). [type=value_error, "
    "input_value=ArgsKwargs((), {'model': ...e, 'enable_mm_embeds': False}), input_type=ArgsKwargs]",
    f"{API}    For further information visit https://errors.pydantic.dev/2.12/v/value_error",
]
# vllm/v1/worker/utils.py (0.32.0)
NO_MEMORY = (
    "ValueError: Free memory on device cuda:0 (9.31/119.7 GiB) on startup is less than desired GPU memory utilization "
    "(0.92, 110.12 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
)
NOT_FOUND = [
    "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
    "  Value error, Invalid repository ID or local directory specified: 'Org/Nothing'.",
    "Please verify the following requirements:",
    "1. Provide a valid Hugging Face repository ID.",
    "2. Specify a local directory that contains a recognized configuration file.",
    "   - For Hugging Face models: ensure the presence of a 'config.json'.",
    "   - For Mistral models: ensure the presence of a 'params.json'.",
    " [type=value_error, input_value=ArgsKwargs((), {'model': ...}), input_type=ArgsKwargs]",
    "    For further information visit https://errors.pydantic.dev/2.12/v/value_error",
]


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (
            TOO_LONG,
            "User-specified max_model_len (99999) is greater than the derived max_model_len "
            "(max_position_embeddings=40960 or model_max_length=None in model's config.json).",
        ),
        (NOT_FOUND, "Invalid repository ID or local directory specified: 'Org/Nothing'."),
        (
            [
                "pydantic_core._pydantic_core.ValidationError: 2 validation errors for CacheConfig",
                "block_size",
                "  Input should be 1, 8, 16, 32, 64 or 128 [type=literal_error, input_value=3, input_type=int]",
                "    For further information visit https://errors.pydantic.dev/2.12/v/literal_error",
                "other",
                "  Input should be a valid integer [type=int_parsing]",
            ],
            "block_size: Input should be 1, 8, 16, 32, 64 or 128",
        ),
        (
            [
                "KeyError: 'x'",
                f"{CORE}{NO_MEMORY}",
                "Traceback (most recent call last):",
                "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
            ],
            NO_MEMORY,
        ),
        (
            [
                f"{CORE}FileNotFoundError: [Errno 2] No such file or directory: '/models/m/config.json'",
                "Exception: WorkerProc initialization failed due to an exception in a background process. "
                "See stack trace for root cause.",
                "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
            ],
            "FileNotFoundError: [Errno 2] No such file or directory: '/models/m/config.json'",
        ),
        (
            [
                "Traceback (most recent call last):",
                '  File "/opt/vllm/config/vllm.py", line 1004, in verify',
                "    assert self.block_size <= self.max_num_batched_tokens",
                "AssertionError",
            ],
            "AssertionError in /opt/vllm/config/vllm.py, line 1004",
        ),
        (
            ["usage: vllm serve [model_tag] [options]", "vllm serve: error: unrecognized arguments: --max-modle-len 3"],
            "vllm serve: error: unrecognized arguments: --max-modle-len 3",
        ),
        (["bash: line 1: vllm: command not found"], "bash: line 1: vllm: command not found"),
        (["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"], "OutOfMemoryError: CUDA out of"),
        (["killed"], ""),
        ([], ""),
        (["INFO 11-21 04:00:00 [x.py:1] no error: all is well"], ""),
    ],
)
def test_the_cause_is_the_last_error_that_says_something(lines: list[str], told: str) -> None:
    cause = readiness.crash_cause(lines)
    assert cause.startswith(told)
    assert bool(cause) == bool(told)
    assert "input_value" not in cause


@pytest.mark.parametrize(
    ("lines", "hint"),
    [
        (TOO_LONG, "the model itself takes no more: a smaller `--max-model-len`"),
        (NOT_FOUND, "`builder download {model}` fetches it"),
        (
            ["OSError: x is not a local folder and is not a valid model identifier listed on"],
            "`builder download {model}`",
        ),
        (["huggingface_hub.errors.GatedRepoError: 401 Client Error."], "set HF_TOKEN"),
        (["OSError: [Errno 98] Address already in use"], "`--port N` takes another port"),
    ],
)
def test_where_no_other_image_helps_it_is_said_what_does(lines: list[str], hint: str) -> None:
    cause = readiness.known_crash_cause(lines)
    assert cause is not None
    assert hint in cause.hint
    assert not cause.in_image


@pytest.mark.parametrize(
    "message",
    [
        "buffer_size (9663676416 B) exceeds device memory budget (3221225472 B)",
        "Device memory budget (1048576 B) is too small for one I/O operation; at least 16777216 B is required",
    ],
)
def test_a_loader_that_counts_the_page_cache_as_used_is_named(message: str) -> None:
    """The sentences of InstantTensor 0.2.0, as vLLM logs them. Another image may have another loader."""
    lines = [
        f"{CORE}RuntimeError: {message}",
        "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s)",
    ]
    cause = readiness.known_crash_cause(lines)
    assert cause is not None
    assert "InstantTensor before 0.2.1" in cause.hint
    assert "With a later one the memory is short" in cause.hint
    assert cause.in_image


@pytest.mark.parametrize("line", ["ImportError: cannot import name 'x'", "ValueError: No available memory", "killed"])
def test_any_other_cause_may_be_the_image(line: str) -> None:
    assert readiness.known_crash_cause([line]) is None


# The numbers in what a server says of itself.

TEXT = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="a} 7 {b \\" c"} 4.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 9.0
vllm:prompt_tokens_total{engine="0"} 1.2345678e+07
vllm:generation_tokens_total{engine="0"} 41.0 1700000000000
vllm:generation_tokens_created{engine="0"} 1.7e+09
vllm:kv_cache_usage_perc{engine="0"} 0.125
vllm:spec_decode_num_draft_tokens_total{engine="0"} 300.0
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 261.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 99.0
process_open_fds 40.0
"""


def test_the_numbers_are_summed_over_engines() -> None:
    numbers = readiness.read_metrics(TEXT)
    assert numbers == ServerMetrics(3, 4, 12345678, 41, 300, 261, 0.125)
    assert numbers.acceptance == 0.87


def test_what_a_server_does_not_count_is_nought() -> None:
    numbers = readiness.read_metrics("vllm:num_requests_running 0.0\n")
    assert numbers == ServerMetrics(0, 0, 0, 0, 0, 0, 0.0)
    assert numbers.acceptance is None


def test_another_server_has_no_numbers() -> None:
    assert readiness.read_metrics("python_info 1.0\n") is None
    assert readiness.read_metrics("") is None
    assert readiness.read_metrics("vllm:num_requests_running nonsense\n") == ServerMetrics(0, 0, 0, 0, 0, 0, 0.0)


def test_a_sample_without_labels_counts() -> None:
    text = "vllm:num_requests_running 2.0\nvllm:generation_tokens_total 41 1700000000000\n"
    assert readiness.read_metrics(text) == ServerMetrics(2, 0, 0, 41, 0, 0, 0.0)


def test_what_is_no_count_is_nought() -> None:
    text = "vllm:num_requests_running +Inf\nvllm:generation_tokens_total NaN\n"
    assert readiness.read_metrics(text) == ServerMetrics(0, 0, 0, 0, 0, 0, 0.0)


# Phases recognised in vLLM's log lines, which are quoted from the sources that `phases` names.

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
