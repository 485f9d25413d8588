"""The benchmark with the real llama-benchy, on a server that speaks as vLLM does."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.base import events
from builder.base.errors import MeasuringError, UsageError
from builder.definitions.configuration import BUILT_IN, BenchProfile
from builder.lab.measure import bench, llama_benchy
from builder.lab.measure.outcome import MeasuringProgress, Outcome
from builder.lab.measure.own_script import EndedProcess
from tests.measuring.openai_server import Behaviour, serving, write_tokenizer

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


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_throughput_at_depth_and_acceptance(environ: dict[str, str]) -> None:
    # A prompt that took no time at all would be left out beside the latency.
    behaviour = Behaviour(context=4096, drafts=1, token=0.01, prompt_character=0.0002)
    heard: list[object] = []
    with serving(behaviour) as served:
        done = bench.measure_bench(served, SMALL, {**environ, "HTTP_PROXY": "http://127.0.0.1:9"}, heard.append)
    assert (done.verdict, done.findings) == ("pass", ())
    # 100,000 tokens do not fit, and that is told.
    assert "left out: depth 100000" in str(heard[0])
    rates = figures(done, "tg")
    assert rates.keys() == {0, 512}
    for values in rates.values():
        assert len(values) == 2
        assert all(20 < value < 100 for value in values), "a token takes 10 ms and a bit"
    assert {figure.name for figure in done.figures} >= {"tg", "ttft", "acceptance", "acceptance_length"}
    assert json.loads(done.raw)["version"] == "0.4.0"
    progress = [event for event in heard if isinstance(event, MeasuringProgress) and event.name == "throughput"]
    assert progress[-1].share > 0.5
    assert any(event.seconds_left is not None for event in progress)
    # Deep prompts are our own text at temperature 0, exactly as long as the profile says.
    deep = [body for body in behaviour.requests if len(str(body["messages"])) > 500]
    assert deep
    text = llama_benchy.text()
    for body in deep:
        assert body["messages"][0]["content"][:200] in text
        assert (body["temperature"], body["min_tokens"]) == (0, 32)
        assert body["chat_template_kwargs"] == {"enable_thinking": False}


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
    with serving(nonsense) as served:
        done = bench.measure_bench(served, SMALL, environ, events.ignore)
    assert [finding.check for finding in done.findings] == ["coherence"]


def test_a_tokenizer_that_cannot_be_had_is_no_measurement(environ: dict[str, str], tmp_path: Path) -> None:
    with (
        serving(Behaviour(context=4096)) as served,
        pytest.raises(MeasuringError, match="no tokenizer.json of org/served"),
    ):
        bench.measure_bench(served, SMALL, {**environ, "HF_HUB_CACHE": str(tmp_path / "empty")}, events.ignore)


@pytest.mark.parametrize(
    "line", ["Falling back to 'gpt2' tokenizer as approximation.", "Downloading book from https://x"]
)
def test_figures_of_another_tokenizer_or_text_are_refused(line: str, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(json.dumps(RESULT), encoding="utf-8")
    ended = EndedProcess(0, "itself", line.encode(), b"", 1)
    with pytest.raises(MeasuringError, match="did not take the tokenizer or the text"):
        llama_benchy._result(ended, tmp_path, SMALL)


def test_what_the_tool_writes_becomes_figures() -> None:
    parsed, notes = llama_benchy.parse_llama_benchy(json.dumps(RESULT).encode())
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
    raw = json.dumps({"benchmarks": [content]}).encode()
    figures, (note,) = llama_benchy.parse_llama_benchy(raw, noise=2.5)
    assert [figure.values for figure in figures if figure.name == "pp"] == [(9094.0,)]
    assert (note.check, note.at, note.verdict) == ("pp", "pp 64, tg 32, depth 0", "pass")
    assert note.text.startswith("2 of 3 values left out")
    # Several requests are timed as they are, without the latency.
    several = json.dumps({"benchmarks": [{**content, "concurrency": 2}]}).encode()
    assert [figure.values for figure in llama_benchy.parse_llama_benchy(several, 2.5)[0] if figure.name == "pp"] == [
        (9094.0, 129495.0)
    ]


def test_an_answer_that_came_at_once_has_no_speed_and_is_told() -> None:
    """The tool leaves such a value away: no time lies between the first token and the last."""
    content = {**RESULT["benchmarks"][0], "tg_throughput": {"mean": 49.0, "std": 0.0, "values": [49.0]}}
    figures, (note,) = llama_benchy.parse_llama_benchy(json.dumps({"benchmarks": [content]}).encode())
    assert [figure.values for figure in figures if figure.name == "tg"] == [(49.0,)]
    assert (note.check, note.at, note.verdict) == ("tg", "pp 64, tg 32, depth 0", "pass")
    assert note.text.startswith("1 of 2 values left out")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("concurrency", [1, 2])
def test_tokens_that_are_not_yet_text_count(environ: dict[str, str], concurrency: int) -> None:
    """Only every seventh token becomes text: the tool itself would count 10 of 64, and time those alone."""
    profile = replace(SMALL, tg=(64,), depth=(0,), concurrency=(concurrency,), coherence=False)
    with serving(Behaviour(context=4096, token=0.01, text_every=7)) as served:
        done = bench.measure_bench(served, profile, environ, events.ignore)
    assert done.verdict == "pass"
    (rates,) = figures(done, "tg").values()
    assert len(rates) == 2
    assert all(60 * concurrency < rate <= 100 * concurrency for rate in rates), rates
    (note,) = (finding for finding in done.findings if finding.check == "tokens")
    assert (note.at, note.verdict) == ("2 runs", "pass")
    assert f"counted {20 * concurrency} tokens of {128 * concurrency} that the server generated" in note.text


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_beside_which_the_server_worked_for_others_has_no_figures(environ: dict[str, str]) -> None:
    profile = replace(SMALL, depth=(0,), coherence=False)
    with serving(Behaviour(context=4096, others_tokens=3)) as served:
        done = bench.measure_bench(served, profile, environ, events.ignore)
    assert done.verdict == "unclear"
    assert not {"tg", "pp", "ttft"} & {figure.name for figure in done.figures}
    texts = [finding.text for finding in done.findings]
    assert any("the server generated 35 tokens, and its answers hold 32" in text for text in texts), texts
    assert any("no run is left" in text for text in texts)


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b'{"benchmarks": []}', json.dumps(RESULT).replace("49.0", "NaN").encode()]
)
def test_a_result_that_is_none_is_refused(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_bytes(raw)
    with pytest.raises(MeasuringError, match="wrote a result that cannot be read"):
        llama_benchy._result(EndedProcess(0, "itself", b"", b"", 1), tmp_path, SMALL)


@pytest.mark.slow
def test_another_version_of_the_tool_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MeasuringError, match=r"llama-benchy 0\.0\.0 cannot be had"):
        llama_benchy.require_tool(os.environ, tmp_path, "llama-benchy 0.0.0")


def test_a_profile_that_does_not_fit_the_model(environ: dict[str, str]) -> None:
    with serving(Behaviour(context=128)) as served, pytest.raises(UsageError, match="has 128 tokens: too few"):
        bench.measure_bench(served, SMALL, environ, events.ignore)


def test_the_digest_of_a_profile_is_that_of_its_protocol() -> None:
    quick, community, deep = BUILT_IN
    assert len({bench.bench_digest(profile) for profile in BUILT_IN}) == len(BUILT_IN)
    assert bench.bench_digest(BenchProfile("quick", minutes=1)) == bench.bench_digest(quick)
    assert (community.pp, community.tg, community.concurrency) == ((2048,), (128,), (1, 2, 5))
    assert community.depth == (0, 4096, 8192, 16384, 32768)
    assert (deep.pp, deep.tg, deep.depth) == ((128, 4096), (256, 1024), (0, 32768, 131072))
    assert deep.concurrency == (1, 4, 8)


def test_the_text_is_long_and_always_the_same() -> None:
    text = llama_benchy.text()
    assert len(text) == llama_benchy.LENGTH
    assert llama_benchy.digest() == llama_benchy.digest()
    assert text.startswith(llama_benchy.text(1000))
    sentences = text.split(". ")
    assert len(set(sentences)) > 0.8 * len(sentences)
