"""Completions after TAB by click's own scripts: in a real bash, and by their protocol for zsh and fish."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from builder.cli import options
from tests import locks, program, projects

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.slow

# What bash runs at TAB: the words of the line are in COMP_WORDS, the answers in COMPREPLY.
TAB = r"""
eval "$(builder completion bash)"
COMP_WORDS=($1)
[[ $1 == *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_builder_completion builder
printf '%s\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    locks.write(projects.make(tmp_path), (9, 10), 10, 10)
    (tmp_path / "builder.yaml").write_text("nodes: {spark2: ssh://spark2}\n", encoding="utf-8")
    return tmp_path


def environment(folder: Path, **more: str) -> dict[str, str]:
    """A PATH on which ``builder`` is this program, whatever is installed."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    (programs / "builder").write_text(program.script())
    (programs / "builder").chmod(0o755)
    return {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", **more}


def tab(folder: Path, line: str) -> list[str]:
    argv = ["bash", "-c", TAB, "bash", line]
    done = subprocess.run(argv, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("builder rollb", ["rollback"]),
        ("builder build ", ["small", "chat"]),
        ("builder build sm", ["small"]),
        ("builder build small --mo", ["--model", "--mod"]),
        ("builder build small --mod ", ["template"]),
        ("builder build small --model Org", ["Org/Model-1B"]),
        ("builder list O", ["Org/Model-1B"]),
        ("builder rollback ", ["Org/Model-1B", "small", "chat"]),
        ("builder show sm", ["small:10", "small:9", "small"]),
        ("builder show small:1", ["small:10"]),  # with a COMP_WORDBREAKS that has no colon
        ("builder export-image sm", ["small:10", "small:9", "small"]),
        ("builder completion f", ["fish"]),
        ("builder diff sm", ["small:10", "small:9", "small"]),
        ("builder diff small:9 sm", ["small:10", "small:9", "small"]),
        ("builder rollback small --to ", ["10", "9"]),
        ("builder rollback chat --to 1", ["10"]),
        ("builder rollback Org/Model-1B --to ", ["10", "9"]),
        ("builder lock --update ", ["base"]),
        ("builder help rec", ["recipes"]),
        ("builder nonsense ro", ["rollback"]),
    ],
)
def test_bash(folder: Path, line: str, offered: list[str]) -> None:
    assert tab(folder, line) == offered


def test_outside_a_project_and_in_a_broken_one_nothing_is_offered(folder: Path, tmp_path_factory: Path) -> None:
    (folder / "images.lock").write_text("version: 99\n", encoding="utf-8")
    assert tab(folder, "builder show ") == []
    assert tab(folder, "builder --project /nowhere build ") == []


@pytest.mark.parametrize(("shell", "line"), [("zsh", "plain\nsmall\n_\n"), ("fish", "plain,small\n")])
def test_the_other_shells(folder: Path, shell: str, line: str) -> None:
    environ = environment(folder, _BUILDER_COMPLETE=f"{shell}_complete", COMP_WORDS="builder build sm", COMP_CWORD="2")
    if shell == "fish":
        environ["COMP_CWORD"] = "sm"  # fish gives the word itself
    done = subprocess.run(["builder"], cwd=folder, env=environ, capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith(line)
    script = subprocess.run(["builder", "completion", shell], env=environment(folder), capture_output=True, text=True)
    assert "_BUILDER_COMPLETE" in script.stdout


@pytest.mark.parametrize(
    "name", ["$(touch PWNED)", "`id`", "a;id", "a b", "a|b", "-x", "~x", "a'b", 'a"b', "a\\b", "a*"]
)
def test_a_name_that_the_shell_would_obey_is_not_offered(name: str) -> None:
    assert options.matching([name, "chat-1.5", "4x/chat", "small:2", "Org/Model"], "") == [
        *("chat-1.5", "4x/chat", "small:2", "Org/Model")
    ]
