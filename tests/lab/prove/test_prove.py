"""The vocabulary of GPT-OSS's format, made of a model's tokenizer."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from builder.definitions import recipe as recipes
from builder.evidence.run_record import Subject
from builder.lab.prove import conversations, front_end, prove
from builder.lab.prove.conversations import Conversation
from builder.lab.prove.front_end import FrontEndRun, SetupAnswers
from builder.lab.prove.prove import ServedOptions
from tests import projects
from tests.lab.prove import rendering
from tests.workspaces import NO_ENGINE, workspace

if TYPE_CHECKING:
    from pathlib import Path

    from builder.evidence.run_record import Evidence


TOKENS = {b"!": 0, b" ": 1, b"\x00": 2, "ü".encode(): 3, b"\n\n": 4, b" the": 5}


def tokenizer(vocabulary: object) -> dict[str, bytes]:
    return {"tokenizer.json": json.dumps({"model": {"vocab": vocabulary}}).encode()}


def test_it_is_the_file_that_tiktoken_has(monkeypatch: pytest.MonkeyPatch) -> None:
    file = b"".join(base64.b64encode(token) + f" {rank}\n".encode() for token, rank in TOKENS.items())
    monkeypatch.setattr(prove, "SHA256", hashlib.sha256(file).hexdigest())
    # As byte-level tokenizers write them: https://huggingface.co/docs/tokenizers/api/pre-tokenizers, ByteLevel.
    written = {"Ġthe": 5, "ĊĊ": 4, "Ã¼": 3, "Ā": 2, "Ġ": 1, "!": 0}
    assert prove.harmony_vocabulary(tokenizer(written)) == file
    assert prove.harmony_vocabulary(tokenizer({**written, "x": 6})) is None


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"tokenizer.json": b"{"},
        {"tokenizer.json": b"[]"},
        {"tokenizer.json": b'{"model": {}}'},
        tokenizer(["a"]),
        tokenizer({"a": "b"}),
        tokenizer({"a": None}),
        tokenizer({"→": 0}),
        front_end.files(),
    ],
)
def test_another_tokenizer_has_none(files: dict[str, bytes]) -> None:
    assert prove.harmony_vocabulary(files) is None


@pytest.mark.parametrize(
    ("config", "spoken"),
    [(b'{"model_type": "gpt_oss"}', True), (b'{"model_type": "qwen3"}', False), (b"[]", False), (b"{", False)],
)
def test_it_is_the_config_that_decides(config: bytes, spoken: bool) -> None:
    assert prove.is_spoken({"config.json": config}) == spoken
    assert not prove.is_spoken({})


# Questions for Mistral's own tokenizers, which take no options of a template.


@pytest.mark.parametrize(
    ("argv", "renders"),
    [(("--tokenizer-mode", "mistral"), True), (("--tokenizer-mode", "auto"), False), (("--tokenizer-mode",), False)],
)
def test_the_recipe_decides(argv: tuple[str, ...], renders: bool) -> None:
    assert prove.renders(ServedOptions("m", argv, "", "", "", ())) == renders


def test_prompts_are_asked_for_without_options() -> None:
    whole = conversations.questions("mistral", "")
    asked = prove.prompts(whole)
    assert {each.kind for each in whole} > {each.kind for each in asked} == {"prompt"}
    assert not any("chat_template_kwargs" in json.dumps(each.body) for each in asked)
    rendered = {each.name: each.subject for each in whole if isinstance(each.subject, Conversation)}
    left_out = rendered.keys() - {each.name for each in asked}
    assert left_out == {name for name, each in rendered.items() if each.options}
    assert left_out


# The verdict on a front end that did not answer everything: a fault of its own fails, anything else does not.

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


@pytest.mark.parametrize("days", [-1, 0, 1])
def test_the_current_date_in_a_prompt_is_no_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: int) -> None:
    """In any time zone that the recipe or the image sets."""
    today = datetime.now(UTC) + timedelta(days=days)
    whole = answered(len(QUESTIONS))
    dated = {name: {**each, "text": f"{each['text']}{today:%d %B %Y}"} for name, each in (whole.answers or {}).items()}
    run = proven(tmp_path, monkeypatch, FrontEndRun("0.32", (replace(whole, answers=dated),)))
    prompt = next(each for each in QUESTIONS if each.kind == "prompt")
    settled = f"{(whole.answers or {})[prompt.name]['text']}TODAY"
    assert run.goldens[f"{prompt.name}#{prompt.digest}"] == hashlib.sha256(settled.encode()).hexdigest()[:16]


def test_one_that_was_killed_says_nothing_of_the_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed = answered(5, broke_off="it ended with -9", was_killed=True)
    run = proven(tmp_path, monkeypatch, FrontEndRun("0.32", (killed,)))
    assert run.verdict == "unclear"
    assert [each.text for each in run.findings] == [
        "the front end was killed while it answered, probably because memory ran out"
    ]


def test_one_that_broke_off_fails_with_what_it_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = proven(tmp_path, monkeypatch, FrontEndRun("0.32", (answered(5, broke_off="it ended with -11"),)))
    assert run.verdict == "fail"
    (finding,) = run.findings
    assert finding.text.startswith(f"it ended with -11; questions that were not asked: {len(QUESTIONS) - 5}\n")
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
    assert "GPT-OSS's vocabulary is not in the image" in run.findings[0].text


def test_an_option_that_vllm_refuses_is_named_by_its_own_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = "argument --max-model-len: invalid human_readable_int value: 'abc'"
    log = f"usage: vllm launch <component> [options]\nvllm launch render: error: {why}\n"
    run = proven(tmp_path, monkeypatch, FrontEndRun("0.32", (SetupAnswers(None, "", log, 1.0, 0),)))
    assert run.verdict == "fail"
    assert [each.text for each in run.findings] == [f"vLLM refuses the recipe's options: {why}"]
