"""Dry-run apply of pull requests to a pinned commit, one after the other, before anything is built.

git applies them to a temporary index: no file of the source is checked out, and only the files that the patches touch
are fetched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.errors import SourceError
from builder.sources.git import apply, mirror, mirror_access, scratch_index
from builder.sources.git.git_command import GitRepository, Notify, discard

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from builder.sources.git.scratch_index import ScratchIndex


@dataclass(frozen=True)
class _DryRun:
    """A commit to try patches on, and the index to do it in."""

    index: ScratchIndex
    commit: str


def check(mirrors: Path, url: str, commit: str, patches: Sequence[tuple[str, bytes]], notify: Notify = discard) -> None:
    """Raises SourceError if one of ``patches`` does not apply to ``commit``, is in it already, or conflicts with one
    before it; the error lists all problems, each with file and hunk. A patch is the name that messages use (``pull
    request 40898``) and a diff for ``-p1``."""
    if patches:
        mirror_access.with_mirror(mirrors, url, lambda repository: _check(repository, commit, patches), notify)


def _check(repository: GitRepository, commit: str, patches: Sequence[tuple[str, bytes]]) -> None:
    mirror.ensure_commit(repository, commit)
    fetch_touched_files(repository, commit, patches)
    problems: list[str] = []
    applied: list[tuple[str, bytes]] = []
    with scratch_index.opened(repository) as index:
        dry_run = _DryRun(index, commit)
        for name, diff in patches:
            problem = _problem(dry_run, applied, name, diff)
            if problem:
                problems.append(problem)
            else:
                applied.append((name, diff))
    if problems:
        hint = "in `pulls:` of image.yaml, drop what is in already, and of two that conflict, one"
        raise SourceError("\n".join(problems), hint=hint)


def fetch_touched_files(repository: GitRepository, commit: str, patches: Sequence[tuple[str, bytes]]) -> None:
    """Fetches the contents of the files that the patches touch, all at once."""
    files = {file for name, diff in patches for file in apply.touched_files(name, diff)}
    mirror.ensure_blobs(repository, mirror.blob_names(repository, commit, files).values())


def _problem(dry_run: _DryRun, applied: Sequence[tuple[str, bytes]], name: str, diff: bytes) -> str:
    """Describes the problem of a patch after those before it; empty if it applies. One that was made on top of another
    applies only after that."""
    if not _apply_error(dry_run, [earlier for _, earlier in applied], diff):
        return ""
    return _problem_alone(dry_run, name, diff) or _problem_after(dry_run, applied, name, diff)


def _problem_alone(dry_run: _DryRun, name: str, diff: bytes) -> str:
    """Describes the problem of a patch with the commit as it is; empty if it applies."""
    stderr = _apply_error(dry_run, [], diff)
    if not stderr:
        return ""
    if not _apply_error(dry_run, [], diff, "--reverse"):
        return f"{name} is already in {dry_run.commit[:7]}: drop it"
    return f"{name} does not apply to {dry_run.commit[:7]}: {apply.failures(stderr, diff)}"


def _problem_after(dry_run: _DryRun, applied: Sequence[tuple[str, bytes]], name: str, diff: bytes) -> str:
    """Describes the problem that a patch which applies alone has after those before it; empty if it applies."""
    stderr = _apply_error(dry_run, [earlier for _, earlier in applied], diff)
    if not stderr:
        return ""
    for other, earlier in applied:
        if _apply_error(dry_run, [], earlier):
            continue  # made on top of another, and of no meaning alone
        conflict = _apply_error(dry_run, [earlier], diff)
        if conflict and not _apply_error(dry_run, [earlier], diff, "--reverse"):
            return f"{name} is already in {other}: drop it"
        if conflict and not _apply_error(dry_run, [diff], earlier, "--reverse"):
            return f"{other} is already in {name}: drop it"
        if conflict:
            return f"{other} and {name} conflict: {apply.failures(conflict, diff)}"
    return f"{name} does not apply after {', '.join(other for other, _ in applied)}: {apply.failures(stderr, diff)}"


def _apply_error(dry_run: _DryRun, before: Sequence[bytes], diff: bytes, *options: str) -> str:
    """Returns git's error for ``diff`` after the patches ``before``, which apply; empty if it applies, too."""
    dry_run.index.read(dry_run.commit)
    for earlier in before:
        if error := dry_run.index.apply_error(earlier):
            return error
    return dry_run.index.apply_error(diff, "--check", *options)
