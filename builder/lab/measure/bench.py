"""A benchmark measures a served model: throughput at several depths, acceptance of drafted tokens, memory and log.

llama-benchy measures throughput. Acceptance uses fixed prompts at temperature 0, so that two runs can be compared.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from builder.base import hub_cache, processes, words, yaml_file
from builder.base.errors import EngineError, MeasuringError, UsageError
from builder.base.events import Message, Report
from builder.base.http_client import NoAnswerError
from builder.base.words import sha256_of
from builder.engine import containers
from builder.evidence.run_record import Better, Figure, Finding, Verdict
from builder.lab.measure import measurement, own_script
from builder.lab.measure.measurement import MeasuringProgress
from builder.serving import readiness, server_log
from builder.sources import git, python

if TYPE_CHECKING:
    from builder.definitions.configuration import BenchProfile
    from builder.lab.measure.measurement import ServedModel
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
) -> measurement.Outcome:
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
        target = Path(folder, NAME)
        tokenizer = fetch_tokenizer(served, revision, environ, member, target)
        throughput = run_llama_benchy(served, fitting, tokenizer, environ, report, read_memory)
        figures, findings = [*throughput.figures], [*throughput.findings]
        if measurement.verdict_of(throughput.findings) != "fail":
            accepted, faults = measure_acceptance(served, report)
            figures += accepted
            findings += faults
    if not measurement.model_answers(served, _AFTERWARDS_SECONDS):
        findings.append(Finding("answers", "afterwards", "fail", "the server no longer answers"))
    if available:
        figures.append(Figure("memory_floor", {}, "bytes", "higher", (float(min(available)),)))
    if member:
        if peak := container_peak(member):
            figures.append(Figure("memory_peak", {}, "bytes", "lower", (float(peak),)))
        with suppress(EngineError):  # the container uses another log driver, or another command removed it
            lines = containers.container_log(member.engine, member.service.id)
            figures += log_figures(lines, member.service.started)
    return measurement.Outcome(
        kind="bench",
        name=profile.name,
        version=LLAMA_BENCHY,
        set=bench_digest(profile),
        started=started,
        seconds=time.monotonic() - began,
        verdict=measurement.verdict_of(tuple(findings)),
        figures=tuple(figures),
        findings=tuple(findings),
        counts={"runs": profile.runs},
        sampling={"temperature": 0, "thinking": str(profile.thinking).lower()},
        raw=throughput.raw,
    )


def bench_digest(profile: BenchProfile) -> str:
    """The digest of a profile and its texts: compare figures only with figures of the same digest."""
    protocol = {name: value for name, value in asdict(profile).items() if name != "minutes"}
    return measurement.outcome_digest([protocol, filler_digest(), PROMPTS, TOKENS])


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
            return measurement.get(f"{served.root}/metrics", key=served.key)
        except NoAnswerError as error:
            raise ValueError(f"/metrics: {error}") from None

    try:
        page = metrics()
        if "vllm:spec_decode_num_drafts_total" not in page and page.endswith("\n"):
            return (), ()
        for number, prompt in enumerate(PROMPTS):
            report(measurement.MeasuringProgress("acceptance", number / len(PROMPTS), None))
            messages = [{"role": "user", "content": prompt}]
            body = {"messages": messages, "max_tokens": TOKENS, "temperature": 0, "seed": 0}
            measurement.complete(served, body, _SECONDS)
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


# llama-benchy (https://github.com/eugr/llama-benchy) measures throughput at several depths, in a separate process.
#
# The tool has three habits that would cause wrong figures or need the network. Without a tokenizer it falls back to
# gpt2's, so it gets the file of the model's own tokenizer. It downloads a book, so our text is stored in the book's
# place. It uses the user's proxies for the server, so it gets none. Its home is an empty folder, and the Hub is off. It
# runs with our client (`benchy_client.py`), because its own count misses tokens that are not text yet.

LLAMA_BENCHY = "llama-benchy 0.4.0"
# The file name of a text is the digest of its address.
_BOOK = "builder://filler-text"
_WRONG_TOKENIZER = "Falling back to 'gpt2'"
_DOWNLOAD = "Downloading book"
_INCOHERENT = "Coherence test FAILED"
_STALL_SECONDS = 600.0
_RECOUNTED = "recounted.jsonl"
_CLIENT = Path(__file__).with_name("benchy_client.py")
_WORDS = Path(__file__).with_name("filler_words.yaml")
_LARGEST_RESULT = 16 << 20
_LARGEST_VALUE = 1e15
# The tool measures the latency with three requests: the uncertainty is at least this share of the latency.
_LEAST_SHARE = 0.1
# The time for a generated token relative to a prompt token, to estimate the remaining time.
_GENERATING = 20
_METRICS: tuple[tuple[str, str, str, Better], ...] = (
    ("tg_throughput", "tg", "tokens/s", "higher"),
    ("pp_throughput", "pp", "tokens/s", "higher"),
    ("ttfr", "ttfr", "ms", "lower"),
    ("e2e_ttft", "ttft", "ms", "lower"),
)


class Throughput(NamedTuple):
    """The figures of a run, and the tool's own file ``raw``. The ``findings`` say how the server failed, and which
    figures were counted again or left out."""

    findings: tuple[Finding, ...]
    figures: tuple[Figure, ...] = ()
    raw: bytes = b""


def run_llama_benchy(
    served: measurement.ServedModel,
    profile: BenchProfile,
    tokenizer: Path,
    environ: Mapping[str, str],
    report: Report,
    meanwhile: Callable[[], None] = lambda: None,
) -> Throughput:
    """Measures the profile with the model's tokenizer.json, reports the progress, and calls ``meanwhile`` several times
    a second. Raises MeasuringError if the tool is missing or did not measure this model."""
    with tempfile.TemporaryDirectory(prefix="builder-") as name:
        folder = Path(name)
        book = folder / ".cache/llama-benchy" / f"{hashlib.md5(_BOOK.encode(), usedforsecurity=False).hexdigest()}.txt"
        book.parent.mkdir(parents=True)
        book.write_text(filler_text(), encoding="utf-8")
        # A fixed version in its own environment, with the settings that uv does not read itself.
        uv = [python.path(), "tool", "run", "--no-progress", "--quiet", *python.options_of_user()]
        uv += ["--from", LLAMA_BENCHY.replace(" ", "==")]
        settings = git.read_index_settings(environ)
        links = [link if "://" in link else str(Path(link).absolute()) for link in settings.find_links]
        # These are for the script, not for uv.
        variables = ["env", f"HOME={name}", f"RECOUNTED={folder / _RECOUNTED}", "NO_PROXY=*", "no_proxy=*"]
        variables += ["HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1", "PYTHONUNBUFFERED=1"]
        script = ["python", "-c", _CLIENT.read_text(encoding="utf-8")]
        try:
            ended = own_script.run_bounded(
                [*uv, *variables, *script, *_options(served, profile, tokenizer, folder)],
                folder=folder,
                environ={**environ, **python.variables(settings, links), **measurement.passed_on(served.key)},
                seconds=60.0 * profile.minutes,
                tick=_watch(folder / "progress.jsonl", profile, report, meanwhile),
            )
        except _StalledError:
            return Throughput(_failed("answers", f"no answer for {_STALL_SECONDS / 60:g} minutes"))
        except OSError as error:
            raise MeasuringError(f"uv cannot be started: {error.strerror}") from None
        return _result(ended, folder, profile, tokenizer)


def _options(served: measurement.ServedModel, profile: BenchProfile, tokenizer: Path, folder: Path) -> list[str]:
    options = ["--base-url", served.address, "--model", served.name, "--served-model-name", served.name]
    options += ["--tokenizer", str(tokenizer), "--book-url", _BOOK]
    for name in ("pp", "tg", "depth", "concurrency"):
        options += [f"--{name}", *map(str, getattr(profile, name))]
    options += ["--runs", str(profile.runs), "--latency-mode", "generation", "--exit-on-first-fail"]
    options += ["--format", "json", "--save-result", str(folder / "result.json")]
    options += ["--emit-progress", str(folder / "progress.jsonl"), "--extra-body", "temperature=0"]
    if not profile.thinking:
        options += ["--extra-body", 'chat_template_kwargs={"enable_thinking":false}']
    return [*options, *(["--exact-tg"] if profile.exact else []), *([] if profile.coherence else ["--skip-coherence"])]


def _result(ended: own_script.EndedProcess, folder: Path, profile: BenchProfile, tokenizer: Path) -> Throughput:
    if not (folder / _RECOUNTED).exists():
        name, _, version = LLAMA_BENCHY.partition(" ")
        hint = "check the network and the settings of the package index (UV_DEFAULT_INDEX, HTTPS_PROXY):"
        hint += f" `uv tool run --from {name}=={version} {name} --version` must answer"
        raise MeasuringError(f"{LLAMA_BENCHY} cannot be installed: {ended.last_lines}", hint=hint)
    printed = (ended.output + b"\n" + ended.messages).decode(errors="replace")
    if _WRONG_TOKENIZER in printed or _DOWNLOAD in printed:
        message = f"{LLAMA_BENCHY} did not use the tokenizer or the text that it was given: its figures would be wrong"
        raise MeasuringError(message, hint=f"check that {tokenizer} is complete")
    if ended.cause != "itself":
        return Throughput(_failed("time", f"the profile did not finish within {profile.minutes} minutes"))
    if _INCOHERENT in printed:
        line = next(line for line in printed.splitlines() if _INCOHERENT in line)
        return Throughput(_failed("coherence", line))
    if ended.exit_code:
        return Throughput(_failed("answers", f"{LLAMA_BENCHY} ended with {ended.exit_code}: {ended.last_lines}"))
    file = folder / "result.json"
    raw = file.read_bytes()[:_LARGEST_RESULT] if file.is_file() else b""
    try:
        figures, left_out = parse_llama_benchy(raw)
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise MeasuringError(f"{LLAMA_BENCHY} wrote a result that cannot be read: {reason}") from None
    if not any(figure.name == "tg" for figure in figures):
        return Throughput(_failed("text", "its answers contain no text to time"), figures, raw)
    lines = map(json.loads, (folder / _RECOUNTED).read_text(encoding="utf-8").splitlines())
    again = [(line["counted"], line["tokens"]) for line in lines if line]
    counted, of_server = (sum(column) for column in zip(*again, strict=True)) if again else (0, 0)
    text = f"{LLAMA_BENCHY} counted {counted} of {of_server} tokens; the figures use the server's count"
    recounted = [Finding("tokens", words.counted(len(again), "answer"), "pass", text)] if again else []
    return Throughput((*recounted, *left_out), figures, raw)


def _failed(check: str, text: str) -> tuple[Finding]:
    return (Finding(check, "throughput", "fail", text),)


def parse_llama_benchy(raw: bytes) -> tuple[tuple[Figure, ...], tuple[Finding, ...]]:
    """The figures in a result file, and a note on each figure that lost values. For a single request, ``pp`` comes from
    the time to the first response minus the latency; values up to a share of the latency are left out. Raises
    ValueError, LookupError, TypeError, AttributeError or OverflowError if the file is not such a result."""
    figures, notes = [], []
    document = json.loads(raw)
    runs, noise = document["benchmarks"], _LEAST_SHARE * float(document.get("latency_ms") or 0)
    if not runs:
        raise ValueError("it contains no figures")
    for run in runs:
        sizes = {"depth": "context_size", "concurrency": "concurrency", "pp": "prompt_size", "tg": "response_size"}
        at = {name: int(run[key]) for name, key in sizes.items()}
        place = f"pp {at['pp']}, tg {at['tg']}, depth {at['depth']}"
        answers = len(_values(run.get("e2e_ttft")))
        for key, name, unit, better in _METRICS:
            values = _values(run.get(key))
            if name == "tg" and at["concurrency"] == 1 and len(values) < answers:
                text = f"{answers - len(values)} of {answers} values left out: all tokens of the answer came at once"
                notes.append(Finding("tg", place, "pass", text))
            if name == "pp" and at["concurrency"] == 1 and (left := _values(run.get("est_ppt"))):
                # Without a positive difference, the tool has no value.
                with_value = zip(values, (time_left for time_left in left if time_left > 0), strict=True)
                values = tuple(value for value, time_left in with_value if time_left > noise)
                if dropped := len(left) - len(values):
                    text = (
                        f"{dropped} of {len(left)} values left out: the prompt took less time than the latency varies"
                    )
                    notes.append(Finding("pp", place, "pass", f"{text} ({noise:.1f} ms)"))
            if values:
                figures.append(Figure(name, at, unit, better, values))
    return tuple(figures), tuple(notes)


def _values(metric: Any) -> tuple[float, ...]:
    values = tuple(float(value) for value in metric["values"]) if metric else ()
    if not all(math.isfinite(value) and 0 <= value < _LARGEST_VALUE for value in values):
        raise ValueError("a metric contains a value that is not a valid number")
    return values


class _StalledError(Exception):
    """The server sent no data for too long."""


def _watch(file: Path, profile: BenchProfile, report: Report, meanwhile: Callable[[], None]) -> Callable[[], None]:
    """Returns a function that reports the progress, from the tool's events in ``file``. It raises _StalledError if
    there were no new events for too long."""
    sizes = product(profile.pp, profile.tg, profile.depth, profile.concurrency)
    total = sum(_cost(p, t, d) * c * profile.runs for p, t, d, c in sizes)
    heard, size = time.monotonic(), 0
    began: float | None = None

    def tick() -> None:
        nonlocal heard, size, began
        meanwhile()
        content = file.read_bytes() if file.exists() else b""
        if len(content) > size or not file.with_name(_RECOUNTED).exists():  # the tool is still being installed
            heard, size = time.monotonic(), len(content)
            began = began or (heard if size else None)
        if time.monotonic() - heard > _STALL_SECONDS:
            raise _StalledError
        events = [json.loads(line) for line in content[: content.rfind(b"\n") + 1].splitlines()]
        costs = {
            event["request_id"]: _cost(event["prompt_size"], event["response_size"], event["context_size"])
            for event in events
            if event.get("type") == "request_start"
        }
        done = sum(costs.get(event.get("request_id"), 0.0) for event in events if event.get("type") == "request_end")
        report(MeasuringProgress.since("throughput", min(done / total, 1.0), began))

    return tick


def _cost(prompt: int, answer: int, depth: int) -> float:
    return prompt + depth + _GENERATING * answer


# The tokenizer of a served model, as a local file.

NAME = "tokenizer.json"
_TOKENIZER_SECONDS = 60.0


def fetch_tokenizer(
    served: measurement.ServedModel,
    revision: str | None,
    environ: Mapping[str, str],
    member: ServerMember | None,
    target: Path,
) -> Path:
    """The path of the served model's tokenizer.json: in the Hub's cache, or copied from the server to ``target``.
    Raises MeasuringError if it is missing."""
    model, content = served.source, ""
    if commit := hub_cache.revision(environ, model, revision or hub_cache.MAIN):
        path = hub_cache.folder(environ, model) / "snapshots" / commit / NAME
        if path.is_file():
            return path
    if member and model.startswith("/"):
        with suppress(EngineError):
            argv = ["cat", f"{model}/{NAME}"]
            result = containers.execute(member.engine, member.service.id, argv, _TOKENIZER_SECONDS)
            content = "" if result.exit_code else result.output
    if not content.lstrip().startswith("{"):
        message = f"{NAME} of {model or served.name} is missing here: without it, the lengths of prompts would be wrong"
        fetch = f"`builder download {model}` fetches it" if hub_cache.is_id(model) else f"put {NAME} into its folder"
        hint = f"{fetch}; llama-benchy cannot measure a model without a {NAME}"
        raise MeasuringError(message, hint=hint)
    target.write_text(content, encoding="utf-8")
    return target


# A long English text to fill contexts; always the same. A generator of fixed numbers (the one in Numerical Recipes)
# makes sentences from the lists in filler_words.yaml. The sentences seldom repeat, so neither a prefix cache nor a
# speculative decoder gains much.

_FILLER_LENGTH = 900_000
"""The length of the text in characters: more tokens than the deepest contexts of the usual protocols."""


def filler_text(length: int = _FILLER_LENGTH) -> str:
    lists = yaml_file.load(_WORDS.read_text(encoding="utf-8"), _WORDS.name)
    state = 20_031

    def below(limit: int) -> int:
        nonlocal state
        state = (1_664_525 * state + 1_013_904_223) % (1 << 32)
        return (state >> 8) % limit

    def pick(name: str) -> str:
        return str(lists[name][below(len(lists[name]))])

    parts, size = [], 0
    while size < length:
        quantity, kind, things = pick("how_many"), pick("kind"), pick("things")
        sentence = f"{pick('who')} {pick('did')} {quantity} {kind} {things} {pick('where')} {pick('when')}. "
        sentence += "" if below(5) else f"{pick('and_so')} "
        sentence += "" if below(9) else f"Number {below(100_000)} was missing from the list.\n\n"
        parts.append(sentence)
        size += len(sentence)
    return "".join(parts)[:length]


def filler_digest() -> str:
    return sha256_of(filler_text().encode())
