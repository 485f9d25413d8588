"""The own commits of a pull request: its head, and the commit at which it left the branch that it was opened for.

That commit is no matter of the pinned one. A pull request that was rebased after a release would bring all that came
upstream in between along, if its changes were counted from the history of the release.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.errors import SourceError
from builder.sources.git import mirror, remote_refs
from builder.sources.git.errors import MissingError
from builder.sources.git.git_command import GitRepository, run_checked, run_local

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Where GitHub and GitLab keep the head of request N, and GitHub its merge with the branch that it was opened for.
_HEADS = ("refs/pull/{}/head", "refs/merge-requests/{}/head")
_MERGE = "refs/pull/{}/merge"
_INCOMING = "refs/builder/incoming"
_UPSTREAM = "refs/builder/upstream"
_OPENED_FOR = "refs/builder/opened-for"
_LISTED = 5
_NAME_THE_BRANCH = "name the branch that it was opened for: `pulls: [{{number: {}, base: BRANCH}}]`"


@dataclass(frozen=True)
class RequestedPull:
    """A pull request as a definition names it: its ``number``, and the ``base`` that it was opened for (a branch, tag
    or commit) where that is given."""

    number: int
    base: str = ""

    @property
    def name(self) -> str:
        """The words for it in messages."""
        return f"pull request {self.number}"


@dataclass(frozen=True)
class OwnCommits:
    """The commits of a pull request: from ``start``, which it stands on, to its ``head``."""

    start: str
    head: str


@dataclass(frozen=True)
class _Branch:
    """A branch that a pull request may have left: its last ``commit`` before the request was merged, if it was, and the
    name that messages use."""

    commit: str
    name: str


def fetch(repository: GitRepository, pull: RequestedPull) -> str:
    """Fetches the head of a pull request, which the mirror then keeps; returns it. Raises MissingError."""
    number = pull.number
    repository.notify(f"fetching {pull.name} of {repository.address.url}")
    for ref in _HEADS:
        if head := _fetched(repository, ref.format(number), _INCOMING):
            moves = f"update refs/builder/pulls/{number}/{head} {head}\ndelete {_INCOMING}\n"
            run_checked(repository, ["update-ref", "--stdin"], moves.encode())
            return head
    raise MissingError(f"{repository.address.url} has no pull request {number}", hint="correct its number in `pulls:`")


def own_commits(repository: GitRepository, pull: RequestedPull, head: str, commit: str) -> OwnCommits:
    """The own commits of the fetched request ``pull``; ``commit`` is the pinned one, which does not hold ``head``.

    Raises SourceError where they cannot be told, or their difference holds files that none of them touches.
    """
    merged_with = _merged_with(repository, pull, head)
    default = _default_branch(repository)
    current = _named_branch(repository, pull) or merged_with or default
    if current is None:
        raise MissingError(f"{repository.address.url} has no default branch", hint=_NAME_THE_BRANCH.format(pull.number))
    branch = _before_merge(repository, current, head)
    if branch is None:
        return _merged_as_it_is(repository, pull, head, commit)
    starts = run_local(repository, ["merge-base", "--all", branch.commit, head]).text.split()
    if not starts:
        raise _unrelated(repository, pull, branch)
    upstream = _before_merge(repository, default, head) if default else None
    own = _touched(repository, head, {other.commit for other in (branch, upstream) if other})
    if merged_with and is_ancestor(repository, starts[0], merged_with.commit):
        own &= set(changed_files(repository, merge_base(repository, merged_with.commit, head), head))
    foreign = {start: [file for file in changed_files(repository, start, head) if file not in own] for start in starts}
    start = min(starts, key=lambda start: len(foreign[start]))
    if foreign[start]:
        raise _brings_along(pull, branch, foreign[start])
    return OwnCommits(start, head)


def changed_files(
    repository: GitRepository, old: str, new: str, environ: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """The files in which two commits or trees differ, a renamed one under both names; ``environ`` is that of an index
    which holds trees of its own."""
    differing = ["diff-tree", "-r", "-z", "--name-only", "--no-renames", old, new]
    return _paths(run_checked(repository, differing, environ=environ).output)


def merge_base(repository: GitRepository, commit: str, other: str) -> str:
    """The best common ancestor of two commits; empty if there is none."""
    return run_local(repository, ["merge-base", commit, other]).text


def listing(files: Iterable[str]) -> str:
    """Some file names for a message, and how many more there are."""
    names = list(files)
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"{', '.join(names[:_LISTED])}{more}"


def is_ancestor(repository: GitRepository, commit: str, of: str) -> bool:
    """True if the history of ``of`` holds ``commit``."""
    return run_local(repository, ["merge-base", "--is-ancestor", commit, of]).status == 0


def _fetched(repository: GitRepository, ref: str, into: str) -> str:
    """The commit that upstream's ``ref`` points at, kept in the mirror as ``into``; empty if there is no such ref."""
    try:
        mirror.fetch(repository, f"+{ref}:{into}")
    except MissingError:
        return ""
    return run_checked(repository, ["rev-parse", "--verify", f"{into}^{{commit}}"]).text


def _default_branch(repository: GitRepository) -> _Branch | None:
    commit = _fetched(repository, "HEAD", _UPSTREAM)
    return _Branch(commit, "the default branch") if commit else None


def _named_branch(repository: GitRepository, pull: RequestedPull) -> _Branch | None:
    """The branch, tag or commit that the definition names as the request's base. Raises MissingError."""
    if not pull.base:
        return None
    if remote_refs.is_commit(pull.base):
        mirror.ensure_commit(repository, pull.base)
        return _Branch(pull.base, pull.base[:7])
    full = pull.base.startswith("refs/")
    for ref in (pull.base,) if full else (f"refs/heads/{pull.base}", f"refs/tags/{pull.base}"):
        if commit := _fetched(repository, ref, _OPENED_FOR):
            return _Branch(commit, pull.base)
    raise MissingError(
        f"{repository.address.url} has no branch `{pull.base}`, the `base` of {pull.name}",
        hint="leave `base` out for the default branch; in place of a branch that was deleted, write a commit of it",
    )


def _merged_with(repository: GitRepository, pull: RequestedPull, head: str) -> _Branch | None:
    """The branch that GitHub last tried to merge the request into; None where it has no merge of its present head."""
    merge = _fetched(repository, _MERGE.format(pull.number), _OPENED_FOR)
    parents = run_checked(repository, ["rev-parse", f"{merge}^@"]).text.split() if merge else []
    return _Branch(parents[0], "the branch that it was opened for") if parents[1:] == [head] else None


def _before_merge(repository: GitRepository, branch: _Branch, head: str) -> _Branch | None:
    """``branch`` as it was before it took ``head``; None for one whose own line goes through it."""
    if not is_ancestor(repository, head, branch.commit):
        return branch
    # Each of the branch's own commits holds what those before it hold, so the first one with the request is searched.
    line = run_checked(repository, ["rev-list", "--first-parent", branch.commit, f"^{head}"]).text.split()
    low, high = 0, len(line) - 1  # newest first; line[low] holds it
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if is_ancestor(repository, head, line[middle]) else (low, middle - 1)
    before = run_checked(repository, ["rev-parse", f"{line[low]}^1"]).text if line else head
    return None if is_ancestor(repository, head, before) else _Branch(before, branch.name)


def _merged_as_it_is(repository: GitRepository, pull: RequestedPull, head: str, commit: str) -> OwnCommits:
    """The commits of a request that its branch went on from, so that nothing tells where the request begins: clear only
    for a single commit since the pinned history."""
    start = merge_base(repository, commit, head)
    if not start:
        raise _unrelated(repository, pull, _Branch(commit, commit[:7]))
    count = int(run_checked(repository, ["rev-list", "--count", f"{start}..{head}"]).text)
    if count > 1:
        files = listing(changed_files(repository, start, head))
        raise SourceError(
            f"{pull.name} was merged into its branch without a merge commit, so nobody can tell which of the {count}"
            f" commits between {start[:7]} and {head[:7]} are its own; all of them touch {files}",
            hint=f"name the commit before its first one: `pulls: [{{number: {pull.number}, base: COMMIT}}]`",
        )
    return OwnCommits(start, head)


def _touched(repository: GitRepository, head: str, others: Iterable[str]) -> frozenset[str]:
    """The files that the commits of a request touch; of a merge those that it leaves unlike both of its parents."""
    history = ["log", "-c", "-z", "--format=", "--name-only", "--no-renames", "--no-ext-diff", head]
    return frozenset(_paths(run_checked(repository, [*history, *(f"^{commit}" for commit in others)]).output))


def _unrelated(repository: GitRepository, pull: RequestedPull, branch: _Branch) -> SourceError:
    return SourceError(
        f"{pull.name} of {repository.address.url} shares no history with {branch.name}",
        hint=_NAME_THE_BRANCH.format(pull.number),
    )


def _brings_along(pull: RequestedPull, branch: _Branch, files: list[str]) -> SourceError:
    count = "a file" if len(files) == 1 else f"{len(files)} files"
    return SourceError(
        f"{pull.name}: against {branch.name} its diff holds {count} that it does not touch itself: {listing(files)}",
        hint=_NAME_THE_BRANCH.format(pull.number),
    )


def _paths(output: bytes) -> tuple[str, ...]:
    names = (name.strip(b"\n") for name in output.split(b"\0"))
    return tuple(dict.fromkeys(name.decode("utf-8", "surrogateescape") for name in names if name))
