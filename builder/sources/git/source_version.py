"""The version of a commit, derived from tags as setuptools-scm does when vLLM is built."""

from __future__ import annotations

import re

from builder import timestamp
from builder.sources.git.git_command import GitRepository, run_checked

_LAST_NUMBER = re.compile(r"(.*?)([0-9]+)")
_DESCRIBED = re.compile(r"(?P<tag>.+)-(?P<distance>[0-9]+)-g[0-9a-f]{40}")
_DESCRIBE = ["describe", "--tags", "--long", "--always", "--abbrev=40", "--match=v[0-9]*", "--match=[0-9]*"]
_UNUSABLE_AT_MOST = 20  # tags that look like versions and are none, before giving up


def version_of(repository: GitRepository, commit: str) -> str:
    """Returns the version (PEP 440) of ``commit``, which the mirror has: that of its tag, if any, and otherwise a
    development release of the version after the nearest tag's, with the distance and the commit; ``0.1.dev…`` if
    there is no tag.

    This is setuptools-scm's ``guess-next-dev``, with two exceptions. Tags with a prefix before the version do not
    count, or FlashInfer's nightly tags would win. A tag that is no version is passed over, where setuptools-scm refuses
    the repository. The commit has seven digits, because the number that git chooses depends on the number of
    objects in the repository.
    """
    exclusions: list[str] = []
    for _ in range(_UNUSABLE_AT_MOST):
        described = _DESCRIBED.fullmatch(run_checked(repository, [*_DESCRIBE, *exclusions, commit]).text)
        if not described:
            break
        version = _highest_version(repository, described["tag"])
        if version:
            distance = int(described["distance"])
            return f"{next_version(version)}.dev{distance}+g{commit[:7]}" if distance else version
        exclusions.append(f"--exclude={described['tag']}")
    return f"0.1.dev{run_checked(repository, ['rev-list', '--count', commit]).text}+g{commit[:7]}"


def date_of(repository: GitRepository, commit: str) -> str:
    """Returns the commit date of ``commit``, RFC 3339 in UTC."""
    return rfc3339(int(run_checked(repository, ["log", "--no-walk", "--format=%ct", commit]).text))


def rfc3339(seconds: int) -> str:
    """Formats seconds since 1970 as RFC 3339 in UTC."""
    from datetime import UTC, datetime

    return timestamp.of(datetime.fromtimestamp(seconds, UTC))


def next_version(version: str) -> str:
    """Guesses the version after ``version``: its last number plus one (``0.19.1rc0`` becomes ``0.19.1rc1``); a
    development release becomes the version that it develops."""
    public = version.partition("+")[0]
    release, developing, _ = public.partition(".dev")
    if developing:
        return release
    number = _LAST_NUMBER.fullmatch(public)
    return f"{number[1]}{int(number[2]) + 1}" if number else public


def _highest_version(repository: GitRepository, tag: str) -> str:
    """Returns the highest version among the tags of the commit that has ``tag``, as a release is often its last
    candidate, too; empty if none of them is a version."""
    from packaging.version import InvalidVersion, Version

    commit = run_checked(repository, ["rev-parse", "--verify", f"refs/tags/{tag}^{{commit}}"]).text
    names = run_checked(
        repository, ["for-each-ref", "--format=%(refname:strip=2)", f"--points-at={commit}", "refs/tags"]
    ).text
    versions: list[Version] = []
    for name in names.splitlines():
        try:
            versions.append(Version(name))
        except InvalidVersion:
            continue
    return str(max(versions)) if versions else ""
