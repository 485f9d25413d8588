"""The versions and releases of a repository, and its commits in order."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from builder.base.errors import SourceError
from builder.base.values import dataclass
from builder.base.words import parse_version
from builder.sources import git, mirror
from builder.sources.git import GitRepository, printable, run_checked, run_local
from builder.sources.mirror import date_of, version_of


@dataclass(frozen=True)
class CommitFacts:
    """A commit: its version (PEP 440), its date (RFC 3339 UTC), and at most 50 of its files."""

    commit: str
    version: str
    date: str
    author: str
    title: str
    files: tuple[str, ...]


@mirror.under_lock
def main_line_between(repository: GitRepository, old: str, new: str, *, inside_merge: bool = False) -> tuple[str, ...]:
    """The commits strictly between two commits on the main line to ``new``, the oldest first. With ``inside_merge``, if
    ``new`` is a merge right after ``old``: the merged commits. Both are a tag, a commit, or the first digits of a
    commit (7 to 40). Raises SourceError."""
    ends = _commit(repository, old), _commit(repository, new)
    line = _between(repository, *ends, "--first-parent")
    return _between(repository, *ends, "--topo-order") if inside_merge and not line else line


def _between(repository: GitRepository, old: str, new: str, order: str) -> tuple[str, ...]:
    line = run_checked(repository, ["rev-list", "--reverse", f"{old}..{new}", order]).text.split()
    return tuple(commit for commit in line if commit not in (old, new))


@mirror.under_lock
def commit_facts(repository: GitRepository, commit: str, *, within: tuple[str, ...] = ()) -> CommitFacts:
    """The facts of a commit. Raises SourceError, also if the history of ``within`` lacks the commit, as for a fork."""
    for each in (commit, *within):
        mirror.ensure_commit(repository, each)
    if within and run_checked(repository, ["rev-list", "--max-count=1", commit, "--not", *within]).text:
        raise SourceError(f"{commit} is not in the history of {' or '.join(within)}")
    author, _, title = run_checked(
        repository, ["log", "--no-walk", "--encoding=UTF-8", "--format=%an%x00%s", commit]
    ).text.partition("\0")
    differing = ["diff-tree", "-r", "--root", "-z", "--name-only", "--no-commit-id", "-m", "--first-parent", commit]
    files = [name for name in run_checked(repository, differing).text.split("\0") if name]
    return CommitFacts(
        commit,
        version_of(repository, commit),
        date_of(repository, commit),
        printable(author),
        printable(title),
        tuple(map(printable, files[:50])),
    )


@mirror.under_lock
def commit_of(repository: GitRepository, name: str) -> str:
    """The commit (40 hex digits) of a tag, or with these first digits. Raises SourceError."""
    return _commit(repository, name)


def _commit(repository: GitRepository, name: str) -> str:
    commit = name
    if not re.fullmatch("[0-9a-f]{7,40}", name):
        commit = mirror.commit_of(repository, mirror.list_refs(repository), f"refs/tags/{name}")
    elif not mirror.is_commit(name) and not (commit := _known(repository, name)):
        mirror.ensure_commit(repository, mirror.commit_of(repository, mirror.list_refs(repository), "HEAD"))
        if not (commit := _known(repository, name)):
            url = repository.address.url
            raise SourceError(f"{url} has no commit that begins with {name} on its main line")
    mirror.ensure_commit(repository, commit)
    return commit


def _known(repository: GitRepository, digits: str) -> str:
    """The commit of the mirror with these first digits; empty if there is none, or several."""
    result = run_local(repository, ["rev-parse", "--quiet", "--verify", f"{digits}^{{commit}}"])
    return "" if result.status else result.text


# The releases of a repository. Problems of a release appear in its first days: in the next patch release, or in issues.

_FORMAT = "--format=%(refname:strip=2):%(creatordate:unix):%(committerdate:unix)%(*committerdate:unix)"


@dataclass(frozen=True)
class Release:
    """A release: its tag, and its publication date."""

    tag: str
    since: datetime


@dataclass(frozen=True)
class ReleaseChoice:
    """The chosen release ``taken``, and the newer releases that are ``too_young``, the newest first."""

    taken: Release
    too_young: tuple[Release, ...]


def choose_release(repository: GitRepository, days: int, now: datetime) -> ReleaseChoice:
    """The highest version that is not a pre-release and is at least ``days`` old. Raises SourceError if there is
    none."""
    releases = _releases(repository)
    oldest = now - timedelta(days=days)
    for count, release in enumerate(releases):
        if release.since <= oldest:
            return ReleaseChoice(release, tuple(releases[:count]))
    address = repository.address.url
    if not releases:
        raise SourceError(f"{address} has no release tag", hint="set `ref` in image.yaml to a branch, tag or commit")
    raise SourceError(
        f"no release of {address} is at least {days} days old; "
        f"the newest are {', '.join(release.tag for release in releases[:3])}",
        hint=f"name a release, such as {releases[0].tag}, instead of `release`, or lower `release_age` in builder.yaml",
    )


@mirror.under_lock
def _releases(repository: GitRepository) -> list[Release]:
    mirror.update_tags(repository, mirror.list_refs(repository).tags)
    releases: dict[str, Release] = {}
    for line in run_checked(repository, ["for-each-ref", _FORMAT, "refs/tags"]).text.splitlines():
        tag, created, committed = line.split(":")  # not in the name of a tag
        # A lightweight tag has only the date of its commit. An annotated tag may be older than its commit.
        seconds = [int(text) for text in (created, committed) if text]
        with suppress(ValueError, OverflowError, OSError):  # no date, or an invalid year
            releases[tag] = Release(tag, datetime.fromtimestamp(max(seconds), UTC))
    return [releases[tag] for tag in _newest_first(releases)]


def _newest_first(tags: Iterable[str]) -> list[str]:
    """The ``tags`` that are versions, without pre-releases, the highest first."""
    versions = [(version, tag) for tag in tags if (version := parse_version(tag)) and not version.is_prerelease]
    return [tag for _, tag in sorted(versions, reverse=True)]


def newest_version_tag(url: str) -> str:
    """The tag of the highest version in the repository at ``url``, without pre-releases; empty if no tag is a version.
    No objects are fetched. Raises SourceError if the repository does not answer."""
    with tempfile.TemporaryDirectory(prefix="builder-") as folder:
        repository = GitRepository(Path(folder, "empty.git"), git.split(url))
        mirror.ensure(repository)
        return next(iter(_newest_first(mirror.list_refs(repository).tags)), "")
