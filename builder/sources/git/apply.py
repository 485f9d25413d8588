"""Results of ``git apply``: the files that a patch changes, the hunks that fail, and the hunks that apply elsewhere."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from builder.errors import SourceError
from builder.sources.git import credentials, unified_diff
from builder.sources.git.errors import printable, shorten
from builder.sources.git.git_command import GitRepository, run_local

# Runs git outside any repository. Its messages stay English (GitPython sets the locale).
NO_REPOSITORY = GitRepository(Path("/no-repository"), credentials.Address(""))

_FAILED = re.compile(r"error: patch failed: (?P<file>.+):(?P<line>[0-9]+)")
_OTHERWISE = re.compile(
    r"error: (?P<file>.+): "
    r"(?P<why>does not exist|already exists|wrong type|No such file or directory)(?: in (?:index|working directory))?"
)
_CHECKING = re.compile(r"Checking patch (?P<file>.+)\.\.\.")
_OFFSET = re.compile(r"Hunk #(?P<number>\d+) succeeded at (?P<line>\d+) \(offset (?P<lines>-?\d+) lines?\)\.")
_REDUCED = re.compile(r"Context reduced to \((?P<before>\d+)/(?P<after>\d+)\) to apply fragment at (?P<line>\d+)")
_MOVED_FROM = re.compile(rb"^(?:rename|copy) from (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Shift:
    """A hunk that does not apply exactly where it says: number ``hunk`` of the ``hunks`` for ``file``, found at
    ``line``. ``offset`` is how many lines further down that is; ``context`` how many lines before and after it match,
    if not all of them do."""

    file: str
    hunk: int
    hunks: int
    line: int
    offset: int
    context: tuple[int, int] | None = None

    def __str__(self) -> str:
        name = f"{self.file}, hunk {self.hunk} of {self.hunks}" if self.hunk else self.file
        if self.context is None:
            return f"{name}: {_distance(self.offset)}"
        before, after = self.context
        return f"{name}: at line {self.line}, where {_lines(before)} before and {after} after fit"


def touched_files(name: str, patch: bytes, strip: int = 1) -> frozenset[str]:
    """Returns the files that ``patch`` changes, adds or removes, and those that it renames or copies others from.
    ``name`` is what messages call it. Raises SourceError if it is not a patch."""
    listed = run_local(NO_REPOSITORY, ["apply", "--numstat", "-z", f"-p{strip}"], patch)
    if listed.status:
        message = f"{name} is no patch that git can read: {shorten(listed.stderr)}"
        raise SourceError(message, hint="its file was changed by hand, or cut off: make the patch anew")
    entries = listed.output.decode("utf-8", "replace").split("\0")
    sources = (source.decode("utf-8", "replace") for source in _MOVED_FROM.findall(patch))
    return frozenset(
        [
            *(entry.split("\t", 2)[2] for entry in entries if entry),
            *("/".join(source.split("/")[max(strip - 1, 0) :]) for source in sources),  # written without a/ and b/
        ]
    )


def failures(stderr: str, patch: bytes, strip: int = 1) -> str:
    """Describes where ``patch`` does not apply, by file and hunk, from git's error output."""
    messages: list[str] = []
    for line in stderr.splitlines():
        failed, otherwise = _FAILED.fullmatch(line), _OTHERWISE.fullmatch(line)
        if failed:
            messages.append(unified_diff.describe_hunk(patch, failed["file"], int(failed["line"]), strip))
        elif otherwise:
            reason = otherwise["why"].replace("No such file or directory", "does not exist")
            messages.append(f"{otherwise['file']} {reason}")
    return printable("; ".join(messages)) or shorten(stderr)


def shifts(stderr: str, patch: bytes, strip: int = 1) -> tuple[Shift, ...]:
    """Returns the hunks that apply elsewhere, or with only part of their context, from ``git apply -v``'s output."""
    hunk_shifts: list[Shift] = []
    file, hunks = "", list[unified_diff.Hunk]()
    for line in stderr.splitlines():
        if checking := _CHECKING.fullmatch(line):
            names = checking["file"].split(" => ")
            file, hunks = names[-1], [hunk for hunk in unified_diff.hunks(patch, strip) if hunk.file in names]
        elif offset := _OFFSET.fullmatch(line):
            hunk_shifts.append(
                Shift(file, int(offset["number"]), len(hunks), int(offset["line"]), int(offset["lines"]))
            )
        elif reduced := _REDUCED.fullmatch(line):
            start, context = int(reduced["line"]), (int(reduced["before"]), int(reduced["after"]))
            number = next((number for number, hunk in enumerate(hunks, start=1) if hunk.new_start == start), 0)
            if hunk_shifts and (hunk_shifts[-1].file, hunk_shifts[-1].line) == (file, start):
                # git counts this offset from where it reduced the context, which is not the distance a reader expects.
                number = hunk_shifts.pop().hunk
            hunk_shifts.append(Shift(file, number, len(hunks), start, 0, context))
    return tuple(hunk_shifts)


def _distance(offset: int) -> str:
    return f"{_lines(abs(offset))} further {'down' if offset > 0 else 'up'}"


def _lines(count: int) -> str:
    return f"{count} line{'' if count == 1 else 's'}"
