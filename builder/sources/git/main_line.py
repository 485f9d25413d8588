"""The main line of a repository between two of its commits, each told by what a wheel of it says."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from builder.errors import SourceError
from builder.sources.git import mirror, mirror_access, remote_refs
from builder.sources.git.git_command import GitRepository, Notify, discard, run_checked, run_local

if TYPE_CHECKING:
    from pathlib import Path

_DIGITS = re.compile("[0-9a-f]{7,40}")


def between(mirrors: Path, url: str, old: str, new: str, notify: Notify = discard) -> tuple[str, ...]:
    """The commits strictly between two, the oldest first: those of the line that leads to ``new``, and of a merge in it
    the merge alone. Either is a tag, a commit, or its first digits (7 to 40). Raises SourceError."""

    def listed(repository: GitRepository) -> tuple[str, ...]:
        ends = [_commit(repository, name) for name in (old, new)]
        line = run_checked(repository, ["rev-list", "--reverse", "--first-parent", f"{ends[0]}..{ends[1]}"])
        return tuple(commit for commit in line.text.split() if commit not in ends)

    return mirror_access.with_mirror(mirrors, url, listed, notify)


def commit_of(mirrors: Path, url: str, name: str, notify: Notify = discard) -> str:
    """The commit (40 hex digits) of a tag, or with these first digits. Raises SourceError."""
    return mirror_access.with_mirror(mirrors, url, lambda repository: _commit(repository, name), notify)


def _commit(repository: GitRepository, name: str) -> str:
    if remote_refs.is_commit(name):
        mirror.ensure_commit(repository, name)
        return name
    if not _DIGITS.fullmatch(name):
        commit = remote_refs.commit_of(repository, remote_refs.list_refs(repository), f"refs/tags/{name}")
        mirror.ensure_commit(repository, commit)
        return commit
    if not (whole := _known(repository, name)):
        refs = remote_refs.list_refs(repository)
        mirror.ensure_commit(repository, remote_refs.commit_of(repository, refs, "HEAD"))
        whole = _known(repository, name)
    if not whole:
        raise SourceError(f"{repository.address.url} has no commit that begins with {name} on its main line")
    mirror.ensure_commit(repository, whole)
    return whole


def _known(repository: GitRepository, digits: str) -> str:
    """The commit of the mirror with these first digits; empty where there is none, or several."""
    result = run_local(repository, ["rev-parse", "--quiet", "--verify", f"{digits}^{{commit}}"])
    return "" if result.status else result.text
