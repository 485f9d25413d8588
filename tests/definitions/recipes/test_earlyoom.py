"""earlyoom beside a server, with a stand-in for earlyoom that writes its arguments down."""

from __future__ import annotations

import os
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from builder.definitions import container

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.slow
SERVER = ("sh", "-c", 'echo "$$ $*"; exit 7', "server", "a b", "$HOME", "'")


def path_with(folder: Path, *programs: str) -> str:
    """A PATH with a shell and a stand-in for each of ``programs``, and nothing else."""
    for program in programs:
        (folder / program).write_text(f'#!/bin/sh\necho "$@" > {folder}/arguments\n', encoding="utf-8")
        (folder / program).chmod(0o755)
    (folder / "sh").symlink_to("/bin/sh")
    return str(folder)


def test_the_server_is_the_main_process_and_its_end_that_of_the_container(tmp_path: Path) -> None:
    argv = container.earlyoom_beside(SERVER)
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, text=True, env={**os.environ, "PATH": path_with(tmp_path, "earlyoom")}
    ) as process:
        output, _ = process.communicate(timeout=30)
    assert process.returncode == 7
    assert output == f"{process.pid} a b $HOME '\n"
    end = time.monotonic() + 30
    while not (tmp_path / "arguments").exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert (tmp_path / "arguments").read_text(encoding="utf-8") == "-M 524288,102400 -s 100 -r 60\n"


def test_without_earlyoom_the_server_is_not_started(tmp_path: Path) -> None:
    environ = {"PATH": path_with(tmp_path)}
    done = subprocess.run(container.earlyoom_beside(SERVER), capture_output=True, text=True, env=environ, timeout=30)
    assert (done.returncode, done.stdout) == (127, "")
    assert done.stderr == "earlyoom is not in this image\n"
