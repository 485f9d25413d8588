"""The release that is running, and the check for a newer release."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from builder.commands import about
from builder.moving import shipped
from tests import projects
from tests.sources.git.test_vllm_versions import repository

if TYPE_CHECKING:
    from pathlib import Path


def test_a_checkout_tells_its_commit() -> None:
    head = ["git", "-c", f"safe.directory={projects.REPOSITORY_ROOT}", "rev-parse", "HEAD"]
    commit = subprocess.run(head, cwd=projects.REPOSITORY_ROOT, capture_output=True, text=True, check=True).stdout
    assert shipped.of_this_program().commit == commit.strip()
    assert str(shipped.of_this_program()).endswith(f"({commit[:12]})")


def test_a_newer_release_is_one_with_a_higher_number(tmp_path: Path) -> None:
    own = shipped.of_this_program().number
    assert shipped.newer_release(repository(tmp_path / "same", f"v{own}")) == ""
    assert shipped.newer_release(repository(tmp_path / "newer", f"v{own}", "v99.0.0")) == "v99.0.0"


@pytest.mark.slow
def test_the_doctor_asks_only_when_it_is_told_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = projects.make(tmp_path / "project")
    environ = {"DOCKER_HOST": "unix:///nowhere/docker.sock", "PATH": "/usr/bin:/bin"}

    def told(releases: str | None) -> list[tuple[str, str]]:
        findings = about.run_doctor(project, environ, tmp_path, releases)
        return [(each.verdict, each.message) for each in findings if each.subject == "release"]

    assert told(None) == []
    (newer,) = told(repository(tmp_path / "newer", "v99.0.0"))
    assert newer[0] == "warning"
    assert newer[1].endswith("has v99.0.0")
    monkeypatch.setattr(shipped, "repository_of_releases", lambda: "")
    (silent,) = told("")
    assert "does not record its source repository" in silent[1]
    assert [verdict for verdict, _ in told(f"file://{tmp_path}/none")] == ["warning"]
