"""Control characters in the files of a project, as each command shows them on a terminal and in JSON."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builder.base.project import Project
from builder.lock import lock_file, text
from builder.lock.model import ImageName, Lock, Pairing, Version
from tests import locks, program, projects

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.slow

# Sets the window's title, clears the screen, colours the background (as nothing of ours does), turns text round.
ATTACK = "\x1b]0;owned\x07\x1b[2J\x1b[41m\x9b5m\u202e\x7f"
SHOWN = "\\x1b]0;owned\\x07\\x1b[2J\\x1b[41m\\x9b5m\\u202e\\x7f"
# Colours, and the line that moves while a command takes long.
OURS = re.compile("\x1b\\[(?:[012]m|3[0-7]m|\\?25[lh]|2K|1A)|\r(?=\x1b\\[(?:2K|1A))")

RECIPE = f"""\
recipe_version: "1"
name: chat
description: "{SHOWN}"
model: Org/Model-1B
container: small
env:
  GREETING: "{SHOWN}"
command: "vllm serve Org/Model-1B --port 8000 --chat-template '{SHOWN}'"
"""

COMMANDS = """\
list
list --models
show small:1
recipes show chat
recipes check
mods check
doctor
verify
export chat --format script
diff small:1 small:2
build ATTACK
mark small:1 good ATTACK
mods add https://127.0.0.1:9/ATTACK.git
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    root = tmp_path_factory.mktemp("control")
    project = projects.make(root)
    image = replace(
        locks.numbered({"template": "sha256:0"}),
        note=ATTACK,
        versions={"vllm": Version("0.32"), "flashinfer": Version("0.6", "0123456")},
        recipe="recipes/chat.yaml",
    )
    lock = Lock().with_image(ImageName("small", 1), image).with_image(ImageName("small", 2), image)
    lock = lock.with_repository("small", lock.images["small"].with_current(1).with_current(2))
    lock = lock.with_pairing("Org/Model-1B", Pairing(ImageName("small", 2), note=ATTACK))
    projects.write(project.lock, text.dump_lock(lock))
    assert lock_file.read_lock(project.lock) == lock
    projects.write(root / "recipes/chat.yaml", RECIPE)
    projects.add_mod(root, "odd", "true\n", {}, yaml=f'description: "{SHOWN[15:]}"\n')
    projects.write(root / f"recipes/x{ATTACK}.yaml", f"name: {ATTACK}\n")
    return project


def on_a_terminal(root: Path, command: str) -> str:
    """All that a command prints on a terminal."""
    ours, theirs = pty.openpty()
    environ = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "DOCKER_HOST": "unix:///nowhere/docker.sock"}
    environ.pop("NO_COLOR", None)
    argv = [sys.executable, "-m", "builder", *(word.replace("ATTACK", ATTACK) for word in command.split())]
    process = subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, cwd=root, env=environ)
    os.close(theirs)
    output = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:
            break
        output += piece
    os.close(ours)
    assert process.wait(timeout=120) in {0, 1, 2, 4, 5, 6, 7}, output
    return output.decode()


@pytest.mark.parametrize("command", COMMANDS.splitlines())
def test_a_terminal_gets_no_control_character_of_others(project: Project, command: str) -> None:
    output = OURS.sub("", on_a_terminal(project.root, command))
    assert output.replace("\r\n", "").isprintable(), [c for c in output if not c.isprintable() and c not in "\r\n"]
    if command in {"list", "list --models", "recipes show chat", "show small:1"}:
        assert "\\x1b]0;owned\\x07" in output


@pytest.mark.parametrize("command", ["list", "recipes show chat", "show small:1"])
def test_json_holds_them_escaped(project: Project, command: str) -> None:
    environ = {**os.environ, "DOCKER_HOST": "unix:///nowhere/docker.sock"}
    argv = [sys.executable, "-m", "builder", *command.split(), "--json"]
    output = program.run(argv, check=True, cwd=project.root, env=environ).stdout
    assert output.replace("\n", "").isprintable()
    assert ATTACK in strings(json.loads(output))


def strings(content: object) -> str:
    """All strings in a document."""
    if isinstance(content, dict):
        return "".join(map(strings, (*content, *content.values())))
    return "".join(map(strings, content)) if isinstance(content, list) else str(content)
