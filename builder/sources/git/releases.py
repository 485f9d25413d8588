"""The releases of a repository: its tags that are versions, and the newest of them that has been out for some days.

What is wrong with a release shows in its first days: the next patch release follows, or an issue that many have.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from builder.errors import SourceError
from builder.sources.git import mirror, mirror_access, remote_refs
from builder.sources.git.git_command import GitRepository, Notify, discard, run_checked

if TYPE_CHECKING:
    from pathlib import Path

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


def choose(mirrors: Path, url: str, days: int, now: datetime, notify: Notify = discard) -> ReleaseChoice:
    """Returns the release of the highest version that is at least ``days`` old; candidates and other pre-releases are
    none. Raises SourceError if there is none."""
    releases = mirror_access.with_mirror(mirrors, url, _releases, notify)
    oldest = now - timedelta(days=days)
    too_young: list[Release] = []
    for release in releases:
        if release.since <= oldest:
            return ReleaseChoice(release, tuple(too_young))
        too_young.append(release)
    address = mirror_access.locate(mirrors, url).address.url
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

    mirror.update_tags(repository, remote_refs.list_refs(repository).tags)
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
