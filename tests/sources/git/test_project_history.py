from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from builder.errors import UsageError
from builder.sources.git import project_history

if TYPE_CHECKING:
    from pathlib import Path


def commit(project: Path, files: dict[str, str]) -> Path:
    """A repository with one commit of ``files``, which are executable."""
    for name, content in files.items():
        file = project / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
        file.chmod(0o755)
    for arguments in (
        ["init", "--quiet"],
        ["add", "--all"],
        ["-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "--quiet", "--message=x"],
    ):
        subprocess.run(["git", *arguments], cwd=project, check=True)
    return project


def test_a_folder_as_a_revision_had_it(tmp_path: Path) -> None:
    out = tmp_path / "out"
    project = commit(tmp_path / "project", {"builds/x/1/run.sh": "one\n"})
    (project / "builds/x/1/run.sh").write_text("two\n")
    assert project_history.extract_folder(project, "HEAD", "builds/x/1", out)
    assert (out / "builds/x/1/run.sh").read_text() == "one\n"
    assert (out / "builds/x/1/run.sh").stat().st_mode & 0o100
    assert not project_history.extract_folder(project, "HEAD", "builds/x/2", tmp_path / "a")
    assert not project_history.extract_folder(project, "MERGE_HEAD", "builds/x/1", tmp_path / "b")
    assert not project_history.extract_folder(tmp_path, "HEAD", "builds/x/1", tmp_path / "c")


def test_a_file_as_a_revision_had_it(tmp_path: Path) -> None:
    project = commit(tmp_path / "project", {"images.lock": "one\n"})
    (project / "images.lock").write_text("two\n")
    assert project_history.read_file(project, "HEAD", "images.lock") == b"one\n"
    assert project_history.read_file(project, "HEAD", "other") is None


@pytest.mark.parametrize("revision", ["nothing", "--all", "HEAD~7"])
def test_a_revision_that_git_does_not_know(tmp_path: Path, revision: str) -> None:
    project = commit(tmp_path / "project", {"images.lock": "one\n"})
    with pytest.raises(UsageError, match=f"git knows no revision `{revision}`"):
        project_history.read_file(project, revision, "images.lock")


def test_a_folder_without_a_repository_has_no_revisions(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is in no git repository"):
        project_history.read_file(tmp_path, "HEAD", "images.lock")


def test_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not project_history.extract_folder(tmp_path, "HEAD", "builds", tmp_path / "out")
    with pytest.raises(UsageError, match="git is not installed"):
        project_history.read_file(tmp_path, "HEAD", "images.lock")


def test_a_link_in_a_revision_is_left_out(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "builds/x/1").mkdir(parents=True)
    (project / "builds/x/1/link").symlink_to("/etc/hostname")
    (project / "builds/x/1/etc").symlink_to("/etc")
    commit(project, {"builds/x/1/plan.json": "{}"})
    out = tmp_path / "out"
    assert project_history.extract_folder(project, "HEAD", "builds/x/1", out)
    assert [path.name for path in (out / "builds/x/1").iterdir()] == ["plan.json"]
