"""Sources taken from git: a branch, tag or commit becomes one commit, with its version and date, kept in a mirror.

The rest of what a mirror tells is in ``git_reading`` (files, and the commits between two pins) and ``pulls``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from builder.errors import SourceError
from builder.lock.pins import GitPin
from builder.sources import git_refs, git_version, mirror, mirror_use
from builder.sources.git_command import Place, Say, silent

_AT_ONCE = 8


def resolve(mirrors: Path, url: str, ref: str, say: Say = silent) -> GitPin:
    """The pin of ``ref`` in the repository ``url``, without pull requests; its commit is then in the mirror for good.

    ``mirrors`` is the folder that holds the mirrors. A whole commit that is there already takes no network. Raises
    SourceError: no such ref, one that may mean two things, an abbreviated commit, no access, no answer.
    """
    return mirror_use.using(mirrors, url, lambda place: _pin(place, ref), say)


def resolve_all(mirrors: Path, wanted: Sequence[tuple[str, str, str]], say: Say = silent) -> dict[str, GitPin]:
    """The pins of several sources, resolved at the same time: (name, address, ref) each, by name.

    Raises one SourceError that says what went wrong with every one of them. ``say`` is called from other threads.
    """
    from concurrent.futures import ThreadPoolExecutor

    pins: dict[str, GitPin] = {}
    faults: list[tuple[str, SourceError]] = []
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        under_way = [(name, pool.submit(resolve, mirrors, url, ref, say)) for name, url, ref in wanted]
        for name, result in under_way:
            try:
                pins[name] = result.result()
            except SourceError as error:
                faults.append((name, error))
    if faults:
        hints = dict.fromkeys(error.hint for _, error in faults if error.hint)
        raise SourceError("\n".join(f"{name}: {error.message}" for name, error in faults), hint="; ".join(hints))
    return pins


def _pin(place: Place, ref: str) -> GitPin:
    commit = ref.lower()
    if not git_refs.is_commit(commit):
        there = git_refs.upstream(place)
        commit = git_refs.commit_of(place, there, ref)
        mirror.keep(place, commit)
        mirror.update_tags(place, there.tags)
    mirror.keep(place, commit)
    version = git_version.version_of(place, commit)
    return GitPin(place.address.url, ref, commit, version, git_version.date_of(place, commit))
