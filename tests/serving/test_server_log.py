"""A server's log is read: the cause of its end, the phases of its start, and what vLLM chose by itself."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from builder.serving import server_log
from builder.serving.server_log import Phase
from tests import shared
from tests.mods import releases
from tests.mods.releases import VLLM

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
        (
            [
                "(APIServer pid=6) WARNING 11-26 16:05:48 [system_utils.py:255] Found ulimit of 20000 and failed to "
                "increase with error current limit exceeds. This can cause errors like `OSError: [Errno 24] Too many`."
            ],
            "",
        ),
        ([], ""),
        (["INFO 11-21 04:00:00 [x.py:1] no error: all is well"], ""),
    ],
)
def test_the_cause_is_the_last_error_that_says_something(lines: list[str], told: str) -> None:
    cause = server_log.crash_cause(lines)
    assert cause.startswith(told)
    assert bool(cause) == bool(told)
    assert "input_value" not in cause


@pytest.mark.parametrize(
    ("lines", "hint"),
    [
        (TOO_LONG, "the context is longer than the model supports: set a smaller `--max-model-len`"),
        (NOT_FOUND, "`builder download {model}` fetches it"),
        (
            ["OSError: x is not a local folder and is not a valid model identifier listed on"],
            "`builder download {model}`",
        ),
        (["huggingface_hub.errors.GatedRepoError: 401 Client Error."], "set HF_TOKEN"),
        (["OSError: [Errno 98] Address already in use"], "`--port N` uses another port"),
    ],
)
def test_where_no_other_image_helps_it_is_said_what_does(lines: list[str], hint: str) -> None:
    cause = server_log.known_crash_cause(lines)
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
    cause = server_log.known_crash_cause(lines)
    assert cause is not None
    assert "InstantTensor before 0.2.1" in cause.hint
    assert "With a later version, memory is really short" in cause.hint
    assert cause.in_image


@pytest.mark.parametrize("line", ["ImportError: cannot import name 'x'", "ValueError: No available memory", "killed"])
def test_any_other_cause_may_be_the_image(line: str) -> None:
    assert server_log.known_crash_cause([line]) is None


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
    assert server_log.of_line(line) == phase


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
    assert server_log.of_line(line) is None


def test_the_last_phase_counts() -> None:
    assert server_log.latest_phase([SHARDS, BAR, "something else"]) == Phase("capturing graphs", 28)
    assert server_log.latest_phase(["something else"]) is None


def test_as_words() -> None:
    assert [str(Phase("loading weights", 40)), str(Phase("ready"))] == ["loading weights, 40 %", "ready"]


# What vLLM chose by itself. The lines are those of servers on GB10s, without what names their machines:
# https://github.com/vllm-project/vllm/pull/31740, issues 49011 and 39033, https://github.com/eugr/spark-vllm-docker/issues/389

WORKER = "(Worker_TP0 pid=281) INFO 09-11 09:49:10 "
DUMP_OF_NOW = (
    "(EngineCore pid=7476) INFO 07-25 13:41:51 [core.py:114] Initializing a V1 LLM engine (v0.25.1) with config: "
    "model='unsloth/Qwen3.6-27B-NVFP4', dtype=torch.bfloat16, quantization=compressed-tensors, "
    "quantization_config=None, enforce_eager=False, kv_cache_dtype=nvfp4, device_config=cuda, "
    "compilation_config={'mode': <CompilationMode.VLLM_COMPILE: 3>, 'cudagraph_mode': "
    "<CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>, 'cudagraph_num_of_warmups': 1}, kernel_config=KernelConfig()"
)
OF_A_START = [
    DUMP_OF_NOW,
    f"{WORKER}[gpu_worker.py:421] Using V2 Model Runner",
    f"{WORKER}[cuda.py:551] Using backend AttentionBackendEnum.FLASH_ATTN for vit attention",
    f"{WORKER}[cuda.py:381] Using FLASHINFER attention backend out of potential backends: ['TRITON_ATTN'].",
    f"{WORKER}[cuda.py:381] Using FLASHINFER attention backend out of potential backends: ['TRITON_ATTN'].",
    f"{WORKER}[__init__.py:1180] Using FlashInferCutlassNvFp4LinearKernel for NVFP4 GEMM",
    f"{WORKER}[__init__.py:605] Selected CutlassFP8ScaledMMLinearKernel for ModelOptFp8LinearMethod",
    f"{WORKER}[nvfp4.py:211] Using 'FLASHINFER_CUTLASS' NvFp4 MoE backend out of potential backends: ['MARLIN'].",
    f"{WORKER}[compilation.py:1] CUDAGraphMode.FULL_AND_PIECEWISE is not supported with the GDN backend; "
    "setting cudagraph_mode=PIECEWISE",
    f"{WORKER}[kv_cache_utils.py:1319] GPU KV cache size: 1,234,560 tokens",
    f"{WORKER}[interface.py:1470] Unknown vLLM environment variable detected: VLLM_ATTENTION_BACKEND",
    f"{WORKER}[x.py:1] Using a line that no pattern knows.",
]
CHOSEN = {
    "quantization": ("compressed-tensors",),
    "KV cache type": ("nvfp4",),
    "CUDA graphs": ("PIECEWISE",),
    "model runner": ("V2",),
    "vision attention": ("FLASH_ATTN",),
    "attention backend": ("FLASHINFER",),
    "linear kernels": (
        "FlashInferCutlassNvFp4LinearKernel (NVFP4)",
        "CutlassFP8ScaledMMLinearKernel (ModelOptFp8LinearMethod)",
    ),
    "MoE backend": ("FLASHINFER_CUTLASS (NvFp4)",),
    "KV cache tokens": ("1,234,560",),
    "unknown variables": ("VLLM_ATTENTION_BACKEND",),
}


def test_what_vllm_chose_is_read_and_other_lines_are_left_alone() -> None:
    assert server_log.read_choices(OF_A_START) == CHOSEN
    assert server_log.read_choices(["INFO all is well", ""]) == {}


CHOICE_LINES = [
    ("Using AttentionBackendEnum.FLASHMLA backend.", "attention backend", "FLASHMLA"),
    ("Using TRTLLM MLA prefill backend.", "MLA prefill backend", "TRTLLM"),
    ("Using FlashAttention version 2", "FlashAttention", "2"),
    ("Using HND KV cache layout for FLASHINFER backend.", "KV cache layout", "HND"),
    ("Using NHD KV cache layout.", "KV cache layout", "NHD"),
    ("Using MARLIN Mxfp4 MoE backend.", "MoE backend", "MARLIN (Mxfp4)"),
    ("Using 'DEEP' W4A8 Int8 MoE backend out of potential backends", "MoE backend", "DEEP (W4A8 Int8)"),
    ("Using FlashInfer CUTLASS Unquantized MoE backend out of", "MoE backend", "FlashInfer CUTLASS (Unquantized)"),
    ("Using MARLIN backend for Unquantized MoE", "MoE backend", "MARLIN (Unquantized)"),
    ("Using MARLIN MoE backend", "MoE backend", "MARLIN"),
    ("Using E.FLASHINFER-X for NVFP4 GEMM", "linear kernels", "FLASHINFER-X (NVFP4)"),
    ("Using E.X backend for MXFP8 GEMM", "linear kernels", "X (MXFP8)"),
    ("Using X for mixed-precision linear", "linear kernels", "X (mixed-precision)"),
    ("Using X for AutoAWQMarlinLinearMethod", "linear kernels", "X (AutoAWQMarlin)"),
    ("Using FlashInfer for top-p & top-k sampling.", "sampler", "FlashInfer"),
    ("Overriding cudagraph_mode from FULL to PIECEWISE", "CUDA graphs", "PIECEWISE"),
    ("Cudagraph mode FULL is not supported. Overriding to NONE.", "CUDA graphs", "NONE"),
]


@pytest.mark.parametrize(("line", "name", "value"), CHOICE_LINES)
def test_a_line_tells_a_choice(line: str, name: str, value: str) -> None:
    assert server_log.read_choices([f"{WORKER}[x.py:1] {line}"]) == {name: (value,)}


def test_the_changes_between_two_starts() -> None:
    after = {**CHOSEN, "attention backend": ("TRITON_ATTN",), "KV cache tokens": ("1,220,000",)}
    (change,) = server_log.choice_changes(CHOSEN, after)
    assert str(change) == "attention backend: FLASHINFER → TRITON_ATTN"
    (fewer,) = server_log.choice_changes(CHOSEN, {**CHOSEN, "KV cache tokens": ("600,000",)})
    assert str(fewer) == "KV cache tokens: 1,234,560 → 600,000"
    assert server_log.choice_changes(CHOSEN, {}) == ()  # a log that was cut tells nothing
    lost = {name: values for name, values in CHOSEN.items() if name != "sampler"}
    assert str(server_log.choice_changes({**lost, "sampler": ("FlashInfer",)}, lost)[0]) == "sampler: FlashInfer → none"


_MOE = ("fp8", "int8", "int_wna16", "mxfp4", "mxfp8", "nvfp4", "unquantized", "w4a8", "w4a8_int8")
_QUANTIZATION = (
    *("auto_awq", "auto_gptq", "awq_marlin", "gptq_marlin", "modelopt", "mxfp8", "utils/nvfp4_utils"),
    *("compressed_tensors/compressed_tensors_moe", "compressed_tensors/compressed_tensors_moe/compressed_tensors_moe"),
    "compressed_tensors/compressed_tensors_moe/compressed_tensors_moe_wna16_marlin",
)
SOURCES = [
    f"vllm/{name}.py"
    for name in (
        *("config/compilation", "config/vllm", "envs", "platforms/cuda", "platforms/interface", "v1/engine/core"),
        *("v1/attention/selector", "v1/attention/backends/flash_attn", "v1/attention/backends/utils"),
        *("v1/attention/backends/mla/prefill/selector", "v1/core/kv_cache_utils", "v1/sample/ops/topk_topp_sampler"),
        *("v1/worker/gpu_model_runner", "v1/worker/gpu_worker", "model_executor/kernels/linear/__init__"),
        *(f"model_executor/layers/fused_moe/oracle/{name}" for name in _MOE),
        *(f"model_executor/layers/quantization/{name}" for name in _QUANTIZATION),
    )
]


# Each text of a choice in vLLM's sources, with its releases: since one, and until before another (empty: all later).
TEXTS = (
    ("attention backend", "Using %s attention backend out of potential backends", "0.19", ""),
    ("attention backend", "Using %s backend.", "0.19", ""),
    ("MLA prefill backend", "Using %s MLA prefill backend.", "0.21", ""),
    ("vision attention", "for vit attention", "0.19", ""),
    ("FlashAttention", "Using FlashAttention version %s", "0.19", ""),
    ("KV cache layout", "Using %s KV cache layout for %s backend.", "0.19", "0.29"),
    ("KV cache layout", "Using %s KV cache layout.", "0.29", ""),
    ("MoE backend", " Fp8 MoE backend out ", "0.19", ""),
    ("MoE backend", " NvFp4 MoE backend out ", "0.19", ""),
    ("MoE backend", " Mxfp4 MoE backend.", "0.19", ""),
    ("MoE backend", " MxFp8 MoE backend", "0.19", ""),
    ("MoE backend", " Int8 MoE backend out ", "0.20", ""),
    ("MoE backend", " WNA16 MoE backend.", "0.20", ""),
    ("MoE backend", " W4A8 MoE backend.", "0.22", ""),
    ("MoE backend", " W4A8 Int8 MoE backend out ", "0.23", ""),
    ("MoE backend", " Unquantized MoE backend out ", "0.20", ""),
    ("MoE backend", " backend for Unquantized MoE", "0.19", "0.20"),
    ("MoE backend", "Using %s MoE backend", "0.26", ""),
    ("MoE backend", "Using {self.kernel_backend} backend for WNA16 MoE", "0.19", "0.23"),
    ("linear kernels", "Selected %s for %s", "0.19", ""),
    ("linear kernels", "Using %s for NVFP4 GEMM", "0.20", ""),
    ("linear kernels", "Using {backend} for NVFP4 GEMM", "0.19", "0.20"),
    ("linear kernels", "Using %s for MXFP8 GEMM", "0.20", ""),
    ("linear kernels", "Using %s backend for MXFP8 GEMM", "0.19", "0.20"),
    ("linear kernels", "Using %s for MXFP4 GEMM", "0.22", ""),
    ("linear kernels", "Using %s for MXFP6 GEMM", "0.27", ""),
    ("linear kernels", "Using %s for mixed-precision linear", "0.31", ""),
    ("linear kernels", "Using %s for GPTQMarlinLinearMethod", "0.19", "0.22"),
    ("linear kernels", "Using %s for AutoGPTQLinearMethod", "0.22", ""),
    ("linear kernels", "Using %s for AWQMarlinLinearMethod", "0.19", "0.24"),
    ("linear kernels", "Using %s for AutoAWQMarlinLinearMethod", "0.24", ""),
    ("sampler", "Using FlashInfer for top-p & top-k sampling.", "0.19", ""),
    ("model runner", "Using V2 Model Runner", "0.19", ""),
    ("quantization", "quantization={self.model_config", "0.19", ""),
    ("KV cache type", "kv_cache_dtype={self.cache", "0.19", ""),
    ("CUDA graphs", "Initializing a V1 LLM engine (v%s) with config: %s", "0.19", ""),
    ("CUDA graphs", "; setting cudagraph_mode=", "0.19", ""),
    ("CUDA graphs", "verriding cudagraph_mode", "0.19", ""),
    ("CUDA graphs", "Overriding to ", "0.19", ""),
    ("KV cache tokens", "KV cache size: %s tokens", "0.19", ""),
    ("unknown variables", "Unknown vLLM environment variable detected: %s", "0.19", ""),
)


@pytest.mark.long
@pytest.mark.slow
def test_the_texts_are_those_of_vllms_releases() -> None:
    """Each text is in the sources of its releases, and in no other release since 0.19."""
    wheels = releases.releases(shared.folder() / "wheels")
    looked_at = VLLM[VLLM.index("0.19.0") :]
    with ThreadPoolExecutor(4) as pool:
        read = pool.map(lambda version: wheels.texts("vllm", version, SOURCES), looked_at)
        sources = {version: "\n".join(files.values()) for version, files in zip(looked_at, read, strict=True)}
    joined = {version: re.sub(r'["\']\s*\n\s*f?["\']', "", text) for version, text in sources.items()}
    for name, source, since, until in TEXTS:
        having = [version for version in looked_at if source in joined[version]]
        assert having == [version for version in looked_at if _is_of(version, since, until)], (name, source)


def _is_of(version: str, since: str, until: str) -> bool:
    return _numbers(version) >= _numbers(since) and not (until and _numbers(version) >= _numbers(until))


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(".") if part]


@pytest.mark.parametrize("line", ["x" * 300_000, "(" * 300_000, "a: " * 100_000, "with config: " * 20_000])
def test_a_long_line_is_read_like_any_other(line: str) -> None:
    assert server_log.trouble([line]) == server_log.crash_cause([line]) == ""
    assert server_log.read_choices([line]) == {}
    assert server_log.trouble([f"{line} oom-kill:"]).endswith("oom-kill:")
