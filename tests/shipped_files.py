"""The shipped definitions, mods, recipes and pins, as git has them and not as whoever works here has left them.

Files that git tracks count as they are in the working tree, so that what is being edited is under test. images.lock
counts as it was committed, since every build in the clone changes it. Nothing else counts: what builds have left
(builds/, .builder/), builder.yaml, and whatever git does not track. `git add` puts a new file under test.
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
    """The shipped project in a folder of this test session, made once and gone when it ends. Not to be written."""
    folder = shared.folder() / "shipped"
    shared.once("shipped", lambda: str(export(CLONE, folder).root))
    return Project(folder)


def export(clone: Path, folder: Path) -> Project:
    """Writes the shipped project of the git clone at ``clone`` into ``folder``."""
    for path in _git(clone, "ls-files", "-z", "--", *FOLDERS).decode().split("\0"):
        if path and (clone / path).is_file():  # a file may be deleted, and git not told yet
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(clone / path, folder / path)
    (folder / LOCK).write_bytes(_git(clone, "show", f"HEAD:./{LOCK}"))
    return Project(folder)


def _git(clone: Path, *arguments: str) -> bytes:
    # Where tests run from a hook, git has set variables that would lead to another repository.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    # The clone may belong to another user, as it does in a container.
    argv = ["git", "-c", f"safe.directory={clone}", *arguments]
    return subprocess.run(argv, cwd=clone, env=environ, check=True, capture_output=True).stdout
