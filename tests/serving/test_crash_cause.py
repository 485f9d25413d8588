"""The cause of a crash is told in a line, and whether another image would mend it. The logs are those of vLLM."""

from __future__ import annotations

import pytest

from builder.serving import readiness

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
