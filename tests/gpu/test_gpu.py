"""`make test-gpu` where there is no GPU, and what it makes of parts that fail, tell nothing or do not end."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import yaml

from builder.evidence import document
from tests.gpu import __main__ as test_gpu
from tests.gpu import running, vllms
from tests.gpu.running import Outcome, Part
from tests.projects import REPOSITORY_ROOT

FIGURE = {"figure": {"name": "prefill", "at": {"tokens": 64}, "unit": "ms", "better": "lower", "values": [0.3]}}
FAULT = {"finding": {"check": "numbers", "at": "64", "verdict": "fail", "text": "off by 1"}}


@dataclass(frozen=True)
class Script:
    """A part that is a line of Python."""

    code: str
    name: str = "a script"

    def command(self, _script: str, _arguments: object) -> list[str]:
        return [sys.executable, "-uc", self.code]


def printed(*results: object) -> str:
    return "".join(f"print({json.dumps(json.dumps({'result': each}))})\n" for each in results)


def outcome_of(code: str, seconds: float = 60) -> Outcome:
    return running.run(Script(code), (Part("kernels", "part.py", seconds=seconds),), lambda _: None)  # type: ignore[arg-type]


def test_without_a_gpu_it_says_so_and_ends_with_an_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.gpu", "--output", str(tmp_path / "out.json")]
    environ = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run(command, cwd=Path(__file__).parents[2], env=environ, capture_output=True, text=True)
    assert done.returncode == test_gpu.NOTHING_TO_TEST_ON
    assert done.stderr.startswith("nothing was tested: nvidia-smi is not installed\n")
    assert not (tmp_path / "out.json").exists()


def test_what_a_part_has_told_is_taken() -> None:
    outcome = outcome_of(printed(FIGURE, FAULT, {"count": "checks"}, {"version": {"gpu": "NVIDIA GB10"}}))
    assert [figure.mean for figure in outcome.figures] == [0.3]
    assert [finding.at for finding in outcome.findings] == ["kernels: 64"]
    assert (outcome.counts, outcome.versions) == ({"checks": 1}, {"kernels": {"gpu": "NVIDIA GB10"}})
    assert outcome.failed


def test_a_part_that_does_not_end_keeps_what_it_told_and_is_named() -> None:
    began = time.monotonic()
    outcome = outcome_of(printed(FIGURE) + "import time\ntime.sleep(60)", seconds=2)
    assert time.monotonic() - began < 30
    assert len(outcome.figures) == 1
    (finding,) = outcome.findings
    assert finding.verdict == "unclear"
    assert "had not ended after 2 seconds, and told 1 results until then" in finding.text
    assert not outcome.failed


def test_a_part_that_dies_or_tells_nothing_is_a_failure() -> None:
    assert "ended with 1" in outcome_of("raise SystemExit('undefined symbol: cudaDeviceReset')").findings[0].text
    assert outcome_of("pass").failed


def test_a_part_whose_mod_is_not_in_this_vllm_is_named_and_not_run() -> None:
    machine = Part("machine", "part.py")
    parts = (machine, Part("INT8 head", "part.py", mod="int8-lm-head"), Part("kernels", "part.py", mod="flashqla"))
    script = Script(printed({"version": {"mods": "flashqla fix"}}))
    outcome = running.run(script, parts, lambda _: None)  # type: ignore[arg-type]
    assert [(finding.check, finding.verdict) for finding in outcome.findings] == [("INT8 head", "unclear")]
    assert outcome.findings[0].text == "not run to its end: the mod int8-lm-head is not in this vLLM"
    assert list(outcome.versions) == ["machine", "kernels"]


def test_the_options_of_the_recipe_are_those_that_it_has() -> None:
    """part_serving.py runs where there is no YAML to be read, and holds a copy."""
    recipe = yaml.safe_load((REPOSITORY_ROOT / "recipes/qwen3.5-122b-tf5.yaml").read_text())
    source = (vllms.PARTS / "part_serving.py").read_text()
    (value,) = (
        node.value
        for node in ast.parse(source).body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "RECIPE"
    )
    assert value is not None
    options = ast.literal_eval(value)
    assert options["kv_cache_dtype"] == recipe["defaults"]["kv_cache_dtype"]
    assert options["speculative_config"] == json.loads(recipe["defaults"]["speculative"])
    assert f"--attention-backend {options['attention_config']['backend']}" in recipe["command"]
    assert "--enable-prefix-caching" in recipe["command"]


def test_what_is_written_is_evidence() -> None:
    outcome = outcome_of(printed(FIGURE, FAULT, {"version": {"gpu": "NVIDIA GB10", "vllm": "0.28.0"}}))
    evidence = test_gpu.record("vllm-node-flashqla:3", outcome, "2026-11-22T18:00:00Z", 12.5)
    assert document.problem(evidence) == ""
    assert evidence.verdict == "fail"
