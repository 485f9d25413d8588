"""The commits between two of a repository, in the order in which its main line got them, and what a commit is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.errors import SourceError
from builder.sources.git import mirror, mirror_access
from builder.sources.git.errors import printable
from builder.sources.git.git_command import GitRepository, Notify, discard, run_checked
from builder.sources.git.source_version import date_of, version_of

if TYPE_CHECKING:
    from pathlib import Path

_MOST_FILES = 50


@dataclass(frozen=True)
class CommitFacts:
    """A commit: its version by the tags before it (PEP 440), its date (RFC 3339 UTC), author, title and files, of which
    it names 50 at most."""

    commit: str
    version: str
    date: str
    author: str
    title: str
    files: tuple[str, ...]


def between(mirrors: Path, url: str, old: str, new: str, notify: Notify = discard) -> tuple[str, ...]:
    """The commits strictly between two, the oldest first: those of the main line, as it was merged into. Where ``new``
    is a merge that follows right on ``old``, the commits that it brought. Raises SourceError."""

    def listed(repository: GitRepository) -> tuple[str, ...]:
        for commit in (old, new):
            mirror.ensure_commit(repository, commit)
        command = ["rev-list", "--reverse", f"{old}..{new}"]
        line = run_checked(repository, [*command, "--first-parent"]).text.split()
        if line == [new]:
            line = run_checked(repository, [*command, "--topo-order"]).text.split()
        return tuple(commit for commit in line if commit not in (old, new))

    return mirror_access.with_mirror(mirrors, url, listed, notify)


def facts(
    mirrors: Path, url: str, commit: str, notify: Notify = discard, *, within: tuple[str, ...] = ()
) -> CommitFacts:
    """The facts of a commit. Raises SourceError, also for one in the history of none of ``within``: a server gives
    commits of forks, too."""

    def read(repository: GitRepository) -> CommitFacts:
        for each in (commit, *within):
            mirror.ensure_commit(repository, each)
        if within and run_checked(repository, ["rev-list", "--max-count=1", commit, "--not", *within]).text:
            raise SourceError(f"{commit} is not in the history of {' or '.join(within)}")
        shown = run_checked(repository, ["log", "--no-walk", "--encoding=UTF-8", "--format=%an%x00%s", commit])
        author, _, title = shown.output.decode("utf-8", "replace").strip().partition("\0")
        listed = run_checked(
            repository,
            ["diff-tree", "-r", "--root", "-z", "--name-only", "--no-commit-id", "-m", "--first-parent", commit],
        )
        files = [name for name in listed.output.decode("utf-8", "replace").split("\0") if name]
        return CommitFacts(
            commit,
            version_of(repository, commit),
            date_of(repository, commit),
            printable(author),
            printable(title),
            tuple(map(printable, files[:_MOST_FILES])),
        )

    return mirror_access.with_mirror(mirrors, url, read, notify)
