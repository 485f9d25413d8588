"""Completions after TAB: in a real bash, and by click's own protocol for zsh and fish."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from builder.cli import completers
from tests import projects

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

LOCK = """\
version: 1

images:
  small:
    numbers:
{numbers}
        models:
          Org/Model-1B:
            sequence: 1

...
"""
NUMBER = """\
      {number}:
        built: 2026-11-20T10:00:00Z
        definition: small
        platform: linux/amd64
        fingerprint: sha256:{digest}
        input_hash: sha256:{digest}
        size: 1
        status: good
"""
# What bash runs at TAB: the words of the line are in COMP_LINE, the answers in COMPREPLY.
TAB = r"""
eval "$(builder completion bash)"
COMP_LINE=$1 COMP_POINT=${2:-${#1}}
_builder_completion builder
printf '%s\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    projects.make(tmp_path)
    numbers = "\n".join(NUMBER.format(number=number, digest=f"{number:064d}") for number in (9, 10))
    (tmp_path / "images.lock").write_text(LOCK.format(numbers=numbers), encoding="utf-8")
    (tmp_path / "builder.yaml").write_text("nodes: {spark2: ssh://spark2}\n", encoding="utf-8")
    return tmp_path


def environment(folder: Path, **more: str) -> dict[str, str]:
    """A PATH on which ``builder`` is this program, whatever is installed."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    (programs / "builder").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m builder "$@"\n')
    (programs / "builder").chmod(0o755)
    root = str(projects.REPOSITORY_ROOT)
    return {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": root, **more}


def tab(folder: Path, line: str, point: int | None = None) -> list[str]:
    argv = ["bash", "-c", TAB, "bash", line, *([str(point)] if point is not None else [])]
    done = subprocess.run(argv, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=60)
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
        ("builder export-image sm", ["small:10", "small:9", "small"]),
        ("builder completion f", ["fish"]),
        ("builder diff sm", ["small:10", "small:9", "small"]),
        ("builder diff small:9 sm", ["small:10", "small:9", "small"]),
        ("builder rollback small --to ", ["10", "9"]),
        ("builder rollback chat --to 1", ["10"]),
        ("builder rollback Org/Model-1B --to ", ["10", "9"]),
        ("builder lock --update ", ["base"]),
        ("builder help rec", ["recipes"]),
        ("builder help recipes ch", ["check"]),
        ("builder nonsense ro", ["rollback"]),
    ],
)
def test_bash(folder: Path, line: str, offered: list[str]) -> None:
    assert tab(folder, line) == offered


def test_bash_gets_only_what_comes_after_a_colon(folder: Path) -> None:
    """Its words end at colons: the answers replace `1`, not `small:1`."""
    assert tab(folder, "builder show small:1") == ["10"]
    assert tab(folder, "builder show small:") == ["10", "9"]


def test_what_stands_behind_the_cursor_does_not_count(folder: Path) -> None:
    assert tab(folder, "builder pin small:9", len("builder pi")) == ["pin"]


def test_outside_a_project_and_in_a_broken_one_nothing_is_offered(folder: Path, tmp_path_factory: Path) -> None:
    (folder / "images.lock").write_text("version: 99\n", encoding="utf-8")
    assert tab(folder, "builder show ") == []
    assert tab(folder, "builder --project /nowhere build ") == []


@pytest.mark.parametrize(("shell", "line"), [("zsh", "plain\nsmall\n_\n"), ("fish", "plain,small\n")])
def test_the_other_shells(folder: Path, shell: str, line: str) -> None:
    environ = environment(folder, _BUILDER_COMPLETE=f"{shell}_complete", COMP_WORDS="builder build sm", COMP_CWORD="2")
    if shell == "fish":
        environ["COMP_CWORD"] = "sm"  # fish gives the word itself
    done = subprocess.run(["builder"], cwd=folder, env=environ, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith(line)
    script = subprocess.run(["builder", "completion", shell], env=environment(folder), capture_output=True, text=True)
    assert "_BUILDER_COMPLETE" in script.stdout


def test_fish_splits_a_line_at_its_first_comma_alone(folder: Path) -> None:
    """A description such as "tool calls, and checks of your own" was cut there."""
    script = subprocess.run(["builder", "completion", "fish"], env=environment(folder), capture_output=True, text=True)
    assert 'string split --max 1 "," -- $completion' in script.stdout
    environ = environment(folder, _BUILDER_COMPLETE="fish_complete", COMP_WORDS="builder prob", COMP_CWORD="prob")
    done = subprocess.run(["builder"], cwd=folder, env=environ, capture_output=True, text=True, timeout=60)
    kind, _, rest = done.stdout.rstrip("\n").partition(",")
    assert (kind, rest) == ("plain", "probe\tCheck a served model: tool calls, and checks of your own.")


@pytest.mark.parametrize(
    "set_by_hand",
    [
        {"_BUILDER_COMPLETE": "1"},
        {"_BUILDER_COMPLETE": "csh_complete"},
        {"_BUILDER_COMPLETE": "bash_nonsense"},
        {"_BUILDER_COMPLETE": "bash_complete"},
        {"_BUILDER_COMPLETE": "zsh_complete"},
        {"_BUILDER_COMPLETE": "fish_complete"},
        {"_BUILDER_COMPLETE": "bash_complete", "COMP_LINE": "builder l", "COMP_POINT": "x"},
        {"_BUILDER_COMPLETE": "zsh_complete", "COMP_WORDS": "builder l", "COMP_CWORD": ""},
        {"_BUILDER_COMPLETE": "fish_complete", "COMP_WORDS": "builder l", "COMP_CWORD": " "},
    ],
)
def test_a_variable_that_no_shell_has_set_is_a_mistake_and_no_bug(folder: Path, set_by_hand: dict[str, str]) -> None:
    environ = environment(folder, **set_by_hand)
    done = subprocess.run(["builder", "list"], cwd=folder, env=environ, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        f"error: _BUILDER_COMPLETE is set to `{set_by_hand['_BUILDER_COMPLETE']}`: "
        "only a shell that completes a line sets it",
        "what to do: `unset _BUILDER_COMPLETE`; `builder completion --help` tells how completion is set up",
    ]


def test_an_empty_variable_asks_nothing(folder: Path) -> None:
    environ = environment(folder, _BUILDER_COMPLETE="")
    done = subprocess.run(["builder", "schema", "mod"], cwd=folder, env=environ, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("{")


@pytest.mark.parametrize(
    "name", ["$(touch PWNED)", "`id`", "a;id", "a b", "a|b", "-x", "~x", "a'b", 'a"b', "a\\b", "a*"]
)
def test_a_name_that_the_shell_would_obey_is_not_offered(name: str) -> None:
    assert completers.matching([name, "chat-1.5", "4x/chat", "small:2", "Org/Model"], "") == [
        *("chat-1.5", "4x/chat", "small:2", "Org/Model")
    ]
