"""A pull request merged into the pinned commit: three-way, file by file, with the commit that the request stands on as
their common ancestor.

Only the files of the request are looked at: no other contents are fetched. What both sides changed is merged by ``git
merge-file``, which gives the same bytes in every version of git and obeys no setting.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from builder.errors import SourceError
from builder.sources.git import apply, mirror, pull_dry_run, pull_history
from builder.sources.git.pull_history import OwnCommits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builder.sources.git.scratch_index import ScratchIndex

_FILES = frozenset({"100644", "100755"})
_MARKER = 41  # characters, so that no text of a source is taken for a mark
_MOST_CONFLICTS = 127  # as a status of merge-file; a greater one is an error
_NOTHING = "0" * 40


@dataclass(frozen=True)
class EarlierPatch:
    """The vendored patch of a pull request that goes in before another one, and its head commit."""

    name: str
    diff: bytes
    head: str


class MergeConflictError(SourceError):
    """A pull request that cannot be merged; the message names every file."""


@dataclass(frozen=True)
class Merged:
    """A request merged into what is there: the two trees, and the files that hold changes of both sides (``merged``) or
    were there as the request has them (``present``)."""

    before: str
    after: str
    merged: tuple[str, ...]
    present: tuple[str, ...]


_Entry = tuple[str, str]
"""Mode and object of a file in a tree."""

_Change = tuple[_Entry | None, _Entry | None]
"""A file before and after a change; None where there is none."""

_STAYS = ("100644", "")


@dataclass
class _Progress:
    """A merge in progress: the entries that were decided, by path (None for a file that goes), the files that hold
    changes of both sides, and why others cannot be merged."""

    decided: dict[str, _Entry | None] = field(default_factory=dict)
    merged: list[str] = field(default_factory=list)
    conflicts: dict[str, str] = field(default_factory=dict)


def merge(index: ScratchIndex, name: str, commit: str, earlier: Sequence[EarlierPatch], own: OwnCommits) -> Merged:
    """Merges the request ``name`` into ``commit`` with the ``earlier`` patches (name and diff), which apply to it.

    Raises MergeConflictError with the name of every file in conflict, and with those of the earlier patches that it is
    in conflict with.
    """
    before = _tree(index, commit, earlier)
    progress = _merge_trees(index, commit, before, _since(index, own, earlier))
    if not progress.conflicts:
        after = index.tree()
        differing = pull_history.changed_files(index.repository, before, after, index.environ)
        requested = pull_history.changed_files(index.repository, own.start, own.head)
        merged = tuple(path for path in sorted(progress.merged) if path in differing)
        return Merged(before, after, merged, tuple(path for path in requested if path not in differing))
    reasons = "; ".join(f"{path} {why}" for path, why in sorted(progress.conflicts.items()))
    if not earlier or _merge_trees(index, commit, commit, own).conflicts:
        raise _conflict(f"{name} does not apply to {commit[:7]}: {reasons}")
    prefixes = (earlier[: position + 1] for position in range(len(earlier)))
    other = next(prefix[-1].name for prefix in prefixes if _conflicts_with(index, commit, prefix, own))
    raise _conflict(f"{other} and {name} conflict: {reasons}")


def holder(index: ScratchIndex, commit: str, earlier: Sequence[EarlierPatch], own: OwnCommits) -> str:
    """The first that holds all changes of the request: the commit, or one of the ``earlier`` patches by its name."""
    for position in range(len(earlier)):
        before = _tree(index, commit, earlier[:position])
        progress = _merge_trees(index, commit, before, _since(index, own, earlier[:position]))
        if not progress.conflicts and index.tree() == before:
            return earlier[position - 1].name if position else commit[:7]
    return earlier[-1].name if earlier else commit[:7]


def _conflicts_with(index: ScratchIndex, commit: str, earlier: Sequence[EarlierPatch], own: OwnCommits) -> bool:
    before = _tree(index, commit, earlier)
    return bool(_merge_trees(index, commit, before, _since(index, own, earlier)).conflicts)


def _since(index: ScratchIndex, own: OwnCommits, earlier: Sequence[EarlierPatch]) -> OwnCommits:
    """The commits of the request that no earlier one has: of two requests on one another only the upper one's."""
    start = own.start
    for patch in earlier:
        shared = pull_history.merge_base(index.repository, patch.head, own.head)
        if shared and pull_history.is_ancestor(index.repository, start, shared):
            start = shared
    return OwnCommits(start, own.head)


def _tree(index: ScratchIndex, commit: str, patches: Sequence[EarlierPatch]) -> str:
    """The tree of ``commit`` with ``patches`` on top. Raises MergeConflictError for one that does not apply."""
    pull_dry_run.fetch_touched_files(index.repository, commit, [(patch.name, patch.diff) for patch in patches])
    index.read(commit)
    for patch in patches:
        if error := index.apply_error(patch.diff):
            raise _conflict(f"{patch.name} does not apply to {commit[:7]}: {apply.failures(error, patch.diff)}")
    return index.tree()


def _conflict(reason: str) -> MergeConflictError:
    return MergeConflictError(reason, hint="in `pulls:` of image.yaml, drop it, or of two that conflict, one")


def _merge_trees(index: ScratchIndex, commit: str, before: str, own: OwnCommits) -> _Progress:
    """Merges the request into the tree ``before``, ``commit`` with patches, in the index, as far as it goes."""
    progress = _Progress()
    index.read(before)
    there = _entries(index)
    changes = _changes(index, own)
    sides = [entry for change in changes.values() for entry in change if entry and entry[0] != mirror.SUBMODULE_MODE]
    pinned = mirror.blob_names(index.repository, commit, changes).values()
    mirror.ensure_blobs(index.repository, [*(name for _, name in sides), *pinned])
    renames = _renames(index, own) if any(path in there and head is None for path, (_, head) in changes.items()) else {}
    for path, (start, head) in changes.items():
        now, renamed = there.get(path), renames.get(path, "")
        if now == head:
            continue
        if now == start:
            if head and (obstacle := _obstacle(there, changes, path)):
                progress.conflicts[path] = obstacle
            elif path not in progress.decided:
                progress.decided[path] = head
        elif start and now and (head or (renamed and renamed not in there)):
            target = path if head else renamed
            _merge_contents(index, progress, target, (start, now, head or changes[renamed][1] or start))
            if not head:
                progress.decided[path] = None
        else:
            progress.conflicts[path] = _reason(there, path, start, now)
    entries = "".join(f"0 {_NOTHING}\t{path}\0" for path in progress.decided)
    entries += "".join(f"{entry[0]} {entry[1]}\t{path}\0" for path, entry in progress.decided.items() if entry)
    index.checked(["update-index", "-z", "--index-info"], entries.encode("utf-8", "surrogateescape"))
    return progress


def _obstacle(there: Mapping[str, _Entry], changes: Mapping[str, _Change], path: str) -> str:
    """The reason why a new file cannot be put at ``path``; empty if it can."""
    if any(other.startswith(f"{path}/") for other in there if changes.get(other, (None, _STAYS))[1]):
        return "is a folder there"
    parts = path.split("/")
    parents = ("/".join(parts[:depth]) for depth in range(1, len(parts)))
    files = [parent for parent in parents if parent in there and changes.get(parent, (None, _STAYS))[1]]
    return f"is below {files[0]}, which is a file there" if files else ""


def _reason(there: Mapping[str, _Entry], path: str, start: _Entry | None, now: _Entry | None) -> str:
    """The reason why a file cannot be merged that is missing on one side."""
    if now and start:
        return "is removed by it, and has other contents there"
    if now:
        return "already exists there, with other contents"
    elsewhere = sorted(other for other, entry in there.items() if start and entry[1] == start[1])
    if any(other.startswith(f"{path}/") for other in there):
        return "is a folder there"
    return f"does not exist there{f', where {elsewhere[0]} is the same file' if elsewhere else ''}"


def _merge_contents(index: ScratchIndex, progress: _Progress, path: str, sides: tuple[_Entry, _Entry, _Entry]) -> None:
    """Merges contents and mode of one file into ``progress``; its ``sides`` are where the request started, what is
    there, and what the request makes of it."""
    start, now, head = sides
    if not {mode for mode, _ in sides} <= _FILES:
        progress.conflicts[path] = "is a link, and both change it"
        return
    files = [index.folder / name for name in ("now", "start", "head")]
    for file, (_, name) in zip(files, (now, start, head), strict=True):
        file.write_bytes(index.checked(["cat-file", "blob", name]).output)
    result = index.git(["merge-file", "-p", "-q", f"--marker-size={_MARKER}", *map(str, files)])
    if result.status > _MOST_CONFLICTS:
        progress.conflicts[path] = "is binary, and both change it"
    elif result.status:
        progress.conflicts[path] = _places(result.output)
    else:
        name = index.checked(["hash-object", "-w", "--no-filters", "--stdin"], result.output).text
        progress.decided[path] = (head[0] if start[0] == now[0] else now[0]), name
        progress.merged.append(path)


def _places(merged: bytes) -> str:
    """The lines of the present file at which a merge has conflicts: ``at line 3`` or ``at lines 3, 40``."""
    places: list[str] = []
    line, counts = 1, True
    for text in merged.split(b"\n"):
        if text.startswith(b"<" * _MARKER):
            places.append(str(line))
        elif text.startswith(b"=" * _MARKER):
            counts = False
        elif text.startswith(b">" * _MARKER):
            counts = True
        elif counts:
            line += 1
    return f"at line{'s' if len(places) > 1 else ''} {', '.join(places)}"


def _renames(index: ScratchIndex, own: OwnCommits) -> dict[str, str]:
    """The files that the request renames, with their new names; its files are in the mirror already."""
    detected = index.git(["diff-tree", "-r", "-z", "-M", "--diff-filter=R", "--name-status", own.start, own.head])
    fields = detected.output.decode("utf-8", "surrogateescape").split("\0") if not detected.status else []
    return dict(zip(fields[1::3], fields[2::3], strict=False))


def _changes(index: ScratchIndex, own: OwnCommits) -> dict[str, _Change]:
    """Each file of a request: the entries before and after, None where there is no file."""
    raw = ["diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", own.start, own.head]
    fields = index.checked(raw).output.decode("utf-8", "surrogateescape").split("\0")
    changes: dict[str, _Change] = {}
    for meta, path in zip(fields[::2], fields[1::2], strict=False):
        old_mode, new_mode, old, new, _ = meta.removeprefix(":").split(" ")
        changes[path] = (
            None if old == _NOTHING else (old_mode, old),
            None if new == _NOTHING else (new_mode, new),
        )
    return changes


def _entries(index: ScratchIndex) -> dict[str, _Entry]:
    """All files of the index, by path."""
    listed = index.checked(["ls-files", "--stage", "-z"]).output.decode("utf-8", "surrogateescape")
    pairs = (line.partition("\t") for line in listed.split("\0") if line)
    return {path: (meta.split()[0], meta.split()[1]) for meta, _, path in pairs}
