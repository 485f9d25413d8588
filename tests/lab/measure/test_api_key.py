"""Servers that ask for a key: it is found, passed on, and neither shown nor written."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from builder.base import redaction
from builder.base.errors import MeasuringError
from builder.base.events import ignore
from builder.base.project import Project
from builder.definitions import configuration
from builder.definitions.configuration import BenchProfile
from builder.evidence import run_record
from builder.evidence.run_record import Subject
from builder.lab.measure import bench, measurement, own_script
from builder.lock.model import ImageName
from tests import projects
from tests.lab.measure.openai_server import Behaviour, serving, write_tokenizer

KEY = 'k"9/+ secret-of-the-server'.replace(" ", "-")


@pytest.mark.parametrize(
    ("argv", "environ", "key"),
    [
        (["vllm", "serve", "m", "--api-key", "abcd", "--port", "8"], {}, "abcd"),
        (["vllm", "serve", "m", "--api-key=ab=cd"], {}, "ab=cd"),
        (["vllm", "serve", "m", "--api_key", "$ab"], {"ab": "other"}, "$ab"),
        (["bash", "-c", 'exec vllm serve m --api-key "${MINE}" \\\n --port 8'], {"MINE": "abcd"}, "abcd"),
        (["bash", "-c", "vllm serve m --api-key $MINE"], {}, "$MINE"),
        (["bash", "-c", "it's here\nvllm serve --api-key abcd"], {}, "abcd"),
        (["vllm", "serve", "m", "--api-key"], {}, ""),
        (["vllm", "serve", "m"], {}, ""),
    ],
)
def test_the_key_in_a_command(argv: list[str], environ: dict[str, str], key: str) -> None:
    assert measurement.in_command(argv, environ) == key


def test_the_option_is_left_out_of_what_is_recorded() -> None:
    words = ["--seed", "1", "--api-key", "abcd", "--api_key=efgh", "--port", "8"]
    assert measurement.without(words) == ("--seed", "1", "--port", "8")


@pytest.mark.slow
def test_a_server_with_a_key_is_asked_with_it() -> None:
    with serving(Behaviour(key=KEY)) as served:
        assert measurement.ask_served_model(served.address, KEY).key == KEY
        assert measurement.model_answers(served)
        assert list(measurement.stream(served, {"messages": [], "max_tokens": 2}, 10))
        with pytest.raises(MeasuringError, match="401"):
            measurement.ask_served_model(served.address)
    assert KEY not in repr(served)


@pytest.mark.slow
def test_a_script_gets_the_key_and_may_print_it(tmp_path: Path) -> None:
    """What it prints is kept without the key, and its arguments never had it."""
    project = Project(tmp_path)
    folder = tmp_path / "probes/mine"
    script = "import os, sys; key = os.environ['BUILDER_API_KEY']; print(key, sys.argv); raise SystemExit(key)"
    projects.write(folder / "probe.yaml", json.dumps({"command": ["python3", "-c", script]}))
    redaction.learn(KEY)
    with serving(Behaviour(key=KEY)) as served:
        outcome = own_script.run_own_probe(served, configuration.load_probe(project, "mine"), os.environ, ignore)
    name = ImageName("small", 1)
    run = outcome.evidence(Subject("small:1", f"sha256:{'0' * 64}"))
    path = run_record.add_run(project, name, run, outcome.raw)
    kept = path.read_text(encoding="utf-8")
    (stored,) = run_record.of_image(project, name)
    raw = run_record.raw_answers(project, stored.raw or "") or b""
    assert outcome.verdict == "fail"
    for text in (kept, raw.decode(), json.dumps(KEY)[1:-1] and redaction.redacted(KEY)):
        assert KEY not in text
        assert json.dumps(KEY)[1:-1] not in text
    assert "***" in kept
    assert b"***" in raw


@pytest.mark.long
@pytest.mark.slow
def test_llama_benchy_measures_a_server_with_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors: list[str] = []
    real = own_script.run_bounded

    def run(argv: list[str], **options: object) -> object:
        vectors.extend(argv)
        return real(argv, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(own_script, "run_bounded", run)
    profile = BenchProfile(name="short", pp=(16,), tg=(4,), depth=(0,), concurrency=(1,), runs=2, coherence=False)
    with serving(Behaviour(key=KEY)) as served:
        tokenizer = write_tokenizer(tmp_path / "tokenizer.json")
        throughput = bench.run_llama_benchy(served, profile, tokenizer, os.environ, ignore)
    assert all(finding.verdict == "pass" for finding in throughput.findings)
    assert any(figure.name == "tg" for figure in throughput.figures)
    assert KEY.encode() not in throughput.raw
    assert not any(KEY in word for word in vectors)
