"""The verdict on a front end that did not answer everything: a fault of its own fails, anything else does not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builder.definitions import recipe as recipes
from builder.evidence.records import Subject
from builder.lab.prove import conversations, front_end, prove
from builder.lab.prove.front_end import FrontEndRun, SetupAnswers
from tests import projects
from tests.proving import rendering
from tests.workspaces import NO_ENGINE, workspace

if TYPE_CHECKING:
    from pathlib import Path

    from builder.evidence.records import Evidence


RECIPE = """\
recipe_version: "1"
name: chat
model: /models/one
container: small
command: vllm serve /models/one --chat-template a.jinja --enable-auto-tool-choice --tool-call-parser hermes
"""
QUESTIONS = conversations.questions("hermes", "")


def answered(count: int, **values: object) -> SetupAnswers:
    answers = rendering.answers(QUESTIONS[:count], rendering.template())
    return replace(SetupAnswers(answers, "", "a line\nthe last one", 1.0, 0), **values)  # type: ignore[arg-type]


def proven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: FrontEndRun) -> Evidence:
    project = projects.make(tmp_path)
    projects.write(project.recipes / "chat.yaml", RECIPE)
    pairing = prove.ProvedPairing("/models/one", None, recipes.load_recipe(project, project.recipes / "chat.yaml"))
    monkeypatch.setattr(front_end, "ask_front_end", lambda *_: run)
    subject = Subject("small:1", "sha256:0")
    (proof,) = prove.prove_models(workspace(project, NO_ENGINE), "small:1", subject, [pairing], lambda _: None, {})
    return proof.evidence


def test_all_answers_are_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = proven(tmp_path, monkeypatch, FrontEndRun("0.32", (answered(len(QUESTIONS)),)))
    assert (run.verdict, run.findings) == ("pass", ())


def test_one_that_was_killed_says_nothing_of_the_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed = answered(5, broke_off="it ended with -9", was_killed=True)
    run = proven(tmp_path, monkeypatch, FrontEndRun("0.32", (killed,)))
    assert run.verdict == "unclear"
    assert [each.text for each in run.findings] == [
        "the front end was killed while it was asked, as for want of memory"
    ]


def test_one_that_broke_off_fails_with_what_it_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = proven(tmp_path, monkeypatch, FrontEndRun("0.32", (answered(5, broke_off="it ended with -11"),)))
    assert run.verdict == "fail"
    (finding,) = run.findings
    assert finding.text.startswith(f"it ended with -11, so that {len(QUESTIONS) - 5} others were not asked\n")
    assert finding.text.endswith("the last one")
    assert run.counts["conversations"] == 5


def test_no_answers_at_all_come_to_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = proven(tmp_path, monkeypatch, FrontEndRun("", failure="its Python ended with 3 before the work was done"))
    assert run.verdict == "unclear"
    assert "an image without vLLM: its Python ended with 3" in run.findings[0].text


def test_a_vocabulary_that_is_not_to_be_had_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = {"refused": "error downloading or loading vocab file: failed to download or load vocab file"}
    answers = SetupAnswers({question.name: refused for question in QUESTIONS}, "", "", 1.0, 0)
    run = proven(tmp_path, monkeypatch, FrontEndRun("0.20", (answers,)))
    assert run.verdict == "unclear"
    assert "GPT-OSS's vocabulary is neither in the image nor" in run.findings[0].text


def test_an_option_that_vllm_refuses_is_named_by_its_own_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = "argument --max-model-len: invalid human_readable_int value: 'abc'"
    log = f"usage: vllm launch <component> [options]\nvllm launch render: error: {why}\n"
    run = proven(tmp_path, monkeypatch, FrontEndRun("0.32", (SetupAnswers(None, "", log, 1.0, 0),)))
    assert run.verdict == "fail"
    assert [each.text for each in run.findings] == [f"vLLM refuses the recipe's options: {why}"]
