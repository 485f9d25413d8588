"""This page finds the versions and releases of a repository, and its commits in order.

The commits between two others come first, then the main line, the releases, and the version tags.
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from builder.base.errors import SourceError
from builder.sources import git, mirror
from builder.sources.git import GitRepository, Notify, discard, printable, run_checked, run_local
from builder.sources.mirror import date_of, version_of

# The commits between two of a repository, in the order in which its main line got them, and what a commit is.

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


def commits_between(mirrors: Path, url: str, old: str, new: str, notify: Notify = discard) -> tuple[str, ...]:
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

    return mirror.with_mirror(mirrors, url, listed, notify)


def commit_facts(
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

    return mirror.with_mirror(mirrors, url, read, notify)


# The main line of a repository between two of its commits, each told by what a wheel of it says.

_DIGITS = re.compile("[0-9a-f]{7,40}")


def main_line_between(mirrors: Path, url: str, old: str, new: str, notify: Notify = discard) -> tuple[str, ...]:
    """The commits strictly between two, the oldest first: those of the line that leads to ``new``, and of a merge in it
    the merge alone. Either is a tag, a commit, or its first digits (7 to 40). Raises SourceError."""

    def listed(repository: GitRepository) -> tuple[str, ...]:
        ends = [_commit(repository, name) for name in (old, new)]
        line = run_checked(repository, ["rev-list", "--reverse", "--first-parent", f"{ends[0]}..{ends[1]}"])
        return tuple(commit for commit in line.text.split() if commit not in ends)

    return mirror.with_mirror(mirrors, url, listed, notify)


def commit_of(mirrors: Path, url: str, name: str, notify: Notify = discard) -> str:
    """The commit (40 hex digits) of a tag, or with these first digits. Raises SourceError."""
    return mirror.with_mirror(mirrors, url, lambda repository: _commit(repository, name), notify)


def _commit(repository: GitRepository, name: str) -> str:
    if mirror.is_commit(name):
        mirror.ensure_commit(repository, name)
        return name
    if not _DIGITS.fullmatch(name):
        commit = mirror.commit_of(repository, mirror.list_refs(repository), f"refs/tags/{name}")
        mirror.ensure_commit(repository, commit)
        return commit
    if not (whole := _known(repository, name)):
        refs = mirror.list_refs(repository)
        mirror.ensure_commit(repository, mirror.commit_of(repository, refs, "HEAD"))
        whole = _known(repository, name)
    if not whole:
        raise SourceError(f"{repository.address.url} has no commit that begins with {name} on its main line")
    mirror.ensure_commit(repository, whole)
    return whole


def _known(repository: GitRepository, digits: str) -> str:
    """The commit of the mirror with these first digits; empty where there is none, or several."""
    result = run_local(repository, ["rev-parse", "--quiet", "--verify", f"{digits}^{{commit}}"])
    return "" if result.status else result.text


# The releases of a repository: its tags that are versions, and the newest of them that has been out for some days.
# What is wrong with a release shows in its first days: the next patch release follows, or an issue that many have.

_FORMAT = "--format=%(refname:strip=2)%09%(creatordate:unix)%09%(committerdate:unix)%(*committerdate:unix)"


@dataclass(frozen=True)
class Release:
    """A release: its tag, and since when it can be had."""

    tag: str
    since: datetime


@dataclass(frozen=True)
class ReleaseChoice:
    """The release that is ``taken``, and the newer ones that are ``too_young``, the newest first."""

    taken: Release
    too_young: tuple[Release, ...]


def choose_release(mirrors: Path, url: str, days: int, now: datetime, notify: Notify = discard) -> ReleaseChoice:
    """Returns the release of the highest version that is at least ``days`` old; candidates and other pre-releases are
    none. Raises SourceError if there is none."""
    releases = mirror.with_mirror(mirrors, url, _releases, notify)
    oldest = now - timedelta(days=days)
    too_young: list[Release] = []
    for release in releases:
        if release.since <= oldest:
            return ReleaseChoice(release, tuple(too_young))
        too_young.append(release)
    address = mirror.locate(mirrors, url).address.url
    if not too_young:
        raise SourceError(f"{address} has no tag that is a release", hint="name the branch, tag or commit to take")
    names = ", ".join(release.tag for release in too_young[:3])
    raise SourceError(
        f"no release of {address} is {days} days old; there is {names}",
        hint=f"name it: `={too_young[0].tag}`, or set `release_age` in builder.yaml",
    )


def _releases(repository: GitRepository) -> tuple[Release, ...]:
    """All releases, the highest version first."""
    from packaging.version import InvalidVersion, Version

    mirror.update_tags(repository, mirror.list_refs(repository).tags)
    releases: list[tuple[Version, Release]] = []
    for line in run_checked(repository, ["for-each-ref", _FORMAT, "refs/tags"]).text.splitlines():
        tag, created, committed = line.split("\t")
        try:
            version = Version(tag)
        except InvalidVersion:
            continue
        # A light tag has no date but its commit's; an annotated one may be older than a commit that it was moved to.
        seconds = [int(text) for text in (created, committed) if text]
        if not version.is_prerelease and seconds:
            releases.append((version, Release(tag, datetime.fromtimestamp(max(seconds), UTC))))
    return tuple(release for _, release in sorted(releases, key=lambda pair: pair[0], reverse=True))


# The versions of a repository, told from its tags alone: nothing of it is fetched.


def newest_version_tag(url: str) -> str:
    """The tag of the highest version that the repository at ``url`` has, candidates left out; empty where no tag of it
    is a version. Raises SourceError where it cannot be asked."""
    from packaging.version import InvalidVersion, Version

    with tempfile.TemporaryDirectory(prefix="builder-") as folder:
        repository = GitRepository(Path(folder, "empty.git"), git.split(url))
        mirror.ensure(repository)
        tags = mirror.list_refs(repository).tags
    versions: list[tuple[Version, str]] = []
    for tag in tags:
        try:
            version = Version(tag)
        except InvalidVersion:
            continue
        if not version.is_prerelease:
            versions.append((version, tag))
    return max(versions)[1] if versions else ""
