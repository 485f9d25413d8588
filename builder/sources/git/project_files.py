"""Files of the project as its own git history has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


def file_at(folder: Path, revision: str, name: str) -> bytes | None:
    """The file ``name`` of ``folder`` as it was in ``revision``; None where that has no such file.

    Raises UsageError where the folder is in no git repository, or there is no such revision.
    """
    from shutil import which

    if not which("git"):  # GitPython would not even import
        raise UsageError("git is not installed", hint="install it: apt-get install git")
    from git.cmd import Git

    def ask(*arguments: str) -> tuple[int, bytes]:
        status, output, _ = Git(folder).execute(
            ["git", *arguments],
            with_extended_output=True,
            with_exceptions=False,
            stdout_as_string=False,
            strip_newline_in_stdout=False,
        )
        return status, output

    if ask("rev-parse", "--git-dir")[0]:
        raise UsageError(f"{folder} is in no git repository", hint="revisions of images.lock need its history")
    found, commit = ask("rev-parse", "--quiet", "--verify", f"{revision}^{{commit}}")
    if found or revision.startswith("-"):
        raise UsageError(
            f"git knows no revision `{revision}`", hint="`git log images.lock` shows those that changed it"
        )
    status, content = ask("cat-file", "blob", f"{commit.decode().strip()}:./{name}")
    return None if status else content
