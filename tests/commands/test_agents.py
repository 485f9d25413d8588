"""docs/agents.md, followed by a program that has read nothing else: its commands, their schemas, its exit codes."""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING

import jsonschema_rs
import pytest

from builder.base import errors
from builder.commands import explaining
from tests import projects
from tests.conftest import WITHOUT_ENGINE, run_command

if TYPE_CHECKING:
    from pathlib import Path

    from tests.commands.serving import Kitchen

PAGE = (projects.REPOSITORY_ROOT / "docs/agents.md").read_text(encoding="utf-8")


def schema(name: str) -> dict[str, object]:
    printed: dict[str, object] = json.loads(explaining.OUTPUTS[f"{name}-json"].read_bytes())
    return printed


def test_each_of_the_ten_commands_has_a_schema() -> None:
    commands = re.findall(r"^\| `builder (.+?)(?: [A-Z]+)? --json` \|", PAGE, re.MULTILINE)
    assert len(commands) == 10
    assert [f"`{command.replace(' ', '-')}-json`" in PAGE for command in commands] == [True] * 10
    for command in commands:
        assert schema(command.replace(" ", "-"))["type"] == "object"


def test_the_exit_codes_are_those_of_the_errors() -> None:
    sentence = PAGE.partition("Read the exit code:")[2].partition("\n- ")[0]
    codes = {int(code) for code in re.findall(r"\b(\d+) (?!/)", sentence)}
    known = {kind.exit_code for kind in vars(errors).values() if isinstance(kind, type) and hasattr(kind, "exit_code")}
    assert codes - known - {0, errors.INTERRUPTED, errors.CLOSED_PIPE} == set()
    assert codes >= {0, 1, 2, 4, 5, 6, 7}


def test_each_command_that_is_said_to_take_a_dry_run_takes_it(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    said = re.search(r"((?:`[a-z]+`(?:, | and ))+`[a-z]+`) take `--dry-run`", PAGE)
    assert said
    names = re.findall("`([a-z]+)`", said[1])
    notes = (projects.REPOSITORY_ROOT / "builder/moving/skeleton/AGENTS.md").read_text(encoding="utf-8")
    names += re.findall("`builder ([a-z]+) RECIPE`", notes.partition("Give `--dry-run` first")[0])
    assert len(names) == 7
    for name in dict.fromkeys(names):
        assert "--dry-run" in run_command(project, name, "--help", environ=WITHOUT_ENGINE).stdout


@pytest.mark.engine
def test_a_session_as_the_page_has_it(kitchen: Kitchen) -> None:
    block = re.search(r"```console\n(.*?)```", PAGE, re.DOTALL)
    assert block
    seen = []
    for line in block[1].splitlines():
        words = shlex.split(line.removeprefix("$ builder "))
        done = run_command(kitchen.project, *words, environ=kitchen.environ, timeout=120)
        document = json.loads(done.stdout)
        name = "-".join(word for word in words[:2] if word in {"recipes", "check"}) or words[0]
        jsonschema_rs.validate(schema(name), document)
        assert document["schema_version"] == 1
        seen.append(name)
    assert seen == ["doctor", "recipes-check", "build", "run", "status", "list", "rollback", "stop"]


def test_what_asks_does_nothing_without_an_answer(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    done = run_command(project, "rollback", "small", "--json", code=1, environ=WITHOUT_ENGINE)
    assert "what to do" in done.stderr
    assert not project.lock.exists()
