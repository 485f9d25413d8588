"""Folders of the project as its own git history has them."""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def extract(project: Path, revision: str, name: str, into: Path) -> bool:
    """Writes what the folder ``name`` of the project held in ``revision`` into the folder ``into``; False where there
    is no git, no such revision, or no such folder in it."""
    from shutil import which

    if not which("git"):  # GitPython would not even import
        return False
    from git.cmd import Git

    status, packed, _ = Git(project).execute(
        ["git", "archive", "--format=tar", revision, "--", f"{name}/"],
        with_extended_output=True,
        with_exceptions=False,
        stdout_as_string=False,
        strip_newline_in_stdout=False,
    )
    if status:
        return False
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(into, filter="data")
    return (into / name).is_dir()
