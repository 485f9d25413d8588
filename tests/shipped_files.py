"""The shipped definitions, mods, recipes and pins as git tracks them, without leftovers of work in the clone.

Tracked files are read from the working tree, so that edits are tested. images.lock is read from the last commit,
because every build in the clone changes it. All other files are ignored: the files of builds (builds/, .builder/),
builder.yaml, and untracked files. To test a new file, run `git add`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from builder.base.project import Project
from tests import shared

CLONE = Path(__file__).resolve().parent.parent
FOLDERS = ("dockerfiles", "mods", "recipes", "checkpoints", "builder/definitions/schemas")
LOCK = "images.lock"


@cache
def project() -> Project:
    """The shipped project in a folder of this test session, made once and removed at the end. Do not write to it."""
    folder = shared.folder() / "shipped"
    shared.once("shipped", lambda: str(export(CLONE, folder).root))
    return Project(folder)


def export(clone: Path, folder: Path) -> Project:
    """Writes the shipped project of the git clone at ``clone`` into ``folder``."""
    for path in _git(clone, "ls-files", "-z", "--", *FOLDERS).decode().split("\0"):
        if path and (clone / path).is_file():  # a tracked file may be deleted
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(clone / path, folder / path)
    (folder / LOCK).write_bytes(_git(clone, "show", f"HEAD:./{LOCK}"))
    return Project(folder)


def _git(clone: Path, *arguments: str) -> bytes:
    # If tests run in a git hook, git has set variables that would select another repository.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    # The clone may belong to another user, as it does in a container.
    argv = ["git", "-c", f"safe.directory={clone}", *arguments]
    return subprocess.run(argv, cwd=clone, env=environ, check=True, capture_output=True).stdout
