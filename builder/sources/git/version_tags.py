"""The versions of a repository, told from its tags alone: nothing of it is fetched."""

from __future__ import annotations

import tempfile
from pathlib import Path

from builder.sources.git import credentials, mirror_creation, remote_refs
from builder.sources.git.git_command import GitRepository


def newest(url: str) -> str:
    """The tag of the highest version that the repository at ``url`` has, candidates left out; empty where no tag of it
    is a version. Raises SourceError where it cannot be asked."""
    from packaging.version import InvalidVersion, Version

    with tempfile.TemporaryDirectory(prefix="builder-") as folder:
        repository = GitRepository(Path(folder, "empty.git"), credentials.split(url))
        mirror_creation.ensure(repository)
        tags = remote_refs.list_refs(repository).tags
    versions: list[tuple[Version, str]] = []
    for tag in tags:
        try:
            version = Version(tag)
        except InvalidVersion:
            continue
        if not version.is_prerelease:
            versions.append((version, tag))
    return max(versions)[1] if versions else ""
