"""`make test-gpu` where there is no GPU, and what it makes of parts that fail, tell nothing or do not end."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from builder.evidence import run_record
from tests import processes
from tests.gpu import __main__ as test_gpu
from tests.gpu import running, vllms
from tests.gpu.running import Outcome, Part
from tests.projects import REPOSITORY_ROOT

FIGURE = {"figure": {"name": "prefill", "at": {"tokens": 64}, "unit": "ms", "better": "lower", "values": [0.3]}}
FAULT = {"finding": {"check": "numbers", "at": "64", "verdict": "fail", "text": "off by 1"}}
MACHINE = {"version": {"gpu": "NVIDIA GB10", "mods": "flashqla fix"}}


@dataclass(frozen=True)
class Scripts:
    """Parts that are files of a folder."""

    folder: Path
    name: str = "scripts"

    def command(self, script: str, arguments: tuple[str, ...], seconds: float) -> list[str]:
        return [sys.executable, str(vllms.PARTS / vllms.RUN), f"{seconds:.0f}", str(self.folder / script), *arguments]

    def end(self) -> None:
        raise AssertionError("a part that runs here ends with its own process")

    def clean_up(self) -> None:
        (self.folder / "cleaned up").touch()


@pytest.fixture
def scripts(tmp_path: Path) -> Scripts:
    return Scripts(tmp_path)


def outcome_of(scripts: Scripts, code: str, seconds: float = 60) -> Outcome:
    (scripts.folder / "part.py").write_text(code)
    return run(scripts, Part("kernels", "part.py", seconds=seconds))


def run(scripts: Scripts, *parts: Part) -> Outcome:
    return running.run(scripts, parts, lambda _: None)  # type: ignore[arg-type]


def printed(*results: object) -> str:
    return "".join(f"print({json.dumps(json.dumps({'result': each}))})\n" for each in results)


def printed_line(result: object) -> str:
    return json.dumps({"result": result})


def make_test_gpu(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs it with the programs in ``path`` alone."""
    command = [sys.executable, "-m", "tests.gpu", "--output", str(path / "out.json"), *arguments]
    environ = {**os.environ, "PATH": str(path)}
    return subprocess.run(command, cwd=Path(__file__).parents[2], env=environ, capture_output=True, text=True)


def program(path: Path, name: str, script: str) -> None:
    (path / name).write_text(f"#!/bin/sh\n{script}\n")
    (path / name).chmod(0o755)


def test_without_a_gpu_it_says_so_and_ends_with_an_error(tmp_path: Path) -> None:
    done = make_test_gpu(tmp_path)
    assert done.returncode == test_gpu.NOTHING_TO_TEST_ON
    assert done.stderr.startswith("nothing was tested: nvidia-smi is not installed\n")
    assert not (tmp_path / "out.json").exists()


@pytest.mark.slow
def test_an_image_that_is_not_there_is_told_before_anything_runs(tmp_path: Path) -> None:
    program(tmp_path, "nvidia-smi", "echo 'GPU 0: NVIDIA GB10 (UUID: GPU-0)'")
    done = make_test_gpu(tmp_path, "--image", "vllm-node:3")
    assert (done.returncode, "docker is not installed" in done.stderr) == (test_gpu.NOTHING_TO_TEST_ON, True)
    program(tmp_path, "docker", "echo 'Error response from daemon: No such image: vllm-node:3' >&2; exit 1")
    done = make_test_gpu(tmp_path, "--image", "vllm-node:3")
    assert (done.returncode, "No such image: vllm-node:3" in done.stderr) == (test_gpu.NOTHING_TO_TEST_ON, True)


def test_a_container_that_gets_no_gpu_stops_the_rest_and_everything_is_cleaned_up(tmp_path: Path) -> None:
    program(tmp_path, "nvidia-smi", "echo 'GPU 0: NVIDIA GB10 (UUID: GPU-0)'")
    refused = 'could not select device driver "" with capabilities: [[gpu]]'
    log = tmp_path / "log"
    program(tmp_path, "docker", f"echo \"$*\" >> {log}; case $1 in run) echo '{refused}' >&2; exit 125;; esac")
    done = make_test_gpu(tmp_path, "--image", "vllm-node:3")
    assert done.returncode == 1
    evidence = json.loads((tmp_path / "out.json").read_text())
    first, *others = evidence["findings"]
    assert refused in first["text"]
    assert others[0]["text"] == "not run to its end: the part machine failed"
    calls = log.read_text().splitlines()
    assert [call.split()[0] for call in calls] == ["image", "run", "rm", "volume"]
    (name,) = (word for word in calls[1].split() if word.startswith("builder-test-gpu-") and ":" not in word)
    assert calls[2].split()[-1] == name
    assert all(volume in calls[1] for volume in calls[3].split()[3:])


@pytest.mark.slow
def test_the_part_that_a_container_does_not_end_is_removed_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killing `docker run` leaves the container running, with the GPU's memory."""
    log = tmp_path / "log"
    program(tmp_path, "docker", f'echo "$*" >> {log}; case $1 in run) exec sleep 60;; esac')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(running, "MARGIN", 1.0)
    outcome = running.run(vllms.ImageVllm("vllm-node:3"), (Part("kernels", "part.py", seconds=1),), lambda _: None)
    assert "had not ended after 1 seconds" in outcome.findings[0].text
    assert [call.split()[0] for call in log.read_text().splitlines()] == ["run", "rm", "rm", "volume"]


def test_what_a_part_has_told_is_taken(scripts: Scripts) -> None:
    outcome = outcome_of(scripts, printed(FIGURE, FAULT, {"count": "checks"}, MACHINE))
    assert [figure.mean for figure in outcome.figures] == [0.3]
    assert [finding.at for finding in outcome.findings] == ["kernels: 64"]
    assert (outcome.counts, outcome.versions) == ({"checks": 1}, {"kernels": MACHINE["version"]})
    assert outcome.failed
    assert (scripts.folder / "cleaned up").exists()


def processes_of(command: str) -> bytes:
    """The ids of the processes that run ``command``. What was killed may take a moment to be gone."""
    return subprocess.run(["pgrep", "-f", f"^{command}$"], capture_output=True).stdout


@pytest.mark.slow
def test_a_part_that_does_not_end_keeps_what_it_told_and_says_where_it_stood(scripts: Scripts) -> None:
    stands = f"""
import subprocess, sys, time
sys.path.insert(0, {str(vllms.PARTS)!r})
import part_results
def compiling():
    subprocess.run(["sleep", "611"])
compiling()
"""
    for seconds in processes.GROWING:
        outcome = outcome_of(scripts, printed(FIGURE) + stands, seconds=seconds)
        (finding,) = outcome.findings
        if finding.text.endswith("\nsleep 611"):
            break
    assert len(outcome.figures) == 1
    assert finding.verdict == "unclear"
    assert f"had not ended after {seconds} seconds, and told 1 results until then; it stood at:\n" in finding.text
    assert "in compiling" in finding.text
    assert finding.text.endswith("\nsleep 611")
    assert not outcome.failed
    processes.until(lambda: not processes_of("sleep 611"), "the part has ended")


def test_what_a_part_leaves_ends_with_it(scripts: Scripts) -> None:
    outcome_of(scripts, printed(FIGURE) + "import subprocess\nsubprocess.Popen(['sleep', '612'])")
    processes.until(lambda: not processes_of("sleep 612"), "what it left has ended")


def test_a_part_that_dies_or_tells_nothing_is_a_failure(scripts: Scripts) -> None:
    died = outcome_of(scripts, "raise SystemExit('undefined symbol: cudaDeviceReset')")
    assert "ended with 1" in died.findings[0].text
    assert outcome_of(scripts, "pass").failed


def test_engines_are_spawned_as_vllm_serve_does(scripts: Scripts) -> None:
    """A forked one stands still in its first operation on the CPU, once the part has used OpenMP's threads itself."""
    way = "os.environ['VLLM_WORKER_MULTIPROC_METHOD']"
    code = f"import json, os\nprint(json.dumps({{'result': {{'version': {{'way': {way}}}}}}}))"
    assert outcome_of(scripts, code).versions == {"kernels": {"way": "spawn"}}


def test_a_part_whose_mod_is_not_in_this_vllm_is_named_and_not_run(scripts: Scripts) -> None:
    (scripts.folder / "part.py").write_text(printed(MACHINE))
    machine = Part("machine", "part.py")
    parts = (machine, Part("INT8 head", "part.py", mod="int8-lm-head"), Part("kernels", "part.py", mod="flashqla"))
    outcome = run(scripts, *parts)
    assert [(finding.check, finding.verdict) for finding in outcome.findings] == [("INT8 head", "unclear")]
    assert outcome.findings[0].text == "not run: the mod int8-lm-head is not in this vLLM"
    assert outcome.left_out == []
    assert list(outcome.versions) == ["machine", "kernels"]


def test_what_was_not_run_is_named_and_a_second_run_goes_on_with_it(scripts: Scripts) -> None:
    (scripts.folder / "part.py").write_text(printed(FIGURE))
    parts = (Part("machine", "part.py"), Part("kernels", "part.py"))
    first = running.run(scripts, parts[:1], lambda _: None)  # type: ignore[arg-type]
    over = running.run(scripts, parts, lambda _: None, 5.0, first.ended)  # type: ignore[arg-type]
    assert (over.left_out, list(over.ended)) == (["kernels"], ["machine"])
    (scripts.folder / "part.py").write_text(printed(FAULT))
    second = running.run(scripts, parts, lambda _: None, ended=over.ended)  # type: ignore[arg-type]
    assert (second.left_out, list(second.ended)) == ([], ["machine", "kernels"])
    assert ([figure.mean for figure in second.figures], second.failed) == ([0.3], True)


@pytest.mark.slow
def test_a_run_that_did_not_end_all_parts_ends_with_an_error(tmp_path: Path) -> None:
    program(tmp_path, "nvidia-smi", "echo 'GPU 0: NVIDIA GB10 (UUID: GPU-0)'")
    told = printed_line(MACHINE)
    program(tmp_path, "docker", f"case $1 in run) echo '{told}';; esac")
    done = make_test_gpu(tmp_path, "--image", "vllm-node:3", "--parts", "mods", "--minutes", "0.1")
    assert done.returncode == test_gpu.NOT_ALL_PARTS, done.stderr
    assert "2 parts did not come to their end: machine, mods" in done.stdout
    done = make_test_gpu(tmp_path, "--image", "vllm-node:3", "--parts", "mods", "--resume")
    assert done.returncode == 0, done.stdout + done.stderr
    done = make_test_gpu(tmp_path, "--image", "vllm-node:3", "--parts", "mods", "--resume", "--minutes", "0.1")
    assert done.returncode == 0, "nothing is left to run"


def test_parts_are_chosen_by_name_and_the_machine_is_always_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert [part.name for part in test_gpu.chosen("INT8 head, mods")] == ["machine", "mods", "INT8 head"]
    assert test_gpu.chosen("") == test_gpu.PARTS
    with pytest.raises(SystemExit) as ended:
        test_gpu.chosen("INT4 head")
    assert ended.value.code == 2
    assert "there is no part INT4 head; the parts are\n  machine\n" in capsys.readouterr().err
    assert not any("," in part.name for part in test_gpu.PARTS)


def test_the_options_of_the_recipe_are_those_that_it_has() -> None:
    """part_recipe.py runs where there is no YAML to be read, and holds a copy."""
    recipe = yaml.safe_load((REPOSITORY_ROOT / "recipes/qwen3.5-122b-tf5.yaml").read_text())
    source = (vllms.PARTS / "part_recipe.py").read_text()
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


def test_what_is_written_is_evidence(scripts: Scripts) -> None:
    outcome = outcome_of(scripts, printed(FIGURE, FAULT, {"version": {"gpu": "NVIDIA GB10", "vllm": "0.28.0"}}))
    evidence = test_gpu.record("vllm-node-flashqla:3", outcome, "2026-11-22T18:00:00Z", 12.5)
    assert run_record.parse_evidence(run_record.evidence_text(evidence).encode(), "evidence")[0] == evidence
    assert evidence.verdict == "fail"
