"""Pull requests, fetched once and kept as vendored patches: their branches move, get force-pushed and are deleted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.errors import SourceError
from builder.lock.pins import PullPin
from builder.sources.git import mirror, mirror_access, pull_history, pull_merge, scratch_index
from builder.sources.git.git_command import GitRepository, Notify, discard, run_checked

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from builder.sources.git.pull_history import RequestedPull
    from builder.sources.git.pull_merge import EarlierPatch, Merged

_NOTHING = "0" * 40
# Every option that a setting, an attribute or another version of git could change is given. Full object names, because
# how far git shortens them depends on the number of objects in the repository. No renames: detecting them depends on
# limits, and patch(1) does not know them.
_DIFF = ["diff-tree", "-r", "-p", "--full-index", "--binary", "--no-renames", "--no-color", "--no-ext-diff"]
_DIFF += ["--no-textconv", "--src-prefix=a/", "--dst-prefix=b/", "--diff-algorithm=myers", "--indent-heuristic"]
_DIFF += ["--unified=3", "--inter-hunk-context=0", "--submodule=short", "--ignore-submodules=none"]


@dataclass(frozen=True)
class VendoredPatch:
    """A pull request at its present state: its pin, and the diff that the pin gives the SHA-256 of."""

    pin: PullPin
    diff: bytes


def vendor(
    mirrors: Path,
    url: str,
    pull: RequestedPull,
    commit: str,
    earlier: Sequence[EarlierPatch] = (),
    notify: Notify = discard,
    head: str = "",
) -> VendoredPatch:
    """Returns the changes of a pull request of the repository ``url``, as a diff that applies to ``commit``, the pin of
    the source, after the ``earlier`` patches. Its head is kept in the mirror.

    ``head`` is the commit of an earlier state that is wanted, in place of the present one.

    Its own changes are those since it left the branch that it was opened for. They are merged three-way; where the
    request applies as it is, the diff is that of the request. Raises SourceError if there is no such request, it
    changes nothing that is not there already, or it conflicts.
    """
    return mirror_access.with_mirror(
        mirrors, url, lambda repository: _vendor(repository, pull, commit, earlier, head), notify
    )


def _vendor(
    repository: GitRepository, pull: RequestedPull, commit: str, earlier: Sequence[EarlierPatch], head: str
) -> VendoredPatch:
    import hashlib

    mirror.ensure_commit(repository, commit)
    if head:
        mirror.ensure_commit(repository, head)
    else:
        head = pull_history.fetch(repository, pull)
    if pull_history.is_ancestor(repository, head, commit):
        raise already_included(pull.name, commit[:7])
    own = pull_history.own_commits(repository, pull, head, commit)
    with scratch_index.opened(repository) as index:
        requested = _diff(repository, pull, own.start, own.head)
        merged = pull_merge.merge(index, pull.name, commit, earlier, own)
        if merged.before == merged.after:
            raise already_included(pull.name, pull_merge.holder(index, commit, earlier, own))
        index.read(merged.before)
        as_it_is = not index.apply_error(requested) and index.tree() == merged.after
        diff = requested if as_it_is else index.checked([*_DIFF, merged.before, merged.after]).output
    for message in _resolved(pull, commit, merged):
        repository.notify(message)
    return VendoredPatch(PullPin(pull.number, head, hashlib.sha256(diff).hexdigest(), pull.base), diff)


def already_included(name: str, holder: str) -> SourceError:
    """Returns the error for a pull request whose changes are in ``holder`` already, a commit or another one."""
    return SourceError(f"{name} is already in {holder}: drop it", hint="take it out of `pulls:` in image.yaml")


def _resolved(pull: RequestedPull, commit: str, merged: Merged) -> list[str]:
    """Messages about the files that the merge had to decide on."""
    both, present = pull_history.listing(merged.merged), pull_history.listing(merged.present)
    return [
        *([f"{pull.name} is merged into {commit[:7]}, which changes the same files: {both}"] if both else []),
        *([f"{pull.name}: these of its changes are in {commit[:7]} already: {present}"] if present else []),
    ]


def _diff(repository: GitRepository, pull: RequestedPull, base: str, head: str) -> bytes:
    """The diff of the request, with the contents of its files fetched. Raises SourceError for one that is empty or
    moves a submodule."""
    raw = run_checked(repository, ["diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", base, head]).text
    entries = raw.split("\0")
    blobs: set[str] = set()
    submodules: list[str] = []
    for meta, path in zip(entries[::2], entries[1::2], strict=False):
        old_mode, new_mode, old, new, _ = meta[1:].split(" ")
        if mirror.SUBMODULE_MODE in {old_mode, new_mode}:
            submodules.append(path)
        blobs |= {blob for mode, blob in ((old_mode, old), (new_mode, new)) if mode != mirror.SUBMODULE_MODE}
    if not entries[0]:
        raise SourceError(f"{pull.name} of {repository.address.url} changes nothing", hint="drop it")
    if submodules:
        raise SourceError(
            f"{pull.name} moves the submodule {pull_history.listing(submodules)}, which a patch cannot do",
            hint=f"take the request itself: `ref: refs/pull/{pull.number}/head` in place of `pulls:`",
        )
    mirror.ensure_blobs(repository, blobs - {_NOTHING})
    return run_checked(repository, [*_DIFF, base, head]).output
