"""The number of compilers that run at once while a source is built, from the memory and the processors of a machine.

It is found anew by each step that compiles (``dockerfiles/_parts/wheels.j2``), on the machine that compiles, and is no
input of the image: what stands here is told beforehand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder import humanize
from builder.definitions.image_chain import BUILD_JOBS

if TYPE_CHECKING:
    from builder.plan.model import Plan

# FlashInfer's own build counts 8 GB a job on arm64; one of its kernels for FP4 (0.7.2.post1 for sm_121a, CUDA 13.0) was
# measured: 7.0 GiB for one compiler. For vLLM 8 GB a job was proposed upstream, after builds that ran out of memory
# (https://github.com/vllm-project/vllm/pull/12477).
GIB_PER_JOB = {"flashinfer": 8, "vllm": 8}
_GIB = 1 << 30
# What a step says that compiles a source (`_parts/wheels.j2`); a template may do something else with its tree.
_MARK = "compiling {} with MAX_JOBS="


@dataclass(frozen=True)
class BuildMachine:
    """The machine that builds: its processors, and the bytes of memory that are free there, or that it has in all;
    None where unknown."""

    processors: int | None = None
    free: int | None = None
    total: int | None = None


@dataclass(frozen=True)
class CompileJobs:
    """The jobs that one source is compiled with, and what their number comes from. ``jobs`` is None where the machine
    is not known; with ``at_most``, what is free there now is not known."""

    source: str
    jobs: int | None
    reason: str
    at_most: bool = False


def of_plan(plan: Plan, kept_steps: int, machine: BuildMachine, requested: int | None) -> tuple[CompileJobs, ...]:
    """Returns the jobs of each source that may have to be compiled, in that order, where the first ``kept_steps`` of
    the plan are as they were."""
    return tuple(
        _jobs(source, part.definition.args.get(BUILD_JOBS), machine, requested)
        for part in changed_parts(plan, kept_steps)
        for source in sorted(part.pins.sources)
        if _MARK.format(source).encode() in part.files["Dockerfile"].content
    )


def changed_parts(plan: Plan, kept_steps: int) -> tuple[Plan, ...]:
    """Returns the plans of the chain that have changed in more than their mods, where the first ``kept_steps`` of the
    plan are as they were."""
    kept = {step.name for step in plan.steps[:kept_steps]}
    return tuple(
        part
        for part in plan.chain
        if ("Dockerfile" if part is plan else f"{part.definition.name}: Dockerfile") not in kept
    )


def _jobs(source: str, most: object, machine: BuildMachine, requested: int | None) -> CompileJobs:
    if requested is not None:
        return CompileJobs(source, requested, "as asked for")
    gib = GIB_PER_JOB[source]
    memory = machine.total if machine.free is None else machine.free
    if memory is None:
        return CompileJobs(source, None, f"as many jobs as fit into the memory where it is built, at {gib} GiB a job")
    in_all = "" if machine.free is not None else " in all"
    limits = [(max(memory // _GIB // gib, 1), f"{memory // _GIB} GiB{in_all} at {gib} GiB a job")]
    if machine.processors is not None:
        limits.append((machine.processors, humanize.counted(machine.processors, "processor")))
    if isinstance(most, int):
        limits.append((most, f"`{BUILD_JOBS}` of the definition"))
    jobs, reason = min(limits, key=lambda limit: limit[0])
    return CompileJobs(source, jobs, reason, at_most=machine.free is None)
