"""Reading a mirror: single files of a commit, its requirements, and the commits between two pins."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.errors import SourceError
from builder.sources.git import mirror, mirror_access
from builder.sources.git.errors import printable
from builder.sources.git.git_command import GitRepository, Notify, discard, run_checked, run_local
from builder.sources.git.source_version import rfc3339

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

_INCLUDE = re.compile(r"(?:-r|--requirement)(?:\s*=\s*|\s*)(?P<file>\S+)")
_COMMENT = re.compile(r"(?:^|\s+)#.*")
_OPTIONS = re.compile(r"\s+--?[a-z].*")


@dataclass(frozen=True)
class Commit:
    """A commit: its ``date`` is the committer's (RFC 3339 UTC), its ``title`` the first line of the message, safe to
    print."""

    commit: str
    date: str
    title: str


@dataclass(frozen=True)
class CommitRange:
    """The commits that a move from one commit to another brings: ``total`` of them, ``matching`` of which pass the
    filter, and of these the newest as ``commits``, newest first. ``dropped`` counts the commits of the old history that
    the new one lacks, after a force-push or on the way back."""

    commits: tuple[Commit, ...]
    total: int
    dropped: int
    matching: int


@dataclass(frozen=True)
class CommitFilter:
    """A filter for the commits to list: those with ``grep`` in their message, in upper or lower case, that touch one of
    ``paths``; at most ``limit`` of them."""

    grep: str = ""
    paths: tuple[str, ...] = ()
    limit: int = 200

    def arguments(self, commits: str) -> list[str]:
        """Returns git's arguments for finding them in the range ``commits``."""
        grep = ["--fixed-strings", "--regexp-ignore-case", f"--grep={self.grep}"] if self.grep else []
        return [*grep, commits, "--", *self.paths]


ALL_COMMITS = CommitFilter()


def commits_between(
    mirrors: Path, url: str, old: str, new: str, commit_filter: CommitFilter = ALL_COMMITS, notify: Notify = discard
) -> CommitRange:
    """Counts the commits in the history of ``new`` that are not in that of ``old`` (40 hex digits each), and lists
    those that pass the filter. Takes no network if the mirror has both. Raises SourceError."""

    def count_and_list(repository: GitRepository) -> CommitRange:
        for commit in (old, new):
            mirror.ensure_commit(repository, commit)
        counts = run_checked(repository, ["rev-list", "--count", "--left-right", f"{old}...{new}"]).text.split()
        selected = commit_filter.arguments(f"{old}..{new}")
        matching = run_checked(repository, ["rev-list", "--count", *selected]).text
        commits = _listed(repository, commit_filter, f"{old}..{new}")
        return CommitRange(commits, total=int(counts[1]), dropped=int(counts[0]), matching=int(matching))

    return mirror_access.with_mirror(mirrors, url, count_and_list, notify)


def commits_present(mirrors: Path, url: str, old: str, new: str, limit: int) -> CommitRange | None:
    """The same as far as the mirror has both commits; None where it lacks one. Takes no network, and changes nothing.
    Raises SourceError for what is no address."""
    repository = mirror_access.locate(mirrors, url)
    if not repository.path.is_dir():
        return None
    counts = run_local(repository, ["rev-list", "--count", "--left-right", f"{old}...{new}"])
    if counts.status:
        return None
    dropped, total = map(int, counts.text.split())
    commits = _listed(repository, CommitFilter(limit=limit), f"{old}..{new}") if total else ()
    return CommitRange(commits, total=total, dropped=dropped, matching=total)


def read_files(
    mirrors: Path, url: str, commit: str, paths: Collection[str], notify: Notify = discard
) -> dict[str, bytes]:
    """Returns the contents of those of ``paths`` that ``commit`` has; they are fetched together, once. Raises
    SourceError."""
    return mirror_access.with_mirror(mirrors, url, lambda repository: _read_all(repository, commit, paths), notify)


def read_present(mirrors: Path, url: str, commit: str, paths: Collection[str]) -> dict[str, bytes]:
    """Returns the contents of those of ``paths`` that ``commit`` has and the mirror holds; none where there is no
    mirror. Takes no network, and changes nothing."""
    repository = mirror_access.locate(mirrors, url)
    if not repository.path.is_dir():
        return {}
    results = {path: run_local(repository, ["cat-file", "blob", f"{commit}:{path}"]) for path in paths}
    return {path: result.output for path, result in results.items() if not result.status}


def read_requirements(mirrors: Path, url: str, commit: str, path: str, notify: Notify = discard) -> tuple[str, ...]:
    """Returns the requirements in the file ``path`` of ``commit``, then those of the files that it includes with
    ``-r``, each once, without comments and pip's options (indexes, hashes, constraints). Raises SourceError if a file
    is missing."""

    def read_all(repository: GitRepository) -> tuple[str, ...]:
        requirements: dict[str, None] = {}
        seen: set[str] = set()
        waiting = [posixpath.normpath(path)]
        while waiting:
            file = waiting.pop()
            if file in seen:
                continue
            seen.add(file)
            content = _read(repository, commit, file)
            if content is None:
                raise SourceError(f"{commit[:7]} of {repository.address.url} has no file {file}")
            included, own = parse_requirements(content.decode("utf-8-sig", "replace"))
            requirements |= dict.fromkeys(own)
            folder = posixpath.dirname(file)
            waiting += [posixpath.normpath(posixpath.join(folder, other)) for other in reversed(included)]
        return tuple(requirements)

    return mirror_access.with_mirror(mirrors, url, read_all, notify)


def parse_requirements(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the files that a requirements.txt includes, and its own requirements, without comments and options.

    The format is pip's: https://pip.pypa.io/en/stable/reference/requirements-file-format/
    """
    included: list[str] = []
    requirements: list[str] = []
    for line in text.replace("\\\r\n", " ").replace("\\\n", " ").splitlines():
        content = _COMMENT.sub("", line).strip()
        include = _INCLUDE.fullmatch(content)
        if include:
            included.append(include["file"])
        elif content and not content.startswith("-"):
            requirements.append(" ".join(_OPTIONS.sub("", content).split()))
    return tuple(included), tuple(requirements)


def _listed(repository: GitRepository, commit_filter: CommitFilter, commits: str) -> tuple[Commit, ...]:
    """The commits of a range that pass the filter, the newest first."""
    options = ["-z", f"--max-count={commit_filter.limit}", "--encoding=UTF-8", "--format=%H %ct %s"]
    output = run_checked(repository, ["log", *options, *commit_filter.arguments(commits)]).output
    entries = (line.split(" ", 2) for line in output.decode("utf-8", "replace").split("\0") if line)
    return tuple(Commit(commit, rfc3339(int(seconds)), printable(title)) for commit, seconds, title in entries)


def _read(repository: GitRepository, commit: str, path: str) -> bytes | None:
    file = posixpath.normpath(path)
    return _read_all(repository, commit, [file]).get(file)


def _read_all(repository: GitRepository, commit: str, paths: Collection[str]) -> dict[str, bytes]:
    mirror.ensure_commit(repository, commit)
    blobs = mirror.blob_names(repository, commit, paths)
    mirror.ensure_blobs(repository, blobs.values())
    return {path: run_checked(repository, ["cat-file", "blob", blob]).output for path, blob in blobs.items()}
