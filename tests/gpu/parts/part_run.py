"""Runs one part for so many seconds at most: `python part_run.py SECONDS SCRIPT [ARGUMENT …]`.

A part that does not end says where it stood: the last lines of the stack of each of its processes that is Python, and
the command lines of the others, a compiler for instance. All of them are ended with it, and whatever the part leaves.
It runs beside the part, in its container too, since whoever started that reaches no process in there.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NOT_ENDED = 124
# Where a process of a part writes its stack when it is sent SIGUSR1 (part_results.py).
STACKS = "PART_STACKS"
ENVIRONMENT = {
    # As `vllm serve` has it. A forked engine stands still in the first operation on the CPU that takes several threads,
    # once its parent has run one: OpenMP's threads are not in the child.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    # Greedy tokens need none of FlashInfer's sampling, which compiles for minutes where it has never run.
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    # On Hopper these multiply FP8 weights with block scales, and compile for three minutes. vLLM has its own kernels.
    "VLLM_BLOCKSCALE_FP8_GEMM_FLASHINFER": "0",
    "VLLM_USE_DEEP_GEMM": "0",
    # Triton's own place. Where vLLM compiles a model, torch puts it below a folder that is named after the path of the
    # checkpoint, which is another at each start: kernels that earlier parts have compiled are compiled again.
    "TRITON_CACHE_DIR": str(Path.home() / ".triton/cache"),
    # Nothing is fetched or told; on a machine without a network each try would wait.
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
FRAMES, COMMAND = 6, 160  # lines of a stack, and characters of a command line
STACK_SECONDS = 10.0


def main(seconds: str, script: str, *arguments: str) -> int:
    with tempfile.TemporaryDirectory() as stacks:
        environ = {**ENVIRONMENT, **os.environ, STACKS: stacks}
        part = subprocess.Popen([sys.executable, script, *arguments], env=environ, start_new_session=True)
        try:
            return part.wait(timeout=float(seconds))
        except subprocess.TimeoutExpired:
            sys.stdout.write(f"\n{json.dumps({'result': {'stood': standing(part.pid, Path(stacks))}})}\n")
            return NOT_ENDED
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(part.pid, signal.SIGKILL)
            part.wait()


def standing(group: int, stacks: Path) -> list[str]:
    """What each process of the group was doing, the first one first."""
    told = []
    for process in processes(group):
        if writes_stack(process):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGUSR1)
                await_stack(stacks / str(process))
        lines = frames(stacks / str(process)) or [command(process)]
        told.append(" < ".join(lines))
    return told


def await_stack(file: Path) -> None:
    """Waits until a process has written its stack: on a busy machine it may take seconds to come to that."""
    end = time.monotonic() + STACK_SECONDS
    while not text(file) and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(0.3)  # the lines after the first


def processes(group: int) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        # The process group is the third of what follows the name, which may hold anything.
        if folder.name.isdigit() and (fields := text(folder / "stat").rpartition(")")[2].split()):
            found += [int(folder.name)] if int(fields[2]) == group else []
    return sorted(found)


def writes_stack(process: int) -> bool:
    """Whether the process has a handler for SIGUSR1, which ends it otherwise."""
    for line in text(Path(f"/proc/{process}/status")).splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (signal.SIGUSR1 - 1) & 1)
    return False


def frames(stack: Path) -> list[str]:
    """The innermost calls, as faulthandler writes them."""
    return [line.strip() for line in text(stack).splitlines() if line.startswith("  File ")][:FRAMES]


def command(process: int) -> str:
    return text(Path(f"/proc/{process}/cmdline")).replace("\0", " ").strip()[:COMMAND]


def text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
