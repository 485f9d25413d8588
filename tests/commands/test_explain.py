"""Codes and keys in words, the same as on the pages."""

from __future__ import annotations

import sys

import pytest

from builder.base.errors import UsageError
from builder.commands import about, explaining
from tests import json_outputs, program
from tests.projects import REPOSITORY_ROOT

REFERENCE = REPOSITORY_ROOT / "docs/reference"


@pytest.mark.parametrize("code", explaining.every(), ids=lambda code: str(code.code))
def test_every_exit_code_is_explained_as_its_page_does(code: explaining.ExitCode) -> None:
    (explanation,) = about.explain_text(str(code.code))
    page = (REFERENCE / "exit-codes.md").read_text(encoding="utf-8")
    assert f"| {code.code} | {'; '.join(explanation.lines)} |" in page


@pytest.mark.slow
def test_every_key_is_explained_as_its_page_does() -> None:
    page = (REFERENCE / "files.md").read_text(encoding="utf-8")
    for file in explaining.every_key():
        for key in file.keys:
            explanations = about.explain_text(f"{file.name}:{key.path}")
            assert any(each.subject == f"{file.name}: {key.path}" for each in explanations), key.path
            assert key.text.replace("|", "\\|") in page


def test_values_without_letters_have_words() -> None:
    kinds = {f"{file.name}:{key.path}": key.kind for file in explaining.every_key() for key in file.keys}
    assert kinds["recipe:cluster"] == "`none`, `ray`, null"
    assert kinds["evidence/REPOSITORY/N/….json:figures[].better"] == "`higher`, `lower`, empty, needed"


def test_a_key_of_several_files_is_explained_for_each() -> None:
    assert {each.subject for each in about.explain_text("env")} >= {"recipe: env", "builder.yaml: env", "mod.yaml: env"}
    assert [each.subject for each in about.explain_text("recipe:env")] == ["recipe: env"]


def test_the_last_part_of_a_key_will_do() -> None:
    (explanation,) = about.explain_text("shm_size")
    assert explanation.subject == "image.yaml: serve.shm_size"


@pytest.mark.slow
def test_a_key_that_a_command_prints_is_explained_as_its_page_does() -> None:
    page = (REFERENCE / "json.md").read_text(encoding="utf-8")
    for name, printed in explaining.outputs().items():
        for key in printed.keys:
            assert any(each.subject.endswith(f": {key.path}") for each in about.explain_text(f"{name}:{key.path}"))
            assert f"| `{key.path}` | {key.kind} | {key.text} |" in page


def test_explanations_as_json() -> None:
    done = program.run([sys.executable, "-m", "builder", "explain", "env", "--json"], check=True)
    printed = json_outputs.parsed("explain", done.stdout)
    assert [each["subject"] for each in printed["explanations"]] == [each.subject for each in about.explain_text("env")]


@pytest.mark.parametrize(("text", "hint"), [("serv.gpus", "serve.gpus"), ("9", "the exit codes are 0"), ("", "schema")])
def test_anything_else_is_refused_with_what_there_is(text: str, hint: str) -> None:
    with pytest.raises(UsageError) as raised:
        about.explain_text(text)
    assert hint in raised.value.hint
