"""Files and folders of the project as its own git history has them.

The repository may be the work of others: a clone may hold another, bare one whose configuration names programs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.errors import UsageError
from builder.sources.git.git_command import run_in_project
from builder.storage.tar_stream import is_unsafe

if TYPE_CHECKING:
    from pathlib import Path

    from builder.sources.git.git_command import GitResult

_MODES = {b"100644": 0o644, b"100664": 0o644, b"100755": 0o755}
_LONGEST_LINE = 200  # of what `git cat-file --batch` says of an object


def read_file(folder: Path, revision: str, name: str) -> bytes | None:
    """Returns the file ``name`` of ``folder`` as it was in ``revision``; None where that has no such file.

    Raises UsageError where the folder is in no git repository, or there is no such revision.
    """
    repository = run_in_project(folder, "rev-parse", "--git-dir")
    if repository.is_without_git:
        raise UsageError("git is not installed", hint="install it: apt-get install git")
    if repository.status:
        raise UsageError(f"{folder} is in no git repository", hint="revisions of images.lock need its history")
    commit = ""
    if not revision.startswith("-"):
        commit = _line(run_in_project(folder, "rev-parse", "--quiet", "--verify", f"{revision}^{{commit}}"))
    if not commit:
        raise UsageError(
            f"git knows no revision `{revision}`", hint="`git log images.lock` shows those that changed it"
        )
    content = run_in_project(folder, "cat-file", "blob", f"{commit}:./{name}")
    return None if content.status else content.output


def last_change(folder: Path, name: str, before: str) -> str:
    """Returns the commit that changed the file or folder ``name`` of ``folder`` last before a moment (RFC 3339); empty
    where there is none, or no git."""
    return _line(run_in_project(folder, "log", "-1", "--format=%H", f"--before={before}", "HEAD", "--", name))


def extract_folder(project: Path, revision: str, name: str, into: Path) -> bool:
    """Writes the files of the folder ``name`` of the project, byte for byte as they were in ``revision``, into the
    folder ``into``; False where there is no git, no such revision, or no such folder in it.

    `git archive` would run the filters and signature programs that the repository's configuration names.
    """
    listed = run_in_project(project, "ls-tree", "-r", "-z", revision, "--", f"{name}/")
    files = [] if listed.status else _plain_files(listed.output)
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
    if run_in_project(folder, "rev-parse", "--git-dir").status == 0:
        return False
    return run_in_project(folder, "init", "--quiet").status == 0


def commit_of(folder: Path) -> str:
    """The commit that is checked out in ``folder``, the top of a repository; empty where it is none."""
    return _line(run_in_project(folder, "rev-parse", "--verify", "--quiet", "HEAD^{commit}"))


def origin_of(folder: Path) -> str:
    """The address that the repository in ``folder`` was cloned from; empty where it was made here."""
    return _line(run_in_project(folder, "config", "--get", "remote.origin.url"))


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
    names = b"".join(blob + b"\n" for blob in sorted(blobs))
    output = run_in_project(folder, "cat-file", "--batch", stdin=names).output
    contents, position = {}, 0
    while position < len(output):
        line, _, _ = output[position : position + _LONGEST_LINE].partition(b"\n")
        position += len(line) + 1
        name, kind, *size = line.split()
        if kind == b"blob":
            contents[name] = output[position : position + int(size[0])]
            position += int(size[0]) + 1
    return contents


def _line(result: GitResult) -> str:
    return "" if result.status else result.text
