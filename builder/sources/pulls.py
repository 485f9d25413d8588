"""A pull request is fetched once and stored as a vendored patch, because its branch may move or be deleted.

No source is checked out: git needs only the files that the request changes."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from builder.base.errors import SourceError
from builder.base.values import dataclass, field, replace
from builder.sources import mirror, patches
from builder.sources.git import SUBMODULE_MODE, GitRepository, MissingError, run_checked, run_local
from builder.sources.patches import ScratchIndex, failures, touched_files

if TYPE_CHECKING:
    from builder.definitions.source_patches import SourcePatch

Vendored: TypeAlias = "tuple[SourcePatch, bytes]"
"""The pin of a patch, and its diff. The pin contains the SHA-256 of the diff."""


@mirror.under_lock
def vendor(repository: GitRepository, pull: SourcePatch, commit: str, earlier: Sequence[Vendored] = ()) -> Vendored:
    """Returns the pin of a pull request of the repository or of a fork, and its changes as a diff that applies to
    ``commit``, the pin of the source, after the ``earlier`` patches.

    The mirror keeps the head. The changes of the request begin where it left its branch. If they do not apply directly,
    they are merged three-way. Raises SourceError if the request does not exist, changes nothing, or conflicts.
    """
    mirror.ensure_commit(repository, commit)
    head = pull.head or fetch_pull(repository, pull)
    if pull.head and not (pull.repository and _fetched(repository, head, _kept_as(pull, head), pull.repository)):
        mirror.ensure_commit(repository, head)
    if pull.repository and not merge_base(repository, commit, head):
        message = f"{pull.label} shares no history with {repository.address.url}: it belongs to another project"
        raise SourceError(message, hint="`pulls:` accepts pull requests only from the repository itself and its forks")
    if is_ancestor(repository, head, commit):
        raise _already_included(pull.label, commit[:7])
    own = own_commits(repository, pull, head)
    with patches.opened(repository) as index:
        requested = _diff(repository, pull, own)
        before, after, merged, present = merge_pulls(index, pull.label, commit, earlier, own)
        if before == after:
            raise _already_included(pull.label, " with ".join([commit[:7], *(patch.label for patch, _ in earlier)]))
        index.read(before)
        as_it_is = not index.apply_error(requested) and index.tree() == after
        diff = requested if as_it_is else index.checked([*patches.DIFF, before, after]).output
    if merged:
        repository.notify(f"{pull.label} and {commit[:7]} change the same files, and were merged: {listing(merged)}")
    if present:
        repository.notify(f"{pull.label}: some of its changes are already in {commit[:7]}: {listing(present)}")
    return replace(pull, head=head, sha256=hashlib.sha256(diff).hexdigest()), diff


def _already_included(name: str, holder: str) -> SourceError:
    return SourceError(f"{name} is already in {holder}", hint="remove it from `pulls:` in image.yaml")


def _diff(repository: GitRepository, pull: SourcePatch, own: OwnCommits) -> bytes:
    """Raises SourceError if the request is empty or moves a submodule."""
    changes = _changes(repository, own)
    if not changes:
        message = f"{pull.label} of {repository.address.url} changes nothing"
        raise SourceError(message, hint="remove it from `pulls:` in image.yaml")
    if submodules := [path for path, sides in changes.items() if any(map(_is_submodule, sides))]:
        raise SourceError(
            f"{pull.label} moves the submodule {listing(submodules)}, which a patch cannot do",
            hint=f"use the pull request itself: `ref: refs/pull/{pull.number}/head` instead of `pulls:`",
        )
    mirror.ensure_blobs(repository, (entry[1] for sides in changes.values() for entry in sides if entry))
    return run_checked(repository, [*patches.DIFF, own.start, own.head]).output


_Entry = tuple[str, str]
"""Mode and object of a file in a tree."""

_Change = tuple[_Entry | None, _Entry | None]
"""A file before and after a change; None if there is none."""

_NOTHING = "0" * 40


def _changes(repository: GitRepository, own: OwnCommits) -> dict[str, _Change]:
    raw = ["diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", own.start, own.head]
    fields = run_checked(repository, raw).output.decode("utf-8", "surrogateescape").split("\0")
    changes: dict[str, _Change] = {}
    for meta, path in zip(fields[::2], fields[1::2], strict=False):
        old_mode, new_mode, old, new, _ = meta.removeprefix(":").split(" ")
        changes[path] = (old != _NOTHING and (old_mode, old)) or None, (new != _NOTHING and (new_mode, new)) or None
    return changes


def _is_submodule(entry: _Entry | None) -> bool:
    return entry is not None and entry[0] == SUBMODULE_MODE


# The commits of a pull request begin where it left its base branch. If they were counted from the pinned commit, a
# request that was rebased after a release would include all upstream commits in between.

# The refs of GitHub and GitLab for the head of request N, and GitHub's ref for its merge with the base branch.
_HEADS = ("refs/pull/{}/head", "refs/merge-requests/{}/head")
_INCOMING = "refs/builder/incoming"
_OPENED_FOR = "refs/builder/opened-for"
_LISTED = 5


@dataclass(frozen=True)
class OwnCommits:
    """The commits of a pull request: after ``start``, up to its ``head``."""

    start: str
    head: str


_Branch = tuple[str, str]
"""The last commit of a possible base branch of a pull request, and its name in messages."""


def fetch_pull(repository: GitRepository, pull: SourcePatch) -> str:
    """Fetches the head of a pull request into the mirror, which keeps it, and returns it. Raises MissingError."""
    number, url = pull.number, pull.repository or repository.address.url
    repository.notify(f"fetching pull request {number} of {url}")
    for ref in _HEADS:
        if head := _fetched(repository, ref.format(number), _INCOMING, pull.repository):
            moves = f"update {_kept_as(pull, head)} {head}\ndelete {_INCOMING}\n"
            run_checked(repository, ["update-ref", "--stdin"], moves.encode())
            return head
    raise MissingError(f"{url} has no pull request {number}", hint="correct its number in `pulls:`")


def _kept_as(pull: SourcePatch, head: str) -> str:
    return f"refs/builder/pulls/{pull.number}/{head}"


def own_commits(repository: GitRepository, pull: SourcePatch, head: str) -> OwnCommits:
    """The commits of the fetched request ``pull``. Raises SourceError if the commits cannot be determined, or if their
    diff contains files that no commit touches."""
    name_branch = f"name the branch that the request was opened for: `pulls: [{{number: {pull.name}, base: BRANCH}}]`"
    # GitHub's latest test merge of the request with its base branch, unless that merge has another head.
    merge = _fetched(repository, f"refs/pull/{pull.number}/merge", _OPENED_FOR, pull.repository)
    parents = run_checked(repository, ["rev-parse", f"{merge}^@"]).text.split() if merge else []
    merged_with = (parents[0], "the branch that the request was opened for") if parents[1:] == [head] else None
    default = _fetched(repository, "HEAD", "refs/builder/upstream", pull.repository)
    current = _named_branch(repository, pull) or merged_with or ((default, "the default branch") if default else None)
    if current is None:
        raise MissingError(f"{repository.address.url} has no default branch", hint=name_branch)
    branch, name = _before_merge(repository, current[0], head), current[1]
    if not branch:
        raise SourceError(
            f"{pull.label} was merged into its branch without a merge commit, so its first commit is unknown",
            hint=f"give the parent of the request's first commit: `pulls: [{{number: {pull.name}, base: COMMIT}}]`",
        )
    starts = run_local(repository, ["merge-base", "--all", branch, head]).text.split()
    if not starts:
        unrelated = f"{pull.label} of {repository.address.url} shares no history with {name}"
        raise SourceError(unrelated, hint=name_branch)
    upstream = _before_merge(repository, default, head) if default else ""
    # For a merge, these are the files that differ from both parents.
    history = ["log", "-c", "-z", "--format=", "--name-only", "--no-renames", "--no-ext-diff", head]
    own = set(_paths(repository, [*history, *(f"^{other}" for other in {branch, upstream} if other)]))
    if merged_with and is_ancestor(repository, starts[0], merged_with[0]):
        own &= set(changed_files(repository, merge_base(repository, merged_with[0], head), head))
    foreign = {start: [file for file in changed_files(repository, start, head) if file not in own] for start in starts}
    start = min(starts, key=lambda start: len(foreign[start]))
    if files := foreign[start]:
        count = "a file" if len(files) == 1 else f"{len(files)} files"
        what = f"{count} that its own commits do not change: {listing(files)}"
        raise SourceError(f"{pull.label}: compared with {name}, its diff contains {what}", hint=name_branch)
    return OwnCommits(start, head)


def changed_files(
    repository: GitRepository, old: str, new: str, environ: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """The files in which two commits or trees differ. ``environ`` selects an index that contains the trees."""
    return _paths(repository, ["diff-tree", "-r", "-z", "--name-only", "--no-renames", old, new], environ)


def _paths(
    repository: GitRepository, arguments: Sequence[str], environ: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    output = run_checked(repository, arguments, environ=environ).output.decode("utf-8", "surrogateescape")
    return tuple(dict.fromkeys(name.strip("\n") for name in output.split("\0") if name.strip("\n")))


def merge_base(repository: GitRepository, commit: str, other: str) -> str:
    return run_local(repository, ["merge-base", commit, other]).text


def listing(files: Iterable[str]) -> str:
    names = list(files)
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"{', '.join(names[:_LISTED])}{more}"


def is_ancestor(repository: GitRepository, commit: str, of: str) -> bool:
    return run_local(repository, ["merge-base", "--is-ancestor", commit, of]).status == 0


def _fetched(repository: GitRepository, ref: str, into: str, other: str) -> str:
    """The commit of ``ref`` in the upstream or ``other`` repository. The mirror keeps it as ``into``. Empty if the ref
    does not exist."""
    try:
        mirror.fetch_mirror(repository, f"+{ref}:{into}", other=other)
    except MissingError:
        return ""
    return run_checked(repository, ["rev-parse", "--verify", f"{into}^{{commit}}"]).text


def _named_branch(repository: GitRepository, pull: SourcePatch) -> _Branch | None:
    """The branch, tag or commit that the definition names as the request's base. Raises MissingError."""
    if not pull.base:
        return None
    if mirror.is_commit(pull.base):
        mirror.ensure_commit(repository, pull.base)
        return pull.base, pull.base[:7]
    full = pull.base.startswith("refs/")
    for ref in (pull.base,) if full else (f"refs/heads/{pull.base}", f"refs/tags/{pull.base}"):
        if commit := _fetched(repository, ref, _OPENED_FOR, pull.repository):
            return commit, pull.base
    message = f"{pull.repository or repository.address.url} has no branch `{pull.base}`, the `base` of {pull.label}"
    hint = "leave `base` out for the default branch; for a deleted branch, write one of its commits"
    raise MissingError(message, hint=hint)


def _before_merge(repository: GitRepository, branch: str, head: str) -> str:
    """The last commit of ``branch`` before ``head`` was merged; empty if ``head`` is on the branch's own line."""
    if not is_ancestor(repository, head, branch):
        return branch
    # Each commit of the branch contains all earlier ones, so a binary search finds the first commit with the request.
    line = run_checked(repository, ["rev-list", "--first-parent", "--reverse", branch, f"^{head}"]).text.split()
    first = bisect_left(line, True, key=lambda commit: is_ancestor(repository, head, commit))
    before = run_checked(repository, ["rev-parse", f"{line[first]}^1"]).text if line else head
    return "" if is_ancestor(repository, head, before) else before


# A pull request is merged into the pinned commit: three-way, file by file, with the start of the request as the common
# ancestor. Only the contents of its files are fetched. If both sides changed a file, ``git merge-file`` merges it: its
# result is the same in every version of git, and depends on no setting.

_MOST_CONFLICTS = 127  # as a status of merge-file; a greater one is an error


class MergeConflictError(SourceError):
    """A pull request that cannot be merged; the message names every file."""


@dataclass
class _Progress:
    """A merge in progress: the decided entries by path (None for a removed file), the files with changes of both sides,
    and the reasons why other files cannot be merged."""

    decided: dict[str, _Entry | None] = field(default_factory=dict)
    merged: list[str] = field(default_factory=list)
    conflicts: dict[str, str] = field(default_factory=dict)


def merge_pulls(
    index: ScratchIndex, name: str, commit: str, earlier: Sequence[Vendored], own: OwnCommits
) -> tuple[str, str, tuple[str, ...], tuple[str, ...]]:
    """Merges the request ``name`` into ``commit`` with the ``earlier`` patches. Returns the trees before and after, the
    files with changes of both sides, and the files that already have the content of the request. Raises
    MergeConflictError with every file in conflict, and the earlier patch that conflicts."""
    before, progress = _merged_after(index, commit, earlier, own)
    if not progress.conflicts:
        after = index.tree()
        differing = changed_files(index.repository, before, after, index.environ)
        requested = changed_files(index.repository, own.start, own.head)
        merged = tuple(path for path in sorted(progress.merged) if path in differing)
        return before, after, merged, tuple(path for path in requested if path not in differing)
    reasons = "; ".join(f"{path} {why}" for path, why in sorted(progress.conflicts.items()))
    counts = range(len(earlier) + 1)
    first = next(count for count in counts if _merged_after(index, commit, earlier[:count], own)[1].conflicts)
    if first:
        raise _conflict(f"{earlier[first - 1][0].label} and {name} conflict: {reasons}")
    raise _conflict(f"{name} does not apply to {commit[:7]}: {reasons}")


def _merged_after(
    index: ScratchIndex, commit: str, earlier: Sequence[Vendored], own: OwnCommits
) -> tuple[str, _Progress]:
    """The tree of ``commit`` with the ``earlier`` patches, and the merge of the request into it. Raises
    MergeConflictError if a patch does not apply."""
    _fetch_touched_files(index.repository, commit, earlier)
    index.read(commit)
    start = own.start
    for patch, diff in earlier:
        if error := index.apply_error(diff):
            raise _conflict(f"{patch.label} does not apply to {commit[:7]}: {failures(error, diff)}")
        # If a request is based on another one, only its own commits count.
        shared = merge_base(index.repository, patch.head, own.head)
        if shared and is_ancestor(index.repository, start, shared):
            start = shared
    before = index.tree()
    return before, _merge_trees(index, commit, before, OwnCommits(start, own.head))


def _conflict(reason: str) -> MergeConflictError:
    hint = "in `pulls:` of image.yaml, remove this pull request or the one that conflicts with it"
    return MergeConflictError(reason, hint=hint)


def _merge_trees(index: ScratchIndex, commit: str, before: str, own: OwnCommits) -> _Progress:
    """Merges the request into the tree ``before`` (``commit`` with patches) in the index, as far as possible."""
    progress = _Progress()
    index.read(before)
    listed = index.checked(["ls-files", "--stage", "-z"]).output.decode("utf-8", "surrogateescape")
    pairs = (line.partition("\t") for line in listed.split("\0") if line)
    there: dict[str, _Entry] = {path: (meta.split()[0], meta.split()[1]) for meta, _, path in pairs}
    changes = _changes(index.repository, own)
    sides = [entry for change in changes.values() for entry in change if entry and not _is_submodule(entry)]
    pinned = mirror.blob_names(index.repository, commit, changes).values()
    mirror.ensure_blobs(index.repository, [*(name for _, name in sides), *pinned])
    renames: dict[str, str] = {}
    if any(path in there and head is None for path, (_, head) in changes.items()):
        renaming = ["diff-tree", "-r", "-z", "-M", "--diff-filter=R", "--name-status", own.start, own.head]
        fields = index.git(renaming).output.decode("utf-8", "surrogateescape").split("\0")
        renames = dict(zip(fields[1::3], fields[2::3], strict=False))
    for path, (start, head) in changes.items():
        now, renamed = there.get(path), renames.get(path, "")
        if now == head:
            continue
        if now == start:
            progress.decided.setdefault(path, head)
        elif start and now and (head or (renamed and renamed not in there)):
            target = path if head else renamed
            _merge_contents(index, progress, target, (start, now, head or changes[renamed][1] or start))
            if not head:
                progress.decided[path] = None
        elif now:
            why = "is removed by the pull request, but has" if start else "already exists with"
            progress.conflicts[path] = f"{why} other contents{' there' if start else ''}"
        else:
            same = next((f" ({other} is the same file)" for other in sorted(there) if there[other] == start), "")
            progress.conflicts[path] = f"does not exist there{same}"
    kept = {path for path, entry in {**there, **progress.decided}.items() if entry}
    folders = {path[:end] for path in kept for end, letter in enumerate(path) if letter == "/"}
    progress.conflicts |= dict.fromkeys(kept & folders, "is a file on one side and a folder on the other")
    entries = "".join(f"0 {_NOTHING}\t{path}\0" for path in progress.decided)
    entries += "".join(f"{entry[0]} {entry[1]}\t{path}\0" for path, entry in progress.decided.items() if entry)
    if not progress.conflicts:
        index.checked(["update-index", "-z", "--index-info"], entries.encode("utf-8", "surrogateescape"))
    return progress


def _merge_contents(index: ScratchIndex, progress: _Progress, path: str, sides: tuple[_Entry, _Entry, _Entry]) -> None:
    """Merges the content and mode of one file: the request's start, the present file, and the request's head."""
    start, now, head = sides
    if not {mode for mode, _ in sides} <= {"100644", "100755"}:
        progress.conflicts[path] = "is a link, and both change it"
        return
    files = [index.folder / name for name in ("now", "start", "head")]
    for file, (_, name) in zip(files, (now, start, head), strict=True):
        file.write_bytes(index.checked(["cat-file", "blob", name]).output)
    result = index.git(["merge-file", "-p", "-q", *map(str, files)])
    if result.status > _MOST_CONFLICTS:
        progress.conflicts[path] = "is binary, and both change it"
    elif result.status:
        progress.conflicts[path] = "is changed in the same lines by both"
    else:
        name = index.checked(["hash-object", "-w", "--no-filters", "--stdin"], result.output).text
        progress.decided[path] = (head[0] if start[0] == now[0] else now[0]), name
        progress.merged.append(path)


def check_patches(repository: GitRepository, commit: str, diffs: Sequence[Vendored]) -> None:
    """Raises SourceError if a patch leads out of the source, or does not apply to ``commit`` after the earlier patches.
    The error lists all such patches with file and hunk."""
    for patch, diff in diffs:
        if patch.is_file:
            patches.refuse_hostile(patch.label, diff, patch.strip)
    if diffs:
        _check(repository, commit, diffs)


@mirror.under_lock
def _check(repository: GitRepository, commit: str, diffs: Sequence[Vendored]) -> None:
    mirror.ensure_commit(repository, commit)
    _fetch_touched_files(repository, commit, diffs)
    problems: list[str] = []
    applied: list[str] = []
    with patches.opened(repository) as index:
        index.read(commit)
        for patch, diff in diffs:
            if error := index.apply_error(diff, f"-p{patch.strip}"):
                after = f" after {', '.join(applied)}" if applied else ""
                where = failures(error, diff, patch.strip)
                problems.append(f"{patch.label} does not apply to {commit[:7]}{after}: {where}")
            else:
                applied.append(patch.label)
    if problems:
        hint = "in image.yaml, remove patches that are already included, and one of each two that conflict"
        raise SourceError("\n".join(problems), hint=hint)


def _fetch_touched_files(repository: GitRepository, commit: str, diffs: Sequence[Vendored]) -> None:
    """Fetches the contents of the files that the patches touch, all at once."""
    files = {file for patch, diff in diffs for file in touched_files(patch.label, diff, patch.strip)}
    mirror.ensure_blobs(repository, mirror.blob_names(repository, commit, files).values())
