"""A copy of the checkout in which mutants are tried: the checkout itself is never changed.

The copy is a git clone with the edits of the checkout and an environment of its own, so that whatever a test starts in
it (``python -m builder`` in any folder, the console script) runs the code of the copy.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


def make(checkout: Path, folder: Path) -> Path:
    """Makes the copy at ``folder``, anew where there is one."""
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run(["git", "clone", "--quiet", "--shared", checkout, folder], check=True)
    _copy_edits(checkout, folder)
    _copy_environment(checkout, folder)
    return folder


def _copy_edits(checkout: Path, folder: Path) -> None:
    argv = ["git", "status", "--porcelain", "-z", "--no-renames", "--untracked-files=all"]
    listed = subprocess.run(argv, cwd=checkout, check=True, capture_output=True, text=True).stdout
    for path in (entry[3:] for entry in listed.split("\0") if entry):
        if (checkout / path).is_file():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(checkout / path, folder / path)
        else:
            (folder / path).unlink(missing_ok=True)


def _copy_environment(checkout: Path, folder: Path) -> None:
    """Links the files of .venv, and writes those anew that name the checkout: its scripts, and where `builder` is."""
    subprocess.run(["cp", "-al", checkout / ".venv", folder / ".venv"], check=True)
    naming = [*(folder / ".venv/bin").iterdir(), *(folder / ".venv").glob("lib/python*/site-packages/*.pth")]
    for path in naming:
        if path.is_symlink() or not path.is_file():
            continue
        content = path.read_bytes()
        if str(checkout).encode() in content and b"\0" not in content[:200]:
            mode = path.stat().st_mode
            path.unlink()
            path.write_bytes(content.replace(str(checkout).encode(), str(folder).encode()))
            path.chmod(mode)
