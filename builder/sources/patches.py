"""Patches are tried with git before they are applied to anything."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from builder.base import words
from builder.base.errors import SourceError
from builder.base.values import dataclass, replace
from builder.sources import git
from builder.sources.git import GitRepository, GitResult, printable, run_checked, run_local, shorten

# These options fix everything that a setting, an attribute or another version of git could change. Full object names,
# because how far git shortens them depends on the number of objects in the repository. No renames: detecting them
# depends on limits, and patch(1) does not know them.
DIFF = ["diff-tree", "-r", "-p", "--full-index", "--binary", "--no-renames", "--no-color", "--no-ext-diff"]
DIFF += ["--no-textconv", "--src-prefix=a/", "--dst-prefix=b/", "--diff-algorithm=myers", "--indent-heuristic"]
DIFF += ["--unified=3", "--inter-hunk-context=0", "--submodule=short", "--ignore-submodules=none"]

_HUNK = re.compile(r"@@ -(?P<start>[0-9]{1,9})(?:,(?P<old>[0-9]{1,9}))? \+[0-9]+(?:,(?P<new>[0-9]{1,9}))? @@.*")


@dataclass(frozen=True)
class Hunk:
    """A hunk: the file's name before the change, its first line there (from 1), and its header."""

    file: str
    start: int
    header: str


def diff_hunks(diff: bytes, strip: int = 1) -> tuple[Hunk, ...]:
    """Returns all hunks of ``diff``, in order; ``strip`` leading folders are removed from the names. Their bodies are
    skipped by line count, because a removed line may look like a header (``--- a/x`` for ``-- a/x``)."""
    parsed: list[Hunk] = []
    lines = iter(diff.decode("utf-8", "replace").split("\n"))
    old_name = new_name = ""
    for line in lines:
        header = _HUNK.fullmatch(line.rstrip("\r"))
        if line.startswith("--- "):
            old_name = _name(line, strip)
        elif line.startswith("+++ "):
            new_name = _name(line, strip)
        elif header:
            file = new_name if old_name == "/dev/null" else old_name
            parsed.append(Hunk(file, int(header["start"]), line.rstrip("\r")))
            _skip_body(lines, int(header["old"] or 1), int(header["new"] or 1))
    return tuple(parsed)


def describe_hunk(diff: bytes, file: str, start: int, strip: int = 1) -> str:
    """Describes the hunk of ``file`` that starts at line ``start``: ``FILE, hunk 2 of 3 (@@ -12,7 +12,9 @@ x)``."""
    of_file = [hunk for hunk in diff_hunks(diff, strip) if hunk.file == file]
    for number, hunk in enumerate(of_file, start=1):
        if hunk.start == start:
            return f"{file}, hunk {number} of {len(of_file)} ({hunk.header})"
    return f"{file}, line {start}"


def _skip_body(lines: Iterator[str], old: int, new: int) -> None:
    while old > 0 or new > 0:
        line = next(lines, None)
        if line is None:
            return
        if not line.startswith("\\"):  # `\ No newline at end of file` is not counted
            old -= not line.startswith("+")
            new -= not line.startswith("-")


def _name(line: str, strip: int) -> str:
    """Returns the file that a ``---`` or ``+++`` line names, without its first folders, as ``patch -pN`` does."""
    name = line[4:].rstrip("\r").partition("\t")[0]
    return name if name == "/dev/null" else "/".join(name.split("/")[strip:])


# Runs git outside any repository. Its messages stay English (GitPython sets the locale).
NO_REPOSITORY = GitRepository(Path("/no-repository"), git.Address(""))

_FAILED = re.compile(r"error: patch failed: (?P<file>.+):(?P<line>[0-9]+)")
_OTHERWISE = re.compile(
    r"error: (?P<file>.+): "
    r"(?P<why>does not exist|already exists|wrong type|No such file or directory)(?: in (?:index|working directory))?"
)
_OFFSET = re.compile(r"Hunk #\d+ succeeded at (?P<line>\d+) \(offset (?P<lines>-?\d+) lines?\)\.")
_REDUCED = re.compile(r"Context reduced to \((?P<before>\d+)/(?P<after>\d+)\) to apply fragment at (?P<line>\d+)")
_MOVED_FROM = re.compile(rb"^(?:rename|copy) from (.+)$", re.MULTILINE)


def touched_files(name: str, patch: bytes, strip: int = 1) -> frozenset[str]:
    """Returns the files that ``patch`` changes, adds or removes, and the sources of its renames and copies. ``name`` is
    its name in messages. Raises SourceError if it is not a patch."""
    listed = run_local(NO_REPOSITORY, ["apply", "--numstat", "-z", f"-p{strip}"], patch)
    if listed.status:
        message = f"{name} is not a patch that git can read: {shorten(listed.stderr)}"
        hint = "the file was edited by hand or truncated: create the patch again"
        if "leading pathname component" in listed.stderr:
            hint = "its file names lack a/ and b/: create it again with `git diff --src-prefix=a/ --dst-prefix=b/`"
        raise SourceError(message, hint=hint)
    entries = listed.output.decode("utf-8", "replace").split("\0")
    changed = {entry.split("\t", 2)[2] for entry in entries if entry}
    # File names without a/ and b/.
    origins = (origin.decode("utf-8", "replace").split("/") for origin in _MOVED_FROM.findall(patch))
    return frozenset(changed | {"/".join(origin[max(strip - 1, 0) :]) for origin in origins})


# A line that declares a link or a submodule. No line of a hunk begins like this.
_NO_FILE = re.compile(rb"^(?:[a-z ]+ mode|index [0-9a-f]+\.\.[0-9a-f]+) 1[26]0000\r?$", re.MULTILINE)


def refuse_hostile(name: str, patch: bytes, strip: int) -> None:
    """Raises SourceError if an untrusted patch changes files outside the source, or creates links or submodules, which
    a later patch could use for that."""
    named = {hunk.file for hunk in diff_hunks(patch, strip=0)} | touched_files(name, patch, strip)
    outside = [file for file in sorted(named) if file.startswith("/") or {"..", ".git"} & {*file.lower().split("/")}]
    if outside:
        message = f"{name} changes a file outside the source tree: {printable(outside[0])}"
        raise SourceError(message, hint="do not use this patch")
    if _NO_FILE.search(patch):
        raise SourceError(
            f"{name} creates a link or a submodule", hint="remove that from the patch: patches can change only files"
        )


def failures(stderr: str, patch: bytes, strip: int = 1) -> str:
    """Describes the files and hunks of ``patch`` that do not apply, from git's error output."""
    messages: list[str] = []
    for line in stderr.splitlines():
        failed, otherwise = _FAILED.fullmatch(line), _OTHERWISE.fullmatch(line)
        if failed:
            messages.append(describe_hunk(patch, failed["file"], int(failed["line"]), strip))
        elif otherwise:
            reason = otherwise["why"].replace("No such file or directory", "does not exist")
            messages.append(f"{otherwise['file']} {reason}")
    return printable("; ".join(messages)) or shorten(stderr)


def _moved_hunks(stderr: str) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Reads the output of ``git apply -v``: the line offsets of hunks, and the hunks that apply with reduced
    context."""
    offsets: list[int] = []
    reduced: list[str] = []
    file = last = ""
    for line in stderr.splitlines():
        if checking := re.fullmatch(r"Checking patch (?P<file>.+)\.\.\.", line):
            file, last = checking["file"].split(" => ")[-1], ""
        elif offset := _OFFSET.fullmatch(line):
            offsets.append(int(offset["lines"]))
            last = offset["line"]
        elif match := _REDUCED.fullmatch(line):
            if last == match["line"]:  # git counts the offset of this hunk after it reduced the context
                offsets.pop()
            lines = words.counted(int(match["before"]), "line")
            reduced.append(f"{file}: at line {match['line']}, {lines} before and {match['after']} after match")
    return tuple(offsets), tuple(reduced)


# A dry run applies patches to a package with git, in a folder that contains only the touched files. The rule is the
# same as in the build step (`builder.definitions.mod.ModPatch`): a patch applies with its full context, is already
# applied, applies with reduced context, or fails.


ReadFiles = Callable[[Collection[str]], dict[str, bytes]]
"""Returns the contents of the given paths that exist; raises SourceError."""


@dataclass(frozen=True)
class CandidatePatch:
    """A unified diff to try, the number of folders to ``strip`` from its file names, and its name in messages.
    ``put_before`` are files, by path, that are copied before the patch is applied."""

    name: str
    diff: bytes
    strip: int = 1
    put_before: tuple[tuple[str, bytes], ...] = ()

    @functools.cached_property
    def touched_files(self) -> frozenset[str]:
        """The files that the patch changes, adds or removes; empty if git cannot read it."""
        try:
            return touched_files(self.name, self.diff, self.strip)
        except SourceError:
            return frozenset()


@dataclass(frozen=True)
class PackageFiles:
    """The files of the importable ``package`` in site-packages, before any mod. ``prior`` are the patches of its
    source, which are known to apply."""

    package: str
    read: ReadFiles
    prior: tuple[CandidatePatch, ...] = ()


@dataclass(frozen=True)
class PatchOutcome:
    """The outcome of one patch. ``offsets`` are the line offsets of hunks; ``reduced`` are the hunks that apply with
    reduced context. ``problem`` names the file and the hunk that does not apply, or the reason why the patch was not
    tried."""

    state: Literal["applies", "in place", "fails", "not tried"]
    offsets: tuple[int, ...] = ()
    reduced: tuple[str, ...] = ()
    problem: str = ""


def prefetched(package_files: PackageFiles, patches: Iterable[CandidatePatch]) -> PackageFiles:
    """Returns the same package with all files that ``patches`` touch fetched at once. Raises SourceError."""
    inside = f"{package_files.package}/"
    touched = {file for patch in patches for file in patch.touched_files if file.startswith(inside)}
    contents = package_files.read(touched) if touched else {}
    return replace(package_files, read=lambda paths: {path: contents[path] for path in paths if path in contents})


def dry_run(package_files: PackageFiles, patches: Sequence[CandidatePatch]) -> tuple[PatchOutcome, ...]:
    """Tries ``patches`` in order, each after the earlier patches that apply. Raises SourceError for the package."""
    import tempfile

    touched = {file for patch in patches for file in patch.touched_files}
    files = prefetched(package_files, patches).read(touched)
    with tempfile.TemporaryDirectory(prefix="builder-") as name:
        folder = Path(name)
        for path, content in files.items():
            _put(folder, path, content)
        for patch in package_files.prior if touched else ():
            result = _git_apply(folder, patch, *(f"--include={file}" for file in sorted(touched)))
            if result.status:
                where = failures(result.stderr, patch.diff, patch.strip)
                raise SourceError(f"{patch.name} does not apply to its source: {where}")
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


def _outcome(folder: Path, patch: CandidatePatch) -> PatchOutcome:
    result = _git_apply(folder, patch)
    if result.status and not _git_apply(folder, patch, "--reverse", "--check").status:
        return PatchOutcome("in place")
    if result.status:
        result = _git_apply(folder, patch, "-C1")
    if result.status:
        return PatchOutcome("fails", problem=failures(result.stderr, patch.diff, patch.strip))
    return PatchOutcome("applies", *_moved_hunks(result.stderr))


def _git_apply(folder: Path, patch: CandidatePatch, *options: str) -> GitResult:
    repository = GitRepository(folder / "no-repository", NO_REPOSITORY.address)
    return run_local(repository, ["apply", "-v", "--whitespace=nowarn", f"-p{patch.strip}", *options], patch.diff)


# A temporary index on top of a mirror, in which trees and patches are tried. The mirror is unchanged.


@dataclass(frozen=True)
class ScratchIndex:
    """The index in ``folder``, which also gets new objects."""

    repository: GitRepository
    folder: Path

    @property
    def environ(self) -> Mapping[str, str]:
        return {
            "GIT_INDEX_FILE": str(self.folder / "index"),
            "GIT_OBJECT_DIRECTORY": str(self.folder / "objects"),
            # In quotes: a path may hold a colon.
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": f'"{self.repository.path / "objects"}"',
        }

    def git(self, arguments: Sequence[str], stdin: bytes = b"") -> GitResult:
        return run_local(self.repository, arguments, stdin, environ=self.environ)

    def checked(self, arguments: Sequence[str], stdin: bytes = b"") -> GitResult:
        return run_checked(self.repository, arguments, stdin, environ=self.environ)

    def read(self, tree: str) -> None:
        self.checked(["read-tree", tree])

    def apply_error(self, diff: bytes, *options: str) -> str:
        """Applies ``diff`` to the index; returns git's error, empty if it applies."""
        result = self.git(["apply", "--cached", "--whitespace=nowarn", *options], diff)
        return (result.stderr or "git gave no reason") if result.status else ""

    def tree(self) -> str:
        """Writes the index as a tree; returns its object name."""
        return self.checked(["write-tree", "--missing-ok"]).text  # most contents were never fetched


@contextlib.contextmanager
def opened(repository: GitRepository) -> Iterator[ScratchIndex]:
    """An empty index, which is removed at the end of the block."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="builder-") as name:
        folder = Path(name)
        (folder / "objects").mkdir()
        yield ScratchIndex(repository, folder)
