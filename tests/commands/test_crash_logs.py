"""Failures as vLLM, its libraries and the kernel log them: the report of each has the cause in its first three lines.

The frames are those of vLLM 0.32 (v1/engine/core.py, v1/executor/multiproc_executor.py, entrypoints). The texts are
those of the sources, and of the threads that are named.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from builder.commands import crash_report
from tests import locks, projects
from tests.conftest import WITHOUT_ENGINE, run_command

API = "(APIServer pid=1) "
CORE = "(EngineCore pid=113) ERROR 11-21 04:00:00 [core.py:1510] "
WORKER = "(EngineCore pid=113) (Worker_TP0 pid=281) ERROR 11-21 04:00:00 [v1/executor/multiproc_executor.py:1063] "
STARTS = [
    "(APIServer pid=1) INFO 11-21 03:59:00 [utils.py:233] non-default args: {'model_tag': 'Org/Model-1B'}",
    "(EngineCore pid=113) INFO 11-21 03:59:30 [gpu_model_runner.py:5039] Starting to load model Org/Model-1B...",
]
ENDS = [
    f"{API}Traceback (most recent call last):",
    f'{API}  File "/usr/local/lib/python3.12/dist-packages/vllm/v1/engine/core_client.py", line 573, in ensure_alive',
    f"{API}RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{}}",
]


def core(error: str) -> list[str]:
    """An error of the engine's process, as its traceback is logged, and what the API server says of it."""
    frame = '  File "/usr/local/lib/python3.12/dist-packages/vllm/v1/engine/core.py", line 1000, in run'
    lines = ["EngineCore failed to start.", "Traceback (most recent call last):", frame, *error.split("\n")]
    return [*STARTS, *(f"{CORE}{line}" for line in lines), *ENDS]


def worker(error: str, *before: str) -> list[str]:
    """An error of a worker, which the engine's process tells in its own words."""
    lines = ["WorkerProc hit an exception.", "Traceback (most recent call last):", *error.split("\n")]
    told = "Exception: WorkerProc initialization failed due to an exception in a background process. "
    own = [f"{CORE}EngineCore failed to start.", f"{CORE}{told}See stack trace for root cause."]
    return [*STARTS, *before, *(f"{WORKER}{line}" for line in lines), *own, *ENDS]


def ended(code: int, *, memory: bool = False, lines: tuple[str, ...] = ()) -> list[str]:
    out = ", out of memory" if memory else ""
    return [*STARTS, *lines, f"builder: the container ended with exit code {code}{out}"]


FAILURES: dict[str, tuple[list[str], str]] = {
    "out of GPU memory": (
        worker("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of"),
        "CUDA out of memory. Tried to allocate 2.00 GiB",
    ),
    # vllm/v1/core/kv_cache_utils.py
    "no room for the KV cache": (
        core("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`."),
        "No available memory for the cache blocks",
    ),
    "a missing template": (
        [
            *STARTS,
            f"{API}ValueError: The supplied chat template string (/t.jinja) appears path-like, but doesn't exist!",
        ],
        "/t.jinja) appears path-like, but doesn't exist",
    ),
    "a missing file": (
        core("FileNotFoundError: [Errno 2] No such file or directory: '/models/x/config.json'"),
        "No such file or directory: '/models/x/config.json'",
    ),
    "port in use": ([*STARTS, f"{API}OSError: [Errno 98] Address already in use"], "Address already in use"),
    "unknown flag": (
        ["usage: vllm serve [model_tag] [options]", "vllm serve: error: unrecognized arguments: --max-modle-len 3"],
        "unrecognized arguments: --max-modle-len",
    ),
    # https://github.com/MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark/issues/87
    "NCCL times out": (
        [
            *STARTS,
            "[rank1]:[E1121 04:00:00.1 ProcessGroupNCCL.cpp:683] [Rank 1] Watchdog caught collective operation timeout:"
            " WorkNCCL(SeqNum=12, OpType=ALLREDUCE) ran for 600000 milliseconds before timing out.",
            "terminate called after throwing an instance of 'c10::DistBackendError'",
            "  what():  [PG ID 2 PG GUID 3 Rank 1] Process group watchdog thread terminated with exception",
        ],
        "Watchdog caught collective operation timeout",
    ),
    "a worker hangs": (
        [
            *STARTS,
            "(EngineCore pid=113) INFO 11-21 04:00:00 [shm_broadcast.py:1] No available shared memory broadcast block "
            "found in 60 seconds. This typically happens when some processes are hanging",
            f"{CORE}TimeoutError: RPC call to sample_tokens timed out.",
            f"{API}vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above)",
        ],
        "RPC call to sample_tokens timed out",
    ),
    # https://github.com/MiaAI-Lab/DeepSeek-v4.1-Flash-DGX-Sparks/issues/14
    "RDMA memory cannot be registered": (
        worker(
            "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)",
            "machine:281:300 [0] misc/ibvwrap.cc:1 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot "
            "allocate memory errno 12",
        ),
        "Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
    ),
    "an illegal access": (
        worker(
            "torch.AcceleratorError: CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be"
        ),
        "an illegal memory access was encountered",
    ),
    "no kernel for the chip": (
        worker("torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device"),
        "no kernel image is available",
    ),
    "killed by the kernel": (ended(137, memory=True), "killed by the kernel: out of memory"),
    "killed by earlyoom": (ended(137), "killed by signal 9"),
    "no such tokenizer": (
        [*STARTS, f"{API}ValueError: Couldn't instantiate the backend tokenizer from one of: ", f"{API}(1) a file"],
        "Couldn't instantiate the backend tokenizer",
    ),
    "a tokenizer of a newer version": (
        [
            *STARTS,
            f"{API}Exception: data did not match any variant of untagged enum ModelWrapper at line 757479 column 3",
        ],
        "data did not match any variant",
    ),
    "a gated model": (
        [
            f"{API}huggingface_hub.errors.GatedRepoError: 401 Client Error. (Request ID: Root=1-6)",
            f"{API}Cannot access gated repo for url https://huggingface.co/Org/M/resolve/main/config.json.",
            f"{API}OSError: You are trying to access a gated repo.",
        ],
        "gated repo",
    ),
    "an architecture that it does not know": (
        [
            f"{API}pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
            f"{API}  Value error, Model architectures ['NewForCausalLM'] are not supported for now. [type=value_error]",
        ],
        "Model architectures ['NewForCausalLM'] are not supported",
    ),
    "a library that is missing": (
        ["python3: error while loading shared libraries: libcudart.so.13: cannot open shared object file"],
        "libcudart.so.13: cannot open shared object file",
    ),
    "a symbol that is missing": (
        core(
            "ImportError: /opt/vllm/_C.abi3.so: undefined symbol: _ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_jb"
        ),
        "undefined symbol",
    ),
    "a crash in a library": (ended(139, lines=("!!!!!!! Segfault encountered !!!!!!!",)), "Segfault encountered"),
    "the disk is full": (core("OSError: [Errno 28] No space left on device"), "No space left on device"),
    # https://github.com/flashinfer-ai/flashinfer/issues/2252
    "a kernel that does not compile": (
        worker(
            "subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1.\n"
            "RuntimeError: Ninja build failed. Ninja output:\nnvcc fatal   : Unsupported gpu architecture 'sm_121'"
        ),
        "Unsupported gpu architecture 'sm_121'",
    ),
    "a kernel that Triton cannot compile": (
        worker(
            "triton.runtime.errors.PTXASError: PTXAS error: Internal Triton PTX codec error\n`ptxas` stderr:\n"
            "ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'"
        ),
        "Value 'sm_121a' is not defined",
    ),
    # vllm/v1/engine/utils.py
    "a process that was killed from outside": (
        [
            *STARTS,
            f"{API}ERROR 11-21 04:00:00 [core_client.py:1] Engine core proc EngineCore_0 died unexpectedly, shutting",
            f"{API}vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above)",
        ],
        "EngineCore_0 died unexpectedly",
    ),
    "the port of uvicorn": (
        [
            *STARTS,
            "ERROR:    [Errno 98] error while attempting to bind on address ('::', 8000): address already in use",
        ],
        "address already in use",
    ),
    "a message on the next line": (
        core("ImportError: \nGGUFModel requires the gguf library but it was not found in your environment."),
        "requires the gguf library",
    ),
    "the other machine cannot be reached": (
        worker(
            "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect"
            " to (192.168.177.11, 29501)."
        ),
        "The client socket has timed out",
    ),
    "weights that are cut": (
        worker("safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata"),
        "incomplete metadata",
    ),
    "an image of another architecture": (
        ["exec /usr/local/bin/vllm: exec format error", "builder: the container ended with exit code 255"],
        "exec format error",
    ),
    "no such command": (ended(127, lines=("bash: line 1: vllm: command not found",)), "vllm: command not found"),
    "no backend for the model": (
        core("ValueError: No valid attention backend found for cuda with AttentionSelectorConfig(head_size=576)"),
        "No valid attention backend found",
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_the_cause_stands_in_the_first_three_lines(tmp_path: Path, name: str) -> None:
    lines, cause = FAILURES[name]
    project = projects.make(tmp_path)
    locks.write(project, (1,), current=1, paired=1)
    projects.write(project.state / "serve-logs/chat.log", "\n".join([*lines, ""]))
    report = run_command(project, "logs", "Org/Model-1B", "--report", environ=WITHOUT_ENGINE).stdout.splitlines()
    assert cause in "\n".join(report[:3])
    assert report[0].startswith("chat ")
    assert report[1].startswith("cause: ")


@pytest.mark.parametrize("day", ["11-21", "01-29", "02-29", "11-30", "12-31"])
def test_the_last_minute_alone_is_in_the_report(tmp_path: Path, day: str) -> None:
    project = projects.make(tmp_path)
    locks.write(project, (1,), current=1, paired=1)
    early = [f"(EngineCore pid=1) INFO 11-21 03:{minute:02}:00 [x.py:1] early {minute}" for minute in range(59)]
    lines = "\n".join([*early, *core("ValueError: too small")]).replace("11-21", day)
    projects.write(project.state / "serve-logs/chat.log", lines)
    report = run_command(project, "logs", "--report", environ=WITHOUT_ENGINE).stdout
    assert "early" not in report
    assert "03:59:00" in report
    assert report.count("````") == 2


def test_the_last_minute_goes_on_into_the_new_year_and_no_time_is_none() -> None:
    times = ["12-31 23:57:00", "12-31 23:59:30", "02-30 00:00:00", "01-01 00:00:10", "01-01 00:00:05"]
    lines = [f"INFO {time} [x.py:1] x" for time in times]
    assert list(crash_report.last_minute(lines)) == lines[1:]


def test_the_log_of_a_server_whose_name_begins_alike_is_not_taken(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    locks.write(project, (1,), current=1, paired=1)
    for number, name in enumerate(("chat@two", "chat-long", "chat-candidate")):
        projects.write(project.state / f"serve-logs/{name}.log", f"ValueError: of {name}\n")
        os.utime(project.state / f"serve-logs/{name}.log", (number, 2_000_000_000 + number))
    why = run_command(project, "logs", "Org/Model-1B", "--report", environ=WITHOUT_ENGINE).stdout
    assert "cause: ValueError: of chat@two" in why
    named = run_command(project, "logs", "chat-long", "--report", environ=WITHOUT_ENGINE).stdout
    assert "cause: ValueError: of chat-long" in named
    assert run_command(project, "logs", "--report", environ=WITHOUT_ENGINE).stdout.startswith("chat-candidate did not")
    # Without a log, the server may still run: the engine was not asked.
    elsewhere = run_command(project, "logs", "chat", "--report", "--node", "one", code=5, environ=WITHOUT_ENGINE).stderr
    assert "no Docker engine answers" in elsewhere
