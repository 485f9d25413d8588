"""Files and folders of the project as its own git history has them.

The repository may be the work of others: a clone may hold another, bare one whose configuration names programs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.child_process import memory_file
from builder.errors import UsageError
from builder.sources.git import git_environment
from builder.storage.tar_stream import is_unsafe

if TYPE_CHECKING:
    from pathlib import Path

_MODES = {b"100644": 0o644, b"100664": 0o644, b"100755": 0o755}
_LONGEST_LINE = 200  # of what `git cat-file --batch` says of an object


def read_file(folder: Path, revision: str, name: str) -> bytes | None:
    """Returns the file ``name`` of ``folder`` as it was in ``revision``; None where that has no such file.

    Raises UsageError where the folder is in no git repository, or there is no such revision.
    """
    if not _is_installed():
        raise UsageError("git is not installed", hint="install it: apt-get install git")
    if _git(folder, "rev-parse", "--git-dir")[0]:
        raise UsageError(f"{folder} is in no git repository", hint="revisions of images.lock need its history")
    status, commit = 1, b""
    if not revision.startswith("-"):
        status, commit = _git(folder, "rev-parse", "--quiet", "--verify", f"{revision}^{{commit}}")
    if status:
        raise UsageError(
            f"git knows no revision `{revision}`", hint="`git log images.lock` shows those that changed it"
        )
    status, content = _git(folder, "cat-file", "blob", f"{commit.decode().strip()}:./{name}")
    return None if status else content


def last_change(folder: Path, name: str, before: str) -> str:
    """Returns the commit that changed the file or folder ``name`` of ``folder`` last before a moment (RFC 3339); empty
    where there is none, or no git."""
    if not _is_installed():
        return ""
    status, output = _git(folder, "log", "-1", "--format=%H", f"--before={before}", "HEAD", "--", name)
    return "" if status else output.decode().strip()


def extract_folder(project: Path, revision: str, name: str, into: Path) -> bool:
    """Writes the files of the folder ``name`` of the project, byte for byte as they were in ``revision``, into the
    folder ``into``; False where there is no git, no such revision, or no such folder in it.

    `git archive` would run the filters and signature programs that the repository's configuration names.
    """
    if not _is_installed():
        return False
    status, listed = _git(project, "ls-tree", "-r", "-z", revision, "--", f"{name}/")
    files = [] if status else _plain_files(listed)
    contents = _contents(project, {blob for _, blob, _ in files})
    if not files or any(blob not in contents for _, blob, _ in files):  # a partial clone, or a damaged one
        return False
    for mode, blob, path in files:
        (into / path).parent.mkdir(parents=True, exist_ok=True)
        (into / path).write_bytes(contents[blob])
        (into / path).chmod(_MODES[mode])
    return True


def begin(folder: Path) -> bool:
    """Makes ``folder`` a git repository, with nothing committed; False where it is in one already, or there is no
    git."""
    if not _is_installed() or not _git(folder, "rev-parse", "--git-dir")[0]:
        return False
    return not _git(folder, "init", "--quiet")[0]


def commit_of(folder: Path) -> str:
    """The commit that is checked out in ``folder``, the top of a repository; empty where it is none."""
    if not _is_installed():
        return ""
    status, output = _git(folder, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    return "" if status else output.decode().strip()


def origin_of(folder: Path) -> str:
    """The address that the repository in ``folder`` was cloned from; empty where it was made here."""
    if not _is_installed():
        return ""
    status, output = _git(folder, "config", "--get", "remote.origin.url")
    return "" if status else output.decode().strip()


def _plain_files(listed: bytes) -> list[tuple[bytes, bytes, str]]:
    """The mode, blob and path of each file that `git ls-tree` lists: no links, which anybody may have committed, and no
    submodules."""
    files = []
    for entry in filter(None, listed.split(b"\0")):
        meta, _, name = entry.partition(b"\t")
        (mode, _, blob), path = meta.split(), name.decode("utf-8", "surrogateescape")
        if mode in _MODES and not is_unsafe(path):
            files.append((mode, blob, path))
    return files


def _contents(folder: Path, blobs: set[bytes]) -> dict[bytes, bytes]:
    """The contents of these blobs, as far as the repository has them."""
    _, output = _git(folder, "cat-file", "--batch", stdin=b"".join(blob + b"\n" for blob in sorted(blobs)))
    contents, position = {}, 0
    while position < len(output):
        line, _, _ = output[position : position + _LONGEST_LINE].partition(b"\n")
        position += len(line) + 1
        name, kind, *size = line.split()
        if kind == b"blob":
            contents[name] = output[position : position + int(size[0])]
            position += int(size[0]) + 1
    return contents


def _is_installed() -> bool:
    """True if there is a git to run; without one GitPython could not even be imported."""
    from shutil import which

    return which("git") is not None


def _git(folder: Path, *arguments: str, stdin: bytes = b"") -> tuple[int, bytes]:
    """Runs git in ``folder``, so that it obeys no program and no address that the repository there names; returns its
    exit status and its output."""
    import os

    from git.cmd import Git

    with memory_file() as input_file:
        input_file.write(stdin)
        input_file.seek(0)
        status, output, _ = Git(folder).execute(
            ["git", "--no-pager", *arguments],
            istream=input_file,
            with_extended_output=True,
            with_exceptions=False,
            stdout_as_string=False,
            strip_newline_in_stdout=False,
            env=git_environment.project_variables(os.environ),
        )
    return status, output
