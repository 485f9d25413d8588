from __future__ import annotations

import pytest

from builder.engine.build_log import StepMemory


def after(*lines: str) -> StepMemory:
    memory = StepMemory()
    for line in lines:
        memory = memory.after(line)
    return memory


def test_a_step_tells_its_jobs_and_the_memory_that_they_took() -> None:
    told = ["compiling vllm with MAX_JOBS=12: 121 GiB at 8 GiB a job", "[1/2] Building", ""]
    assert after(*told) == StepMemory("vllm", 12)
    assert after(*told, "compiling vllm with MAX_JOBS=12 took 45312 MiB of memory") == StepMemory("vllm", 12, 45312)
    killed = after(*told, "compiling vllm with MAX_JOBS=12 ran out of memory: the kernel killed a process")
    assert killed == StepMemory("vllm", 12, 0, killed=True, by_kernel=True)


@pytest.mark.parametrize(
    "line",
    [
        "Killed",
        "/bin/sh: 1: Killed",
        "c++: fatal error: Killed signal terminated program cc1plus",
        "c++: fatal error: Terminated signal terminated program cc1plus",
        "nvcc error   : 'cicc' died due to signal 9 (Kill signal)",
        "collect2: fatal error: ld terminated with signal 9 [Killed]",
        "FAILED: [code=137] fused_moe_120/x.cuda.o",
        "process didn't exit successfully: `rustc` (signal: 9, SIGKILL: kill)",
        "go build: /usr/lib/go/pkg/tool/compile: signal: killed",
        "subprocess.CalledProcessError: Command '['ninja']' died with <Signals.SIGKILL: 9>.",
        "Command '['cmake']' returned non-zero exit status 137.",
        "virtual memory exhausted: Cannot allocate memory",
        "LLVM ERROR: out of memory",
    ],
)
def test_a_killed_compiler_is_known_by_what_is_left_of_it(line: str) -> None:
    assert after("compiling vllm with MAX_JOBS=12: 121 GiB at 8 GiB a job", line).killed


@pytest.mark.parametrize("line", ["[137/2000] Building CXX object", "exit code: 1", "ninja: build stopped"])
def test_other_lines_are_no_sign(line: str) -> None:
    assert not after(line).killed
