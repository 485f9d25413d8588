"""Do patches apply to a pinned commit, one after the other? Found out before anything is built.

git applies them to an index of their own: no file of the source is checked out, and only the contents of those that the
patches touch are fetched.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder.errors import SourceError
from builder.sources.git import apply, mirror, mirror_access
from builder.sources.git.git_command import Place, Say, must, read, silent

if TYPE_CHECKING:
    from collections.abc import Sequence

_APPLY = ["apply", "--cached", "--whitespace=nowarn"]


@dataclass(frozen=True)
class _Trial:
    """A commit to try patches on. ``folder`` takes the indexes and the new contents: the mirror stays as it is."""

    place: Place
    commit: str
    folder: Path


def check(mirrors: Path, url: str, commit: str, patches: Sequence[tuple[str, bytes]], say: Say = silent) -> None:
    """Raises SourceError where one of ``patches`` does not apply to ``commit``, is in it already, or conflicts with one
    before it; all problems are in it, each with file and hunk. A patch is what messages call it (``pull request
    40898``) and a diff for ``-p1``."""
    if patches:
        mirror_access.using(mirrors, url, lambda place: _check(place, commit, patches), say)


def _check(place: Place, commit: str, patches: Sequence[tuple[str, bytes]]) -> None:
    import tempfile

    mirror.keep(place, commit)
    _bring(place, commit, patches)
    problems: list[str] = []
    applied: list[tuple[str, bytes]] = []
    with tempfile.TemporaryDirectory(prefix="builder-") as folder:
        trial = _Trial(place, commit, Path(folder))
        for name, diff in patches:
            problem = _alone(trial, name, diff) or _after(trial, applied, name, diff)
            if problem:
                problems.append(problem)
            else:
                applied.append((name, diff))
    if problems:
        hint = "in `pulls:` of image.yaml, drop what is in already, and of two that conflict, one"
        raise SourceError("\n".join(problems), hint=hint)


def _alone(trial: _Trial, name: str, diff: bytes) -> str:
    """What is wrong with a patch on the commit as it is, or nothing."""
    said = _refusal(trial, [], diff)
    if not said:
        return ""
    if not _refusal(trial, [], diff, "--reverse"):
        return f"{name} is already in {trial.commit[:7]}: drop it"
    return f"{name} does not apply to {trial.commit[:7]}: {apply.failures(said, diff)}"


def _after(trial: _Trial, applied: Sequence[tuple[str, bytes]], name: str, diff: bytes) -> str:
    """What is wrong with a patch that applies alone, after those before it, or nothing."""
    said = _refusal(trial, [earlier for _, earlier in applied], diff)
    if not said:
        return ""
    for other, earlier in applied:
        refusal = _refusal(trial, [earlier], diff)
        if refusal and not _refusal(trial, [earlier], diff, "--reverse"):
            return f"{name} is already in {other}: drop it"
        if refusal and not _refusal(trial, [diff], earlier, "--reverse"):
            return f"{other} is already in {name}: drop it"
        if refusal:
            return f"{other} and {name} conflict: {apply.failures(refusal, diff)}"
    return f"{name} does not apply after {', '.join(other for other, _ in applied)}: {apply.failures(said, diff)}"


def _refusal(trial: _Trial, before: Sequence[bytes], diff: bytes, *options: str) -> str:
    """What git says against ``diff`` after the patches ``before``, which apply; nothing where it applies."""
    objects = trial.folder / "objects"
    objects.mkdir(exist_ok=True)
    environ = {
        "GIT_INDEX_FILE": str(trial.folder / "index"),
        "GIT_OBJECT_DIRECTORY": str(objects),
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": f'"{trial.place.path / "objects"}"',  # quoted: a path may hold a colon
    }
    must(trial.place, ["read-tree", trial.commit], environ=environ)
    for earlier in before:
        must(trial.place, _APPLY, earlier, environ=environ)
    answer = read(trial.place, [*_APPLY, "--check", *options], diff, environ=environ)
    return (answer.said or "git said nothing") if answer.status else ""


def _bring(place: Place, commit: str, patches: Sequence[tuple[str, bytes]]) -> None:
    """Fetches the contents of the files that the patches change, all at once."""
    files = {file for name, diff in patches for file in apply.touched(name, diff)}
    mirror.bring(place, mirror.blobs(place, commit, files).values())
