"""This page reads files from repositories that others may have written.

Files of a mirror come first, then files from the project's own history.
Only plain files leave a mirror. Nothing is checked out, so no hook or filter runs.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.base.errors import SourceError, UsageError
from builder.base.tar_stream import is_unsafe
from builder.definitions.mod import LARGEST_FILE, LARGEST_MOD, MOST_FILES, PlainFile
from builder.sources import mirror
from builder.sources.git import GitRepository, Notify, discard, printable, run_checked, run_in_project

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from builder.sources.git import GitResult


# Files of another's repository: only plain files leave the mirror, at paths that stay in their folder. Nothing is
# checked out, so no hook, filter or submodule of the repository ever runs.

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_PLAIN = {"100644": False, "100664": False, "100755": True}
_LINK = "120000"
_LONGEST_NAME = 255
_LFS = b"version https://git-lfs.github.com/spec/"
_MOST_TOLD = 10


@dataclass(frozen=True)
class _Entry:
    mode: str
    blob: str
    path: str


def find_commit(mirrors: Path, url: str, ref: str, notify: Notify = discard) -> str:
    """Returns the commit that ``ref`` (a branch, tag or commit, or ``HEAD``) is now, and keeps it in the mirror. Raises
    SourceError."""

    def find(repository: GitRepository) -> str:
        commit = ref.lower()
        if not mirror.is_commit(commit):
            commit = mirror.commit_of(repository, mirror.list_refs(repository), ref)
        mirror.ensure_commit(repository, commit)
        return commit

    return mirror.with_mirror(mirrors, url, find, notify)


def paths(mirrors: Path, url: str, commit: str, notify: Notify = discard) -> tuple[str, ...]:
    """Returns the paths of all files of ``commit`` that have plain names, sorted. Raises SourceError."""

    def listed(repository: GitRepository) -> tuple[str, ...]:
        mirror.ensure_commit(repository, commit)
        entries = _entries(repository, commit, "")
        return tuple(sorted(entry.path for entry in entries if not _unfit_path(entry.path)))

    return mirror.with_mirror(mirrors, url, listed, notify)


def read_foreign_files(
    mirrors: Path, url: str, commit: str, path: str, notify: Notify = discard
) -> tuple[PlainFile, ...]:
    """Returns the file ``path`` of ``commit``, or all files below the folder of that name, sorted by path; a link to
    another of them becomes a copy of it.

    Raises SourceError with everything that cannot be taken: links that lead out, submodules, unfit names, content
    that is too large or only a pointer to Git LFS.
    """

    def read_all(repository: GitRepository) -> tuple[PlainFile, ...]:
        mirror.ensure_commit(repository, commit)
        entries = {entry.path: entry for entry in _entries(repository, commit, path)}
        single = list(entries) == [path]
        start = len(posixpath.dirname(path)) + 1 if single and "/" in path else 0
        start = start if single or not path else len(path) + 1
        if len(entries) > MOST_FILES:
            raise SourceError(f"{url} has {len(entries):,} files in {path or 'it'}; at most {MOST_FILES:,} are copied")
        folders = {name[:end] for name in entries for end, letter in enumerate(name) if letter == "/"}
        wrong = dict.fromkeys(folders & set(entries), "a file and a folder at once")
        wrong |= {name: reason for name, entry in entries.items() if (reason := _unfit_entry(entry))}
        _refuse(repository, wrong)
        mirror.ensure_blobs(repository, (entry.blob for entry in entries.values()))
        sizes = _sizes(repository, entries.values())
        _refuse(repository, _too_large(entries, sizes))
        contents = {name: _content(repository, entry) for name, entry in entries.items()}
        sources = {name: _followed(name, entries, contents, path) for name in entries}
        _refuse(repository, {name: _bad_link(contents[name]) for name, source in sources.items() if source is None})
        files = tuple(
            PlainFile(name[start:], _PLAIN[entries[source].mode], contents[source])
            for name, source in sorted(sources.items())
            if source is not None
        )
        pointers = {file.path: "a pointer to Git LFS" for file in files if file.content.startswith(_LFS)}
        _refuse(repository, pointers)
        return files

    return mirror.with_mirror(mirrors, url, read_all, notify)


def _entries(repository: GitRepository, commit: str, path: str) -> list[_Entry]:
    """Everything in ``commit`` but folders, at ``path`` or below it."""
    limits = ["--", path] if path else []
    listed = run_checked(repository, ["ls-tree", "-r", "-z", "--full-tree", commit, *limits]).output
    pairs = (entry.partition(b"\t") for entry in listed.split(b"\0") if entry)
    return [
        _Entry(meta.split()[0].decode(), meta.split()[2].decode(), name.decode("utf-8", "surrogateescape"))
        for meta, _, name in pairs
    ]


def _unfit_path(path: str) -> str:
    """The reason why no file may have this path here, or nothing."""
    parts = path.split("/")
    if any(part in ("", ".", "..") or part.lower() == ".git" for part in parts):
        return "a path that leads elsewhere"
    if _CONTROL.search(path) or "\\" in path:
        return "a name with a control character or a backslash"
    try:
        longest = max(len(part.encode()) for part in parts)
    except UnicodeEncodeError:
        return "a name that is not UTF-8"
    return "a name that is too long" if longest > _LONGEST_NAME else ""


def _unfit_entry(entry: _Entry) -> str:
    if reason := _unfit_path(entry.path):
        return reason
    if entry.mode == mirror.SUBMODULE_MODE:
        return "a submodule"
    return "" if entry.mode in _PLAIN or entry.mode == _LINK else "no plain file"


def _sizes(repository: GitRepository, entries: Iterable[_Entry]) -> dict[str, int]:
    blobs = sorted({entry.blob for entry in entries})
    lines = "".join(f"{blob}\n" for blob in blobs).encode()
    listed = run_checked(repository, ["cat-file", "--batch-check=%(objectname) %(objectsize)"], lines).text
    return {blob: int(size) for blob, size in (line.split(" ") for line in listed.splitlines())}


def _too_large(entries: dict[str, _Entry], sizes: dict[str, int]) -> dict[str, str]:
    large = {name: sizes[entry.blob] for name, entry in entries.items() if sizes[entry.blob] > LARGEST_FILE}
    if large:
        return {name: f"{size:,} bytes; at most {LARGEST_FILE:,} are copied" for name, size in large.items()}
    total = sum(sizes[entry.blob] for entry in entries.values())
    return {"all files together": f"{total:,} bytes; at most {LARGEST_MOD:,} are copied"} if total > LARGEST_MOD else {}


def _content(repository: GitRepository, entry: _Entry) -> bytes:
    return run_checked(repository, ["cat-file", "blob", entry.blob]).output


def _followed(name: str, entries: dict[str, _Entry], contents: dict[str, bytes], folder: str) -> str | None:
    """The plain file that ``name`` is, or leads to by links within ``folder``; None where they lead elsewhere."""
    for _ in range(len(entries)):
        if entries[name].mode != _LINK:
            return name
        target = contents[name].decode("utf-8", "surrogateescape")
        if target.startswith("/"):
            return None
        name = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
        if name not in entries or not (not folder or name.startswith(f"{folder}/")):
            return None
    return None


def _bad_link(target: bytes) -> str:
    return f"a link to {printable(target[:80].decode('utf-8', 'replace'))}, which is no file in the folder"


def _refuse(repository: GitRepository, wrong: dict[str, str]) -> None:
    if not wrong:
        return
    shown = [f"{printable(name.encode(errors='replace').decode())}: {reason}" for name, reason in wrong.items()]
    more = [f"and {len(shown) - _MOST_TOLD} more"] if len(shown) > _MOST_TOLD else []
    lines = "\n".join([*shown[:_MOST_TOLD], *more])
    raise SourceError(f"{repository.address.url} has what is not copied:\n{lines}")


# Files and folders of the project as its own git history has them. The repository may be the work of others: a clone
# may hold another, bare one whose configuration names programs.

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
