"""Dry-run apply of patches to a package, with git, on the few files that they touch in an otherwise empty folder.

The rule is that of the step which bakes a patch (``builder.definitions.mods.mod.ModPatch``): it applies with all of its
context, or is in place already, or applies with part of its context, or fails.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from builder.errors import SourceError
from builder.sources.git import apply
from builder.sources.git.git_command import GitRepository, GitResult, run_local

if TYPE_CHECKING:
    from builder.sources.git.apply import Shift

_APPLY = ["apply", "-v", "--whitespace=nowarn"]

ReadFiles = Callable[[Collection[str]], dict[str, bytes]]
"""Returns the contents of those of the given paths that exist; raises SourceError."""


@dataclass(frozen=True)
class CandidatePatch:
    """A unified diff to try, how many folders to ``strip`` from its file names, and the name that messages use.
    ``put_before`` are files, by path, that something else puts in place before it is applied."""

    name: str
    diff: bytes
    strip: int = 1
    put_before: tuple[tuple[str, bytes], ...] = ()

    @functools.cached_property
    def touched_files(self) -> frozenset[str]:
        """The files that it changes, adds or removes; none if git cannot read it as a patch."""
        try:
            return apply.touched_files(self.name, self.diff, self.strip)
        except SourceError:
            return frozenset()


@dataclass(frozen=True)
class PackageFiles:
    """The files of the importable ``package`` as they are in site-packages before any mod. ``prior`` are the patches
    that its source is built with, which are known to apply."""

    package: str
    read: ReadFiles
    prior: tuple[CandidatePatch, ...] = ()


@dataclass(frozen=True)
class PatchOutcome:
    """The outcome of one patch. ``shifts`` are the hunks that apply, but not exactly where they say; ``problem`` says
    by file and hunk what does not apply, or why the patch was not tried."""

    state: Literal["applies", "in place", "fails", "not tried"]
    shifts: tuple[Shift, ...] = ()
    problem: str = ""


def prefetched(package_files: PackageFiles, patches: Iterable[CandidatePatch]) -> PackageFiles:
    """Returns the same package with all files that ``patches`` touch fetched at once. Raises SourceError."""
    inside = f"{package_files.package}/"
    touched = {file for patch in patches for file in patch.touched_files if file.startswith(inside)}
    contents = package_files.read(touched) if touched else {}
    return replace(package_files, read=lambda paths: {path: contents[path] for path in paths if path in contents})


def dry_run(package_files: PackageFiles, patches: Sequence[CandidatePatch]) -> tuple[PatchOutcome, ...]:
    """Tries ``patches`` in order, each after those before it that apply. Raises SourceError if the package cannot be
    read."""
    import tempfile

    touched = {file for patch in patches for file in patch.touched_files}
    files = prefetched(package_files, patches).read(touched)
    with tempfile.TemporaryDirectory(prefix="builder-") as name:
        folder = Path(name)
        for path, content in files.items():
            _put(folder, path, content)
        for patch in package_files.prior if touched else ():
            _apply_prior(folder, patch, [f"--include={file}" for file in sorted(touched)])
        outcomes = []
        for patch in patches:
            for path, content in patch.put_before:
                if path in touched:
                    _put(folder, path, content)
            outcomes.append(_outcome(folder, patch))
        return tuple(outcomes)


def _put(folder: Path, path: str, content: bytes) -> None:
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


def _apply_prior(folder: Path, patch: CandidatePatch, only: Sequence[str]) -> None:
    result = _git_apply(folder, patch, *only)
    if result.status:
        where = apply.failures(result.stderr, patch.diff, patch.strip)
        raise SourceError(f"{patch.name} does not apply to its own source: {where}")


def _outcome(folder: Path, patch: CandidatePatch) -> PatchOutcome:
    full_context = _git_apply(folder, patch)
    if not full_context.status:
        return PatchOutcome("applies", apply.shifts(full_context.stderr, patch.diff, patch.strip))
    if not _git_apply(folder, patch, "--reverse", "--check").status:
        return PatchOutcome("in place")
    reduced_context = _git_apply(folder, patch, "-C1")
    if not reduced_context.status:
        return PatchOutcome("applies", apply.shifts(reduced_context.stderr, patch.diff, patch.strip))
    return PatchOutcome("fails", problem=apply.failures(reduced_context.stderr, patch.diff, patch.strip))


def _git_apply(folder: Path, patch: CandidatePatch, *options: str) -> GitResult:
    repository = GitRepository(folder / "no-repository", apply.NO_REPOSITORY.address)
    return run_local(repository, [*_APPLY, f"-p{patch.strip}", *options], patch.diff)
