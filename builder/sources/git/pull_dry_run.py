"""Dry-run apply of pull requests to a pinned commit, one after the other, before anything is built.

git applies them to a temporary index: no file of the source is checked out, and only the files that the patches touch
are fetched.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder.errors import SourceError
from builder.sources.git import apply, mirror, mirror_access
from builder.sources.git.git_command import GitRepository, Notify, discard, run_checked, run_local

if TYPE_CHECKING:
    from collections.abc import Sequence

_APPLY = ["apply", "--cached", "--whitespace=nowarn"]


@dataclass(frozen=True)
class _DryRun:
    """A commit to try patches on. Index and new contents go into ``folder``, so that the mirror stays as it is."""

    repository: GitRepository
    commit: str
    folder: Path


def check(mirrors: Path, url: str, commit: str, patches: Sequence[tuple[str, bytes]], notify: Notify = discard) -> None:
    """Raises SourceError if one of ``patches`` does not apply to ``commit``, is in it already, or conflicts with one
    before it; the error lists all problems, each with file and hunk. A patch is the name that messages use (``pull
    request 40898``) and a diff for ``-p1``."""
    if patches:
        mirror_access.with_mirror(mirrors, url, lambda repository: _check(repository, commit, patches), notify)


def _check(repository: GitRepository, commit: str, patches: Sequence[tuple[str, bytes]]) -> None:
    import tempfile

    mirror.ensure_commit(repository, commit)
    _fetch_touched_files(repository, commit, patches)
    problems: list[str] = []
    applied: list[tuple[str, bytes]] = []
    with tempfile.TemporaryDirectory(prefix="builder-") as folder:
        dry_run = _DryRun(repository, commit, Path(folder))
        for name, diff in patches:
            problem = _problem_alone(dry_run, name, diff) or _problem_after(dry_run, applied, name, diff)
            if problem:
                problems.append(problem)
            else:
                applied.append((name, diff))
    if problems:
        hint = "in `pulls:` of image.yaml, drop what is in already, and of two that conflict, one"
        raise SourceError("\n".join(problems), hint=hint)


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
    objects = dry_run.folder / "objects"
    objects.mkdir(exist_ok=True)
    environ = {
        "GIT_INDEX_FILE": str(dry_run.folder / "index"),
        "GIT_OBJECT_DIRECTORY": str(objects),
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": f'"{dry_run.repository.path / "objects"}"',  # a path may hold a colon
    }
    run_checked(dry_run.repository, ["read-tree", dry_run.commit], environ=environ)
    for earlier in before:
        run_checked(dry_run.repository, _APPLY, earlier, environ=environ)
    result = run_local(dry_run.repository, [*_APPLY, "--check", *options], diff, environ=environ)
    return (result.stderr or "git said nothing") if result.status else ""


def _fetch_touched_files(repository: GitRepository, commit: str, patches: Sequence[tuple[str, bytes]]) -> None:
    """Fetches the contents of the files that the patches touch, all at once."""
    files = {file for name, diff in patches for file in apply.touched_files(name, diff)}
    mirror.ensure_blobs(repository, mirror.blob_names(repository, commit, files).values())
