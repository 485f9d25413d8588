"""Resolution of git refs: a branch, tag or commit becomes one commit with its version and date, kept in a mirror.

Other contents of a mirror are read by ``mirror_reading`` (files, commits between two pins) and ``pull_requests``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.errors import SourceError
from builder.lock.pins import GitPin
from builder.sources.git import mirror, mirror_access, remote_refs, source_version
from builder.sources.git.git_command import GitRepository, Notify, discard

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_AT_ONCE = 8


def resolve(mirrors: Path, url: str, ref: str, notify: Notify = discard) -> GitPin:
    """Returns the pin of ``ref`` in the repository ``url``, without pull requests, and keeps its commit in the mirror.

    ``mirrors`` is the folder that holds the mirrors. A full commit that is there already takes no network. Raises
    SourceError for an unknown or ambiguous ref, an abbreviated commit, no access or no answer.
    """
    return mirror_access.with_mirror(mirrors, url, lambda repository: _pin(repository, ref), notify)


def resolve_all(
    mirrors: Path, sources: Sequence[tuple[str, str]], notify: Notify = discard
) -> dict[tuple[str, str], GitPin | SourceError]:
    """Resolves several sources (address, ref) at the same time; returns the pin of each, or the error if there is none.
    ``notify`` is called from other threads."""
    from concurrent.futures import ThreadPoolExecutor

    def resolve_one(source: tuple[str, str]) -> GitPin | SourceError:
        try:
            url, ref = source
            return resolve(mirrors, url, ref, notify)
        except SourceError as error:
            return error

    unique = tuple(dict.fromkeys(sources))
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return dict(zip(unique, pool.map(resolve_one, unique), strict=True))


def _pin(repository: GitRepository, ref: str) -> GitPin:
    commit = ref.lower()
    if not remote_refs.is_commit(commit):
        refs = remote_refs.list_refs(repository)
        commit = remote_refs.commit_of(repository, refs, ref)
        mirror.ensure_commit(repository, commit)
        mirror.update_tags(repository, refs.tags)
    mirror.ensure_commit(repository, commit)
    version = source_version.version_of(repository, commit)
    return GitPin(repository.address.url, ref, commit, version, source_version.date_of(repository, commit))
