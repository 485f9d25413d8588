"""Evidence in ``list``, ``show`` and ``diff``: from the files alone, no engine is asked."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.base.events import ignore
from builder.base.project import Project
from builder.commands import about, listing
from builder.evidence import run_record, standing
from builder.evidence.run_record import Evidence, Figure, Finding, Subject
from builder.lock import lock_file, text
from builder.lock.model import ImageName, Pairing
from builder.numbers.workspace import open_workspace
from tests import json_outputs, locks, program, projects
from tests.evidence.runs import COMMIT, MODEL, bench, proof

pytestmark = pytest.mark.slow
OTHER = "Org/Other-8B"
FIRST, SECOND = ImageName("small", 1), ImageName("small", 2)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Two numbers; the model was moved from the first to the second."""
    made = projects.make(tmp_path)
    projects.write(made.lock, text.dump_lock(locks.one_after_the_other(COMMIT)))
    return made


def subject(project: Project, name: ImageName, kind: Any = "prove", model: str = MODEL) -> Subject:
    return standing.present_subject(project, lock_file.read_lock(project.lock), name, model, kind)


def add(project: Project, name: ImageName, evidence: Evidence) -> Path:
    of_set = listing.present_set(project, evidence.kind, evidence.name) or evidence.set
    return run_record.add_run(
        project, name, replace(evidence, subject=subject(project, name, evidence.kind), set=of_set)
    )


def environ() -> dict[str, str]:
    return {**os.environ, "DOCKER_HOST": "unix:///nowhere", "PYTHONPATH": str(projects.REPOSITORY_ROOT)}


def run(project: Project, *arguments: str) -> str:
    done = program.run([sys.executable, "-m", "builder", *arguments], cwd=project.root, env=environ())
    assert done.returncode == 0, done.stderr
    return done.stdout


def row(project: Project, name: ImageName, *arguments: str) -> str:
    return next(line for line in run(project, "list", *arguments).splitlines() if line.startswith(f"{name} "))


def on_terminal(project: Project, *arguments: str) -> str:
    """What a terminal of 80 columns gets."""
    mine, theirs = pty.openpty()
    command = [sys.executable, "-m", "builder", *arguments]
    with subprocess.Popen(
        command, stdout=theirs, stderr=theirs, cwd=project.root, env={**environ(), "COLUMNS": "80", "TERM": "xterm"}
    ):
        os.close(theirs)
        output = b""
        while True:
            try:
                output += (piece := os.read(mine, 65536))
            except OSError:
                break
            if not piece:
                break
    os.close(mine)
    return output.decode().replace("\r\n", "\n")


def test_without_evidence_nothing_is_said(project: Project) -> None:
    output = run(project, "list") + run(project, "show", "small:2")
    assert not re.search("proven|evidence", output)
    assert json.loads(run(project, "list", "--json"))["images"][0]["evidence"] is None
    assert not project.raw_evidence.parent.exists()


@pytest.mark.parametrize(
    ("verdict", "word"), [("pass", "proven"), ("changed", "changed"), ("fail", "failed"), ("unclear", "unproven")]
)
def test_the_list_says_how_each_number_stands(project: Project, verdict: str, word: str) -> None:
    add(project, SECOND, proof(verdict))
    for _ in range(2):  # the second time from memory
        assert f", {word}  {MODEL}" in row(project, SECOND)
        assert ", unproven" in row(project, FIRST)
    assert re.search(rf"small:2 +unmarked, {word} ", run(project, "list", "--models"))
    assert f"{word} with {MODEL}" in run(project, "show", "small:2")


def test_what_a_probe_and_a_profile_measured_is_stale_once_they_are_others(project: Project) -> None:
    script = project.root / "probes/mine/check.py"
    projects.write(script, "raise SystemExit(1)\n")
    projects.write(script.with_name("probe.yaml"), "command: [python3, check.py]\n")
    projects.write(project.root / "builder.yaml", "requires: {probe: [mine]}\nbench: {quick-one: {runs: 2}}\n")
    add(project, SECOND, proof())
    add(project, SECOND, bench("fail", kind="probe", name="mine"))
    add(project, SECOND, bench(name="quick-one"))
    for _ in range(2):
        assert ", failed" in row(project, SECOND)
    shown = run(project, "show", "small:2")
    assert "the probe changed" not in shown
    assert "the profile changed" not in shown
    projects.write(script, "raise SystemExit(0)\n")
    projects.write(project.root / "builder.yaml", "requires: {probe: [mine]}\nbench: {quick-one: {runs: 3}}\n")
    for _ in range(2):
        assert ", proven" in row(project, SECOND)
    shown = " ".join(run(project, "show", "small:2").split())
    assert "the probe changed" in shown
    assert "the profile changed" in shown


def test_a_proof_is_stale_once_the_recipe_is_another(project: Project) -> None:
    add(project, SECOND, proof())
    assert ", proven" in row(project, SECOND)
    recipe = project.recipes / "chat.yaml"
    projects.write(recipe, recipe.read_text().replace("--port 8000", "--port 9 --tool-call-parser hermes"))
    assert ", stale" in row(project, SECOND)
    assert f"stale with {MODEL}: the recipe's options changed" in run(project, "show", "small:2")
    projects.write(recipe, recipe.read_text().replace(" --tool-call-parser hermes", ""))
    assert ", proven" in row(project, SECOND)  # the port is no behaviour


def test_a_target_changes_no_standing(project: Project) -> None:
    add(project, FIRST, proof())
    for target in ((), ("small",), (MODEL,), ("chat",)):
        assert ", proven" in row(project, FIRST, *target)


@pytest.mark.parametrize("file", ["recipe", "builder.yaml"])
def test_a_required_run_that_failed_shows(project: Project, file: str) -> None:
    add(project, SECOND, proof())
    add(project, SECOND, bench("fail"))
    add(project, SECOND, bench("fail", kind="probe", name="tools-long"))
    assert ", proven" in row(project, SECOND)
    recipe = project.recipes / "chat.yaml"
    for requires, why in (("probe: [tools-long]", "probe tools-long"), ('bench: {tg: ">= 10"}', "bench quick")):
        if file == "recipe":
            plain = recipe.read_text().partition("requires:")[0]
            projects.write(recipe, f"{plain}requires: {{{requires}}}\n")
        else:
            projects.write(project.root / "builder.yaml", f"requires: {{{requires}}}\n")
        for _ in range(2):
            assert ", failed" in row(project, SECOND)
        assert f"failed with {MODEL}: {why} failed" in run(project, "show", "small:2")
    projects.write(project.root / "builder.yaml", "requires: {\n")
    assert ("failed" if file == "recipe" else "proven") in row(project, SECOND)


def test_the_worst_of_several_models_is_shown_and_the_others_beside_them(project: Project) -> None:
    lock = lock_file.read_lock(project.lock).with_pairing(OTHER, Pairing(SECOND, "recipes/chat.yaml"))
    projects.write(project.lock, text.dump_lock(lock))
    add(project, SECOND, proof())
    run_record.add_run(project, SECOND, proof("fail", subject=subject(project, SECOND, model=OTHER)))
    assert f", failed  {MODEL} (proven), {OTHER}" in row(project, SECOND)


def test_a_damaged_file_is_told_and_the_list_goes_on(project: Project) -> None:
    add(project, SECOND, proof())
    path = add(project, SECOND, proof("fail"))
    path.write_bytes(b'{"format": 1, "seconds": NaN}')
    output = on_terminal(project, "list")
    assert "not counted:" in output
    assert path.name in output
    assert "proven" in output
    assert "NaN is not a finite number" in run(project, "show", "small:2")
    document = json_outputs.parsed("list", run(project, "list", "--json"))["images"][0]["evidence"]
    assert path.name in document["problems"][0]


def test_verify_tells_evidence_that_was_edited(project: Project) -> None:
    path = add(project, SECOND, proof("fail"))
    workspace = open_workspace(project, environ(), ignore)
    assert [each for each in about.verify_project(workspace) if "evidence" in each.message] == []
    path.write_text(path.read_text().replace('"fail"', '"pass"'))
    (discrepancy,) = (each for each in about.verify_project(workspace) if "evidence" in each.message)
    assert (discrepancy.subject, discrepancy.kind) == ("small:2", "edited")
    assert discrepancy.remedy == f"`git checkout HEAD -- {path.relative_to(project.root)}`"


def test_eighty_columns_hold_it_and_the_word_is_there_beside_its_colour(project: Project) -> None:
    add(project, SECOND, proof())
    add(project, SECOND, bench())
    for command in (("list",), ("list", "--models"), ("show", "small:2"), ("diff", "small:1", "small:2")):
        output = on_terminal(project, *command)
        plain = re.sub(r"\x1b\[[0-9;]*m", "", output)
        wide = [line for line in plain.splitlines() if len(line) > 80 and " " in line.strip()]
        assert wide == []
    assert "\x1b[32mproven\x1b[0m" in on_terminal(project, "list")


def test_show_has_the_figures_with_their_spread_and_what_did_not_pass(project: Project) -> None:
    add(project, SECOND, bench("fail"))
    shown = run(project, "show", "small:2")
    assert re.search(r"quick: tg at depth 32768, concurrency 1 +51\.2 tokens/s +± 1\.26 \(2\.5%\) of 3", shown)
    assert re.search(r"quick: memory_floor +2\.0 GB +one value", shown)
    assert "calls, step 9 of 12: two of it:" in shown


def test_diff_has_the_figures_side_by_side(project: Project) -> None:
    slower = replace(bench().figures[0], values=(40.0, 42.0, 41.0))
    add(project, FIRST, bench())
    add(project, SECOND, bench("fail", figures=(slower,)))
    add(project, FIRST, proof())
    add(project, SECOND, proof("changed", goldens={"parallel calls": "fedcba9876543210"}))
    output = run(project, "diff", "small:1", "small:2")
    assert re.search(r"tg at depth 32768, concurrency 1 +51\.2 ± 1\.26 +41 ± 1 +-19\.9%, tokens/s", output)
    assert re.search(r"prove behaviour +pass +changed +Org/Model-1B; 1 conversation with different tokens", output)
    (first, second) = json.loads(run(project, "diff", "small:1", "small:2", "--json"))["evidence"]
    assert (first["kind"], first["after"]["verdict"]) == ("bench", "fail")
    assert first["figures"][0]["change"] == pytest.approx(-0.1987, abs=1e-4)
    assert first["figures"][1]["after"] is None
    assert second["other_tokens"] == ["parallel calls"]


def test_figures_of_another_machine_are_shown_and_not_compared(project: Project) -> None:
    add(project, FIRST, bench())
    add(project, SECOND, bench(version="llama-benchy 0.5.0"))
    output = run(project, "diff", "small:1", "small:2")
    assert "not comparable: different tools: llama-benchy 0.4.0 and llama-benchy 0.5.0" in output
    assert "+0.0%" not in output


def test_nothing_in_a_run_moves_the_cursor_or_sets_a_title(project: Project) -> None:
    evil = "a\x1b]0;title\x07\x1b[2J\u202e\rb"
    finding = Finding(evil, evil, "fail", f"{evil}\n{evil}")
    add(project, SECOND, bench("fail", findings=(finding,), accepted=evil, counts={evil: 1}))
    named = Figure(evil, {evil: evil}, evil, "higher", (1.0, 2.0))
    add(project, SECOND, bench("fail", findings=(finding,), accepted=evil, figures=(named,)))
    for command in (("list",), ("show", "small:2"), ("diff", "small:1", "small:2"), ("show", "small:2", "--json")):
        output = on_terminal(project, *command)
        assert not re.search("\x1b(?!\\[[0-9;]*m)|[\x07\r\u202e]", output), command
    assert "\\x1b]0;title" in run(project, "show", "small:2")


def test_json_has_every_run_whole(project: Project) -> None:
    paths = [add(project, SECOND, proof()), add(project, SECOND, bench())]
    (second, _) = json.loads(run(project, "list", "--json"))["images"]
    shown = json.loads(run(project, "show", "small:2", "--json"))
    assert second["evidence"] == shown["evidence"]
    assert second["evidence"]["standing"] == "proven"
    assert [each.pop("file") for each in second["evidence"]["runs"]] == [path.name for path in paths]
    assert second["evidence"]["runs"] == [json.loads(path.read_text()) for path in paths]
