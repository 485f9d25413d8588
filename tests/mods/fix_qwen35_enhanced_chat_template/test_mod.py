"""The mod around the template: its run.sh, and what its mod.yaml promises."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import yaml

from .rendering import MOD, TEMPLATE

if TYPE_CHECKING:
    from pathlib import Path


def run(workspace: Path | None) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"]}
    if workspace is not None:
        environment["WORKSPACE_DIR"] = str(workspace)
    return subprocess.run(["bash", "run.sh"], cwd=MOD, env=environment, capture_output=True, text=True)


def test_run_copies_the_template(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert [path.name for path in tmp_path.iterdir()] == ["qwen3.5-enhanced.jinja"]
    assert (tmp_path / "qwen3.5-enhanced.jinja").read_bytes() == TEMPLATE.read_bytes()


def test_run_replaces_an_older_template(tmp_path: Path) -> None:
    (tmp_path / "qwen3.5-enhanced.jinja").write_text("old")
    assert run(tmp_path).returncode == 0
    assert (tmp_path / "qwen3.5-enhanced.jinja").read_bytes() == TEMPLATE.read_bytes()


def test_run_fails_without_a_workspace() -> None:
    done = run(None)
    assert done.returncode != 0
    assert "WORKSPACE_DIR: is not set" in done.stderr


def test_run_fails_where_the_workspace_cannot_be_written(tmp_path: Path) -> None:
    done = run(tmp_path / "missing")
    assert done.returncode != 0
    assert "No such file or directory" in done.stderr


def test_run_fails_where_the_target_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "qwen3.5-enhanced.jinja").mkdir()
    assert run(tmp_path).returncode != 0


def test_mod_yaml_checks_the_file_that_run_copies(tmp_path: Path) -> None:
    mod = yaml.safe_load((MOD / "mod.yaml").read_text(encoding="utf-8"))
    assert mod["network"] is False
    assert (MOD / mod["run"]).is_file()
    run(tmp_path)
    for check in mod["check"]:
        assert check["contains"] in (tmp_path / check["file"]).read_text(encoding="utf-8")
