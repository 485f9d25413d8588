"""The benchmark with the real llama-benchy, on a server that speaks as vLLM does."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.base import events, machine_record
from builder.base.errors import MeasuringError, UsageError
from builder.definitions.configuration import BUILT_IN, BenchProfile
from builder.engine.client import Endpoint
from builder.engine.containers import LogLine, Service
from builder.lab.measure import bench
from builder.lab.measure.measurement import MeasuringProgress, Outcome, ServedModel
from builder.lab.measure.own_script import EndedProcess
from builder.serving.running import ServerMember
from tests.lab.measure.openai_server import METRICS, Behaviour, serving, write_tokenizer

COMMIT = "a" * 40
SMALL = BenchProfile("small", pp=(64,), tg=(32,), depth=(0, 512, 100_000), runs=2)
RESULT: dict[str, list[dict[str, Any]]] = {
    "benchmarks": [
        {
            "concurrency": 1,
            "context_size": 0,
            "prompt_size": 64,
            "response_size": 32,
            "tg_throughput": {"mean": 50.0, "std": 1.0, "values": [49.0, 51.0]},
            "pp_throughput": None,
            "e2e_ttft": {"mean": 9.0, "std": 0.0, "values": [9.0, 9.0]},
        }
    ]
}


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An environment whose Hub cache has the model's tokenizer, and whose proxy leads nowhere near the server."""
    model = tmp_path / "hub/models--org--served"
    write_tokenizer(model / "snapshots" / COMMIT / "tokenizer.json")
    (model / "refs").mkdir()
    (model / "refs/main").write_text(COMMIT, encoding="utf-8")
    return {**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub")}


def figures(outcome: Outcome, name: str) -> dict[int, tuple[float, ...]]:
    return {int(figure.at["depth"]): figure.values for figure in outcome.figures if figure.name == name}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_throughput_at_depth_and_acceptance(environ: dict[str, str]) -> None:
    behaviour = Behaviour(context=4096, drafts=1, token=0.03, prompt_character=0.0005)
    heard: list[object] = []
    with serving(behaviour) as served:
        done = bench.measure_bench(served, SMALL, {**environ, "HTTP_PROXY": "http://127.0.0.1:9"}, heard.append)
    # On a busy machine the latency may vary by more than a prompt takes: its speed is left out, and that is told.
    assert done.verdict == "pass"
    assert [finding for finding in done.findings if finding.check != "pp"] == []
    # 100,000 tokens do not fit, and that is told.
    assert "left out: depth 100000" in str(heard[0])
    rates = figures(done, "tg")
    assert rates.keys() == {0, 512}
    for values in rates.values():
        assert len(values) == 2
        assert all(7 < value < 34 for value in values), "a token takes 30 ms and, on a busy machine, as much again"
    assert {figure.name for figure in done.figures} >= {"tg", "ttft", "acceptance", "acceptance_length"}
    assert json.loads(done.raw)["version"] == "0.4.0"
    progress = [event for event in heard if isinstance(event, MeasuringProgress) and event.name == "throughput"]
    assert progress[-1].share > 0.5
    assert any(event.seconds_left is not None for event in progress)
    # Deep prompts are our own text at temperature 0, exactly as long as the profile says.
    deep = [body for body in behaviour.requests if len(str(body["messages"])) > 500]
    assert deep
    text = bench.filler_text()
    for body in deep:
        assert body["messages"][0]["content"][:200] in text
        assert (body["temperature"], body["min_tokens"]) == (0, 32)
        assert body["chat_template_kwargs"] == {"enable_thinking": False}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_server_that_fails_meanwhile_and_a_model_that_talks_nonsense(environ: dict[str, str]) -> None:
    with serving(Behaviour(context=4096, dies_after=9)) as served:
        done = bench.measure_bench(served, SMALL, environ, events.ignore)
    assert done.verdict == "fail"
    assert [finding.check for finding in done.findings] == ["answers", "answers"]
    assert "EngineDeadError" in done.findings[0].text
    assert done.findings[1].at == "afterwards"
    nonsense = Behaviour(context=4096, model=lambda _: {"role": "assistant", "content": "xz"})
    service = Service("id", "served", "small:1", "id", {}, "running", "", "", 0, 0)
    member = ServerMember(Endpoint("unix:///nowhere", (), "a test"), service)
    with serving(nonsense) as served:
        done = bench.measure_bench(served, SMALL, environ, events.ignore, member=member)
    # An engine that does not answer after the measurement takes away no result.
    assert [finding.check for finding in done.findings] == ["coherence"]


def test_a_tokenizer_that_cannot_be_had_is_no_measurement(environ: dict[str, str], tmp_path: Path) -> None:
    with (
        serving(Behaviour(context=4096)) as served,
        pytest.raises(MeasuringError, match="tokenizer.json of org/served is missing here") as raised,
    ):
        bench.measure_bench(served, SMALL, {**environ, "HF_HUB_CACHE": str(tmp_path / "empty")}, events.ignore)
    assert raised.value.hint.startswith("`builder download org/served` fetches it; ")


@pytest.mark.parametrize(
    "line", ["Falling back to 'gpt2' tokenizer as approximation.", "Downloading book from https://x"]
)
def test_figures_of_another_tokenizer_or_text_are_refused(line: str, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(json.dumps(RESULT), encoding="utf-8")
    (tmp_path / "recounted.jsonl").touch()
    ended = EndedProcess(0, "itself", line.encode(), b"")
    with pytest.raises(MeasuringError, match="did not use the tokenizer or the text"):
        bench._result(ended, tmp_path, SMALL, tmp_path / "tokenizer.json")


def test_what_the_tool_writes_becomes_figures() -> None:
    parsed, notes = bench.parse_llama_benchy(json.dumps(RESULT).encode())
    assert notes == ()
    at = {"depth": 0, "concurrency": 1, "pp": 64, "tg": 32}
    assert [(figure.name, figure.at, figure.values) for figure in parsed] == [
        ("tg", at, (49.0, 51.0)),
        ("ttft", at, (9.0, 9.0)),
    ]


def test_what_the_latency_leaves_of_a_prompt_must_be_more_than_its_noise() -> None:
    """The tool has no value where nothing was left, and an absurd one where next to nothing was."""
    content = {
        **RESULT["benchmarks"][0],
        "pp_throughput": {"mean": 0.0, "std": 0.0, "values": [9094.0, 129495.0]},
        "est_ppt": {"mean": 0.0, "std": 0.0, "values": [7.04, 0.0, 0.49]},
    }
    raw = json.dumps({"benchmarks": [content], "latency_ms": 25.0}).encode()
    figures, (note,) = bench.parse_llama_benchy(raw)
    assert [figure.values for figure in figures if figure.name == "pp"] == [(9094.0,)]
    assert (note.check, note.at, note.verdict) == ("pp", "pp 64, tg 32, depth 0", "pass")
    assert note.text.startswith("2 of 3 values left out")
    # Several requests are timed as they are, without the latency.
    several = json.dumps({"benchmarks": [{**content, "concurrency": 2}], "latency_ms": 25.0}).encode()
    assert [figure.values for figure in bench.parse_llama_benchy(several)[0] if figure.name == "pp"] == [
        (9094.0, 129495.0)
    ]


def test_an_answer_that_came_at_once_has_no_speed_and_is_told() -> None:
    """The tool leaves such a value away: no time lies between the first token and the last."""
    content = {**RESULT["benchmarks"][0], "tg_throughput": {"mean": 49.0, "std": 0.0, "values": [49.0]}}
    figures, (note,) = bench.parse_llama_benchy(json.dumps({"benchmarks": [content]}).encode())
    assert [figure.values for figure in figures if figure.name == "tg"] == [(49.0,)]
    assert (note.check, note.at, note.verdict) == ("tg", "pp 64, tg 32, depth 0", "pass")
    assert note.text.startswith("1 of 2 values left out")


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("concurrency", [1, 2])
def test_tokens_that_are_not_yet_text_count(environ: dict[str, str], concurrency: int) -> None:
    """Only every seventh token becomes text: the tool itself would count 10 of 64, and time those alone."""
    profile = replace(SMALL, tg=(64,), depth=(0,), concurrency=(concurrency,), coherence=False)
    with serving(Behaviour(context=4096, token=0.03, text_every=7)) as served:
        done = bench.measure_bench(served, profile, environ, events.ignore)
    assert done.verdict == "pass"
    (rates,) = figures(done, "tg").values()
    assert len(rates) == 2
    assert all(12 * concurrency < rate < 34 * concurrency for rate in rates), rates
    (note,) = (finding for finding in done.findings if finding.check == "tokens")
    assert note.verdict == "pass"
    counted, tokens = (int(word) for word in re.findall(r"(\d+) of (\d+) tokens", note.text)[0])
    assert counted < tokens / 6
    assert tokens % 64 == 0


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b'{"benchmarks": []}', json.dumps(RESULT).replace("49.0", "NaN").encode()]
)
def test_a_result_that_is_none_is_refused(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_bytes(raw)
    (tmp_path / "recounted.jsonl").touch()
    with pytest.raises(MeasuringError, match="wrote a result that cannot be read"):
        bench._result(EndedProcess(0, "itself", b"", b""), tmp_path, SMALL, tmp_path / "tokenizer.json")


@pytest.mark.slow
def test_a_version_of_the_tool_that_is_not_there_is_no_measurement(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "LLAMA_BENCHY", "llama-benchy 0.0.0")
    served = ServedModel("http://127.0.0.1:9/v1", "org/served", 4096)
    with pytest.raises(MeasuringError, match=r"llama-benchy 0\.0\.0 cannot be installed"):
        bench.run_llama_benchy(served, SMALL, Path("tokenizer.json"), environ, events.ignore)


def test_a_profile_that_does_not_fit_the_model(environ: dict[str, str]) -> None:
    with serving(Behaviour(context=128)) as served, pytest.raises(UsageError, match="has 128 tokens: too few"):
        bench.measure_bench(served, SMALL, environ, events.ignore)


@pytest.mark.slow
def test_the_digest_of_a_profile_is_that_of_its_protocol() -> None:
    quick, community, deep = BUILT_IN
    assert len({bench.bench_digest(profile) for profile in BUILT_IN}) == len(BUILT_IN)
    assert bench.bench_digest(BenchProfile("quick", minutes=1)) == bench.bench_digest(quick)
    assert (community.pp, community.tg, community.concurrency) == ((2048,), (128,), (1, 2, 5))
    assert community.depth == (0, 4096, 8192, 16384, 32768)
    assert (deep.pp, deep.tg, deep.depth) == ((128, 4096), (256, 1024), (0, 32768, 131072))
    assert deep.concurrency == (1, 4, 8)


@pytest.mark.slow
def test_the_text_is_long_and_always_the_same() -> None:
    text = bench.filler_text()
    assert len(text) == bench._FILLER_LENGTH
    assert bench.filler_digest() == bench.filler_digest()
    assert text.startswith(bench.filler_text(1000))
    sentences = text.split(". ")
    assert len(set(sentences)) > 0.8 * len(sentences)


# Counters of a server: a page that was cut anywhere gives no figure, and neither do two that do not go together.

PAGE = METRICS.format(prompts=0, tokens=100, drafts=10, drafted=30, accepted=20)
LATER = METRICS.format(prompts=0, tokens=200, drafts=30, drafted=90, accepted=65)


def test_the_acceptance_between_two_pages() -> None:
    accepted = bench.acceptance(PAGE, LATER)
    assert accepted is not None
    assert accepted == pytest.approx((45 / 60, 1 + 45 / 20))
    assert bench.acceptance(PAGE, PAGE) is None


@pytest.mark.slow
@given(st.integers(0, len(LATER) - 1))
def test_a_page_that_was_cut_gives_no_wrong_acceptance(end: int) -> None:
    whole = bench.acceptance(PAGE, LATER)
    try:
        accepted = bench.acceptance(PAGE, LATER[:end])
    except ValueError:
        return
    assert accepted == whole


def test_a_server_that_was_started_anew_has_no_acceptance() -> None:
    with pytest.raises(ValueError, match="went back"):
        bench.acceptance(LATER, PAGE)


@pytest.mark.parametrize(
    "text",
    ["", "<html>", 'vllm:generation_tokens_total{engine="0"} 3\n', 'vllm:num_requests_running{engine="0"} 1.0'],
)
def test_what_is_no_page_of_vllms(text: str) -> None:
    with pytest.raises(ValueError):
        bench.acceptance(PAGE, text)


def test_acceptance_is_measured_over_fixed_prompts_at_temperature_0() -> None:
    behaviour = Behaviour(drafts=5, prefill=0, token=0)
    with serving(behaviour) as served:
        figures, findings = bench.measure_acceptance(served, lambda _: None)
    assert findings == ()
    assert [figure.name for figure in figures] == ["acceptance", "acceptance_length"]
    assert [figure.values[0] for figure in figures] == pytest.approx([2 / 3, 3.0])
    assert {body["temperature"] for body in behaviour.requests} == {0}
    assert len(behaviour.requests) == len(bench.PROMPTS)


@pytest.mark.slow
def test_a_page_cut_in_half_makes_acceptance_unclear_and_no_drafts_none() -> None:
    with serving(Behaviour(drafts=5, prefill=0, page=lambda text: text[: len(text) // 2])) as served:
        figures, findings = bench.measure_acceptance(served, lambda _: None)
    assert figures == ()
    assert [finding.verdict for finding in findings] == ["unclear"]
    without = "\n".join(line for line in METRICS.splitlines() if "spec_decode" not in line) + "\n"
    with serving(Behaviour(page=lambda _: without.format(tokens=1, prompts=1))) as served:
        assert bench.measure_acceptance(served, lambda _: None) == ((), ())


# Figures from a server's log, its memory and its machine.

STARTED = "2026-11-22T10:00:00.000000000Z"
LOG = """\
2026-11-22T09:00:00.000000000Z INFO Model loading took 1.0000 GiB memory and 9.000000 seconds
2026-11-22T10:00:20.000000000Z INFO [gpu_model_runner.py:4] Model loading took 14.5000 GiB memory and 31.25 seconds
2026-11-22T10:00:30.000000000Z INFO 11-22 [gpu_worker.py:4] Available KV cache memory: 61.25 GiB
2026-11-22T10:00:31.000000000Z INFO 11-22 [kv_cache_utils.py:1] GPU KV cache size: 1,234,560 tokens
2026-11-22T10:00:40.000000000Z INFO 11-22 [gpu_model_runner.py:5] Graph capturing finished in 17 secs, took 0.60 GiB
2026-11-22T10:01:02.500000000Z INFO:     Application startup complete.
"""
# As arch/arm64/kernel/cpuinfo.c writes it of four cores: Cortex-A725 and Cortex-X925, without a name.
CORES = "".join(
    f"processor\t: {number}\nBogoMIPS\t: 2000.00\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\n"
    f"CPU architecture: 8\nCPU variant\t: 0x0\nCPU part\t: {part}\nCPU revision\t: 1\n\n"
    for number, part in enumerate(("0xd87", "0xd87", "0xd85", "0xd85"))
)


def lines(text: str) -> list[LogLine]:
    return [LogLine(*line.split(" ", 1)) for line in text.splitlines()]


def test_the_figures_of_this_start() -> None:
    figures = {figure.name: figure.values[0] for figure in bench.log_figures(lines(LOG), STARTED)}
    assert figures == {
        "kv_tokens": 1_234_560,
        "model_memory": 14.5 * (1 << 30),
        "model_loading": 31.25,
        "kv_memory": 61.25 * (1 << 30),
        "graph_capture": 17,
        "startup": 62.5,
    }


@pytest.mark.parametrize("written", ["2026-11-22T09:59:00Z", "2026-11-29T10:00:00Z", "soon"])
def test_a_clock_that_jumped_gives_no_time_of_the_start(written: str) -> None:
    log = [LogLine(written, "Application startup complete.")]
    assert bench.log_figures(log, STARTED) == ()


def test_the_cpu_build_tells_its_cache_as_well() -> None:
    log = lines("2026-11-22T10:00:31.0Z INFO [kv_cache_utils.py:1] CPU KV cache size: 65,536 tokens")
    assert bench.log_figures(log, STARTED)[0].values == (65_536,)


def test_a_machine_by_its_files() -> None:
    files = {
        "proc/meminfo": "MemTotal:       125000000 kB\nMemAvailable:   100 kB\n",
        "proc/driver/nvidia/gpus/0/information": "Model: \t\t NVIDIA GB10\nIRQ: 3\n",
        "proc/driver/nvidia/version": (
            "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build\n"
        ),
        "proc/cpuinfo": CORES,
    }
    parsed = machine_record.parse_machine(files, {}, "linux/arm64")
    assert (parsed.gpu, parsed.gpus, parsed.driver) == ("NVIDIA GB10", 1, "580.95.05")
    assert (parsed.cpu, parsed.platform) == ("arm64 0x41/0xd87 0x41/0xd85", "linux/arm64")
    assert parsed.memory == 125_000_000 * 1024
    named = machine_record.parse_machine({"proc/cpuinfo": "processor\t: 0\nmodel name\t: AMD EPYC 9554\n"}, {})
    assert named.cpu == "AMD EPYC 9554"
    assert machine_record.parse_machine({}, {}).gpus == 0
