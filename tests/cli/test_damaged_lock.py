"""A damaged images.lock: each command refuses it, and leaves it as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import locks, projects
from tests.conftest import WITHOUT_ENGINE, run_command

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda text: text[: len(text) // 2], "images.lock:"),
        (lambda text: text.replace("version: 3", "version: 4", 1), "version 4"),
        (lambda text: "<<<<<<< ours\n" + text, "images.lock:1:"),
    ],
)
def test_it_is_refused_and_never_overwritten(tmp_path: Path, damage: Callable[[str], str], said: str) -> None:
    project = projects.make(tmp_path)
    locks.write(project, (1, 2), current=2, paired=2)
    whole = project.lock.read_text(encoding="utf-8")
    project.lock.write_text(damage(whole), encoding="utf-8")
    before = project.lock.read_bytes()
    assert before != whole.encode()
    for arguments in (["build", "chat"], ["list"], ["rollback", "chat"], ["keep", "small:1"], ["show", "small"]):
        assert said in run_command(project, *arguments, code=4, environ=WITHOUT_ENGINE).stderr
    assert project.lock.read_bytes() == before
