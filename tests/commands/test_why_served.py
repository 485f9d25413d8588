"""What a start records, what it keeps bisect and upgrade from, and the report of a crash: with real containers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests import json_outputs, projects, spark_tree
from tests.commands.serving import MODEL, Kitchen
from tests.conftest import run_command
from tests.spark_tree import Tree

pytestmark = pytest.mark.engine
TOKEN = "hf_abcdefghijklmnop"  # nobody's


def on(kitchen: Kitchen, folder: Path, tree: Tree) -> dict[str, str]:
    """The environment on a made-up machine."""
    root, programs = spark_tree.write(folder / "machine", tree), spark_tree.programs(folder / "bin", tree)
    return {**kitchen.environ, "BUILDER_ROOT": str(root), "PATH": f"{programs}:{os.environ['PATH']}"}


@pytest.mark.long
def test_a_start_records_the_machine_and_a_changed_one_keeps_images_from_blame(
    kitchen: Kitchen, tmp_path: Path
) -> None:
    environ = on(kitchen, tmp_path, Tree())
    kitchen.recipe("--chooses FLASHINFER --api-key sk-1234567890")
    run_command(kitchen.project, "run", MODEL, environ=environ)
    recorded = kitchen.project.answered.read_text(encoding="utf-8")
    (start,) = json.loads(recorded)[MODEL].values()
    (facts,) = start["starts"]
    assert facts["machines"][0]["kernel"] == "6.17.0-1032-nvidia"
    assert facts["chosen"] == {"attention backend": ["FLASHINFER"]}
    assert facts["served"]["options"]["chooses"] == "FLASHINFER"
    for secret in ("sk-1234567890", spark_tree.SERIAL, str(tmp_path)):
        assert secret not in recorded

    # A second start like the first one is the same state; with another choice it is one more.
    run_command(kitchen.project, "restart", MODEL, environ=environ)
    kitchen.recipe("--chooses TRITON_ATTN")
    run_command(kitchen.project, "restart", MODEL, environ=environ)
    (start,) = json.loads(kitchen.project.answered.read_text(encoding="utf-8"))[MODEL].values()
    assert [each["chosen"]["attention backend"] for each in start["starts"]] == [["FLASHINFER"], ["TRITON_ATTN"]]

    changed = on(kitchen, tmp_path, Tree(kernel="7.0.0-1019-nvidia"))
    judge = tmp_path / "judge.sh"
    projects.write(judge, "#!/bin/sh\nexit 0\n")
    judge.chmod(0o755)
    number = json.loads(run_command(kitchen.project, "show", MODEL, "--json", environ=environ).stdout)
    good, bad = ("1", "2") if str(number).find(":1'") >= 0 else ("2", "1")
    bisect = ("bisect", MODEL, "--good", good, "--bad", bad, "--run", str(judge))
    for command in (bisect, ("upgrade", MODEL)):
        refused = run_command(kitchen.project, *command, code=1, environ=changed).stderr
        assert "so the image may not be the cause" in refused
        assert "kernel: 6.17.0-1032-nvidia → 7.0.0-1019-nvidia, since" in refused
        assert "To continue anyway: `--machine-differs`" in refused
    ended = run_command(kitchen.project, *bisect, "--machine-differs", "--json", code=1, environ=changed).stdout
    assert json.loads(ended)["machine"][0].startswith("kernel: 6.17.0-1032-nvidia → 7.0.0-1019-nvidia")


def report(kitchen: Kitchen, environ: dict[str, str], *more: str) -> list[str]:
    return run_command(kitchen.project, "logs", MODEL, "--report", *more, environ=environ).stdout.splitlines()


def test_the_report_of_a_start_that_failed(kitchen: Kitchen, tmp_path: Path) -> None:
    environ = {**on(kitchen, tmp_path, Tree()), "HF_TOKEN": TOKEN}
    kitchen.recipe(f"--chooses FLASHINFER --crash --crash-message 'OSError: {TOKEN} of 192.168.177.11 in /home/al/x'")
    run_command(kitchen.project, "run", MODEL, code=1, environ=environ)
    lines = report(kitchen, environ)
    # The engine may be starting it again at that moment, and knows no exit code then.
    assert lines[0] in {f"{kitchen.name} ended with exit code 1 before it answered", f"{kitchen.name} did not answer"}
    assert lines[1] == "cause: OSError: *** of ADDRESS in /home/USER/x"
    text = "\n".join(lines)
    assert "chosen by vLLM: attention backend: FLASHINFER" in text
    assert "kernel 6.17.0-1032-nvidia" in text
    for private in (TOKEN, spark_tree.SERIAL, str(tmp_path), "192.168", "/home/al"):
        assert private not in text

    file = tmp_path / "report.md"
    run_command(kitchen.project, "logs", MODEL, "--report", str(file), environ=environ)
    assert file.read_text(encoding="utf-8").splitlines()[:2] == lines[:2]
    elsewhere = run_command(kitchen.project, "logs", "--report", "/none/x.md", code=2, environ=environ)
    hint = "name a file in an existing folder that you can write to"
    assert f"/none/x.md cannot be written: No such file or directory\nwhat to do: {hint}" in elsewhere.stderr


def why(kitchen: Kitchen, environ: dict[str, str]) -> dict[str, Any]:
    return json_outputs.parsed("why", run_command(kitchen.project, "why", MODEL, "--json", environ=environ).stdout)


def test_what_the_server_itself_takes_is_no_cause_and_what_is_gone_without_it_is(
    kitchen: Kitchen, tmp_path: Path
) -> None:
    run_command(kitchen.project, "run", MODEL, environ=on(kitchen, tmp_path, Tree(available=114)))
    loaded = on(kitchen, tmp_path, Tree(available=40))
    answer = why(kitchen, loaded)
    assert answer["as_now"]
    assert answer["causes"] == []
    run_command(kitchen.project, "stop", MODEL, environ=loaded)
    (cause,) = why(kitchen, loaded)["causes"]
    assert cause["text"].startswith("free memory: ")


@pytest.mark.long
def test_the_arguments_of_a_start_that_failed_stand_first(kitchen: Kitchen, tmp_path: Path) -> None:
    environ = on(kitchen, tmp_path, Tree())
    run_command(kitchen.project, "run", MODEL, "--", "--chooses", "FLASHINFER", environ=environ)
    crash = ("--", "--crash", "--crash-message", "RuntimeError: it is late")
    failed = run_command(kitchen.project, "restart", MODEL, "-e", "VLLM_X=1", *crash, code=1, environ=environ)
    assert "Traceback" not in failed.stderr
    answer = why(kitchen, environ)
    assert answer["failure"] == "RuntimeError: it is late"
    assert [cause["text"] for cause in answer["causes"]] == [
        "--crash-message: not given → RuntimeError: it is late",
        "--crash: not given → given",
        "VLLM_X: not given → 1",
        "--chooses: FLASHINFER → not given",
    ]
    assert (
        answer["causes"][1]["undo"]
        == "`builder run recipes/chat.yaml` starts the server as the file says; run `builder stop` first"
    )
    # Without a name, the report is on the server that failed last, and knows its image and its options.
    text = run_command(kitchen.project, "logs", "--report", environ=environ).stdout
    assert f"image: {kitchen.repository}:" in text
    assert "--crash" in text.partition("recipe: ")[2].splitlines()[0]


def test_the_report_of_a_server_that_runs(kitchen: Kitchen, tmp_path: Path) -> None:
    environ: dict[str, Any] = on(kitchen, tmp_path, Tree())
    run_command(kitchen.project, "run", MODEL, environ=environ)
    assert report(kitchen, environ)[0] == f"{kitchen.name} is up"
    by_name = run_command(kitchen.project, "why", kitchen.name, "--json", environ=environ).stdout
    assert json.loads(by_name)["model"] == MODEL


def test_without_a_server_or_a_log_there_is_no_report(kitchen: Kitchen) -> None:
    refused = run_command(kitchen.project, "logs", MODEL, "--report", code=2, environ=kitchen.environ)
    assert "no log of a failed start" in refused.stderr
