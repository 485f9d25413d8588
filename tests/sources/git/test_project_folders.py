from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from builder.sources.git import project_folders

if TYPE_CHECKING:
    from pathlib import Path


def test_a_folder_as_a_revision_had_it(tmp_path: Path) -> None:
    project, out = tmp_path / "project", tmp_path / "out"
    (project / "builds/x/1").mkdir(parents=True)
    file = project / "builds/x/1/run.sh"
    file.write_text("one\n")
    file.chmod(0o755)
    for arguments in (
        ["init", "--quiet"],
        ["add", "--all"],
        ["-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "--quiet", "--message=x"],
    ):
        subprocess.run(["git", *arguments], cwd=project, check=True)
    file.write_text("two\n")
    assert project_folders.extract(project, "HEAD", "builds/x/1", out)
    assert (out / "builds/x/1/run.sh").read_text() == "one\n"
    assert (out / "builds/x/1/run.sh").stat().st_mode & 0o100
    assert not project_folders.extract(project, "HEAD", "builds/x/2", tmp_path / "a")
    assert not project_folders.extract(project, "MERGE_HEAD", "builds/x/1", tmp_path / "b")
    assert not project_folders.extract(tmp_path, "HEAD", "builds/x/1", tmp_path / "c")
