"""A benchmark measures a served model: throughput at several depths, acceptance of drafted tokens, memory and log.

`llama_benchy` measures throughput. Acceptance uses fixed prompts at temperature 0, so that two runs can be compared.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from builder.base import processes, words
from builder.base.errors import EngineError, UsageError
from builder.base.events import Message, Report
from builder.base.http_client import NoAnswerError
from builder.engine import containers
from builder.evidence.run_record import Better, Figure, Finding, Verdict
from builder.lab.measure import llama_benchy, outcome, served_model
from builder.serving import readiness, server_log

if TYPE_CHECKING:
    from builder.definitions.configuration import BenchProfile
    from builder.lab.measure.served_model import ServedModel
    from builder.serving.running import ServerMember


_AFTERWARDS_SECONDS = 120.0


def measure_bench(
    served: ServedModel,
    profile: BenchProfile,
    environ: Mapping[str, str],
    report: Report,
    *,
    revision: str | None = None,
    member: ServerMember | None = None,
) -> outcome.Outcome:
    """Measures a served model with ``profile``, without the depths that exceed its context. Memory and log come from
    ``member``, the container that answers. If the server fails during the measurement, that is the result. Raises
    MeasuringError if llama-benchy or the tokenizer is missing, UsageError if the profile does not fit the model."""
    fitting = profile.within(served.context)
    if not fitting.depth:
        longest = max(profile.pp) + max(profile.tg)
        message = f"the context of {served.name} has {served.context} tokens: too few for the profile `{profile.name}`"
        hint = f"its prompts and answers take {longest} tokens: write a smaller profile under `bench:` in builder.yaml"
        raise UsageError(message, hint=hint)
    if left_out := ", ".join(map(str, sorted(set(profile.depth) - set(fitting.depth)))):
        report(Message(f"left out: depth {left_out}, as the context of {served.name} has {served.context} tokens"))
    began, started = time.monotonic(), words.now()
    available: list[int] = []

    def read_memory() -> None:
        if member and member.engine.host.startswith("unix://"):
            sizes = processes.sizes(processes.text(Path("/proc", processes.MEMORY)))
            available.append(sizes.get("MemAvailable", 0))

    with tempfile.TemporaryDirectory(prefix="builder-") as folder:
        target = Path(folder, llama_benchy.NAME)
        tokenizer = llama_benchy.fetch_tokenizer(served, revision, environ, member, target)
        throughput = llama_benchy.run_llama_benchy(served, fitting, tokenizer, environ, report, read_memory)
        figures, findings = [*throughput.figures], [*throughput.findings]
        if outcome.verdict_of(throughput.findings) != "fail":
            accepted, faults = measure_acceptance(served, report)
            figures += accepted
            findings += faults
    if not served_model.model_answers(served, _AFTERWARDS_SECONDS):
        findings.append(Finding("answers", "afterwards", "fail", "the server no longer answers"))
    if available:
        figures.append(Figure("memory_floor", {}, "bytes", "higher", (float(min(available)),)))
    if member:
        if peak := container_peak(member):
            figures.append(Figure("memory_peak", {}, "bytes", "lower", (float(peak),)))
        with suppress(EngineError):  # the container uses another log driver, or another command removed it
            lines = containers.container_log(member.engine, member.service.id)
            figures += log_figures(lines, member.service.started)
    return outcome.Outcome(
        kind="bench",
        name=profile.name,
        version=llama_benchy.LLAMA_BENCHY,
        set=bench_digest(profile),
        started=started,
        seconds=time.monotonic() - began,
        verdict=outcome.verdict_of(tuple(findings)),
        figures=tuple(figures),
        findings=tuple(findings),
        counts={"runs": profile.runs},
        sampling={"temperature": 0, "thinking": str(profile.thinking).lower()},
        raw=throughput.raw,
    )


def bench_digest(profile: BenchProfile) -> str:
    """The digest of a profile and its texts: compare figures only with figures of the same digest."""
    protocol = {name: value for name, value in asdict(profile).items() if name != "minutes"}
    return outcome.outcome_digest([protocol, llama_benchy.digest(), PROMPTS, TOKENS])


# The acceptance of drafted tokens, from the server's counters before and after fixed prompts.

PROMPTS = (
    "Explain to a child why the sea is salty. Use about a hundred words.",
    "Write a Python function that merges two sorted lists, and then its test.",
    "List the planets from the sun outwards, one a line, with a remark on each.",
    "Continue this table with ten more rows:\n| n | n squared |\n|---|---|\n| 1 | 1 |\n| 2 | 4 |",
    "Translate into French: The ferry leaves at nine, and whoever is late waits for the evening.",
    'Give a JSON array of five objects with the keys "city", "country" and "river".',
)
TOKENS = 192
_SECONDS = 300.0


def measure_acceptance(served: ServedModel, report: Report) -> tuple[tuple[Figure, ...], tuple[Finding, ...]]:
    """The acceptance figures, if the server has a speculative decoder. Unreadable counters are reported as a
    finding."""

    def metrics() -> str:
        try:
            return served_model.get(f"{served.root}/metrics", key=served.key)
        except NoAnswerError as error:
            raise ValueError(f"/metrics: {error}") from None

    try:
        page = metrics()
        if "vllm:spec_decode_num_drafts_total" not in page and page.endswith("\n"):
            return (), ()
        for number, prompt in enumerate(PROMPTS):
            report(outcome.MeasuringProgress("acceptance", number / len(PROMPTS), None))
            messages = [{"role": "user", "content": prompt}]
            body = {"messages": messages, "max_tokens": TOKENS, "temperature": 0, "seed": 0}
            served_model.complete(served, body, _SECONDS)
        accepted = acceptance(page, metrics())
    except (ValueError, NoAnswerError) as error:
        verdict: Verdict = "fail" if isinstance(error, NoAnswerError) else "unclear"
        return (), (Finding("acceptance", "", verdict, str(error)),)
    if accepted is None:
        return (), ()
    share = Figure("acceptance", {}, "ratio", "higher", accepted[:1])
    return (share, Figure("acceptance_length", {}, "tokens", "higher", accepted[1:])), ()


def acceptance(first: str, second: str) -> tuple[float, float] | None:
    """The accepted share of the drafted tokens, and the tokens per step, between two pages of metrics; None if nothing
    was drafted. Raises ValueError if a page was cut off or is not vLLM's, or if the server was restarted between
    them."""
    before, after = readiness.read_metrics(first), readiness.read_metrics(second)
    if before is None or after is None or not (first.endswith("\n") and second.endswith("\n")):
        raise ValueError("/metrics: the page was cut off, or is not vLLM's")
    drafts, drafted = after.drafts - before.drafts, after.drafted - before.drafted
    accepted = after.accepted - before.accepted
    if min(drafts, drafted, accepted) < 0:
        raise ValueError("/metrics: a counter went back: the server was restarted meanwhile")
    return (accepted / drafted, 1 + accepted / drafts) if drafted and drafts else None


# The memory of a server's container.

_TIMEOUT = 10.0
# The maximum so far, in version 2 and in version 1 of cgroups.
_PEAK = "cd /sys/fs/cgroup && (cat memory.peak 2>/dev/null || cat memory/memory.max_usage_in_bytes)"


def container_peak(member: ServerMember) -> int:
    """The peak memory of a server's container in bytes; 0 if unknown."""
    with suppress(EngineError):
        result = containers.execute(member.engine, member.service.id, ["sh", "-c", _PEAK], _TIMEOUT)
        if not result.exit_code and result.output.strip().isdecimal():
            return int(result.output)
    return 0


# The figures in a server's log, from lines of vLLM 0.19 to 0.32.

_GIB = 1 << 30
# v1/core/kv_cache_utils.py, v1/worker/gpu_model_runner.py, v1/worker/gpu_worker.py
_LINES: tuple[tuple[str, str, str, Better, float], ...] = (
    ("kv_tokens", r"KV cache size: ([\d,]+) tokens", "tokens", "higher", 1),
    ("model_memory", r"Model loading took ([\d.]+) Gi?B", "bytes", "lower", _GIB),
    ("model_loading", r"Model loading took .*? ([\d.]+) seconds", "s", "lower", 1),
    ("kv_memory", r"Available KV cache memory: ([\d.]+) GiB", "bytes", "higher", _GIB),
    ("graph_capture", r"Graph capturing finished in ([\d.]+) secs", "s", "lower", 1),
)
_LONGEST_START = 24 * 3600.0


def log_figures(lines: Sequence[containers.LogLine], started: str) -> tuple[Figure, ...]:
    """The figures in the log of a container; ``started`` is RFC 3339, by the engine's clock, like the lines."""
    lines = [line for line in lines if line.written >= started]
    result = []
    for name, pattern, unit, better, factor in _LINES:
        if match := next((match for line in lines if (match := re.search(pattern, line.text))), None):
            result.append(Figure(name, {}, unit, better, (float(match[1].replace(",", "").rstrip(".")) * factor,)))
    ready = next((e for e in lines if (phase := server_log.of_line(e.text)) and phase.name == server_log.READY), None)
    with suppress(ValueError):
        if ready:
            seconds = (datetime.fromisoformat(ready.written) - datetime.fromisoformat(started)).total_seconds()
            if 0 < seconds < _LONGEST_START:  # otherwise, the clock jumped
                result.append(Figure("startup", {}, "s", "lower", (seconds,)))
    return tuple(result)
