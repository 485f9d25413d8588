"""Files and folders of the project as its own git history has them."""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING

from builder.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


def read_file(folder: Path, revision: str, name: str) -> bytes | None:
    """Returns the file ``name`` of ``folder`` as it was in ``revision``; None where that has no such file.

    Raises UsageError where the folder is in no git repository, or there is no such revision.
    """
    if not _is_installed():
        raise UsageError("git is not installed", hint="install it: apt-get install git")
    if _git(folder, "rev-parse", "--git-dir")[0]:
        raise UsageError(f"{folder} is in no git repository", hint="revisions of images.lock need its history")
    status, commit = _git(folder, "rev-parse", "--quiet", "--verify", f"{revision}^{{commit}}")
    if status or revision.startswith("-"):
        raise UsageError(
            f"git knows no revision `{revision}`", hint="`git log images.lock` shows those that changed it"
        )
    status, content = _git(folder, "cat-file", "blob", f"{commit.decode().strip()}:./{name}")
    return None if status else content


def extract_folder(project: Path, revision: str, name: str, into: Path) -> bool:
    """Writes the folder ``name`` of the project, as it was in ``revision`` but for links, into the folder ``into``;
    False where there is no git, no such revision, or no such folder in it."""
    if not _is_installed():
        return False
    status, packed = _git(project, "archive", "--format=tar", revision, "--", f"{name}/")
    if status:
        return False
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(into, filter=_plain)  # noqa: S202  # with the filter of Python's own
    return (into / name).is_dir()


def _plain(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
    """The member, if it is a file or a folder: links, which anybody may have committed, are left out."""
    return tarfile.data_filter(member, folder) if member.isfile() or member.isdir() else None


def _is_installed() -> bool:
    """True if there is a git to run; without one GitPython could not even be imported."""
    from shutil import which

    return which("git") is not None


def _git(folder: Path, *arguments: str) -> tuple[int, bytes]:
    """Runs git in ``folder``; returns its exit status and its output."""
    from git.cmd import Git

    status, output, _ = Git(folder).execute(
        ["git", *arguments],
        with_extended_output=True,
        with_exceptions=False,
        stdout_as_string=False,
        strip_newline_in_stdout=False,
    )
    return status, output
