"""Upstream commits behind sources that moved, from the mirrors of their repositories."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.errors import SourceError
from builder.events import Message, Report

if TYPE_CHECKING:
    from builder.comparing.changes import Changes, SourceChange
    from builder.lock.model import Version
    from builder.project import Project
    from builder.sources.git.mirror_reading import CommitFilter, CommitRange


@dataclass(frozen=True)
class UpstreamCommits:
    """A source that moved, with the commits that it gained and those that it lost (after a force-push, or on the way
    back); ``unknown_reason`` says why they are not known, if so."""

    change: SourceChange
    gained: CommitRange | None = None
    lost: CommitRange | None = None
    unknown_reason: str = ""


def commits_of(
    project: Project, changes: Changes, commit_filter: CommitFilter, report: Report
) -> tuple[UpstreamCommits, ...]:
    """Returns every source that moved, with its commits."""
    return tuple(_commits_of(project, change, commit_filter, report) for change in changes.sources)


def _commits_of(project: Project, change: SourceChange, commit_filter: CommitFilter, report: Report) -> UpstreamCommits:
    """Returns the commits of a change. A repository that does not answer is noted and is no error."""
    reason = _unknown_reason(change)
    if reason:
        return UpstreamCommits(change, unknown_reason=reason)
    from builder.sources.git import mirror_reading

    old, new = _commit(change.before), _commit(change.after)

    def between(start: str, end: str) -> CommitRange:
        return mirror_reading.commits_between(
            project.mirrors, change.git, start, end, commit_filter, lambda text: report(Message(text))
        )

    try:
        gained = between(old, new)
        return UpstreamCommits(change, gained, between(new, old) if gained.dropped else None)
    except SourceError as error:
        return UpstreamCommits(change, unknown_reason=error.message)


def _unknown_reason(change: SourceChange) -> str:
    from builder.sources.git.remote_refs import is_commit

    if change.before is None or change.after is None:
        return "it is in one of the two only"
    if change.before.commit == change.after.commit:
        return "both are of the same commit" if change.before.commit else "neither names its commit"
    if not change.git:
        return "it was not taken from git, so only versions are known"
    if not all(is_commit(_commit(version)) for version in (change.before, change.after)):
        return "a wheel does not name its whole commit, so only versions are known"
    return ""


def _commit(version: Version | None) -> str:
    return (version.commit or "") if version else ""
