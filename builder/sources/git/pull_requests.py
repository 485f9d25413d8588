"""Pull requests, fetched once and kept as vendored patches: their branches move, get force-pushed and are deleted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.errors import SourceError
from builder.lock.pins import PullPin
from builder.sources.git import mirror, mirror_access
from builder.sources.git.errors import MissingError
from builder.sources.git.git_command import GitRepository, Notify, discard, run_checked, run_local

if TYPE_CHECKING:
    from pathlib import Path

# Where GitHub and GitLab keep the head of request N.
_HEADS = ("refs/pull/{}/head", "refs/merge-requests/{}/head")
_INCOMING = "refs/builder/incoming"
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


def vendor(mirrors: Path, url: str, number: int, commit: str, notify: Notify = discard) -> VendoredPatch:
    """Returns the changes of pull request ``number`` of the repository ``url`` since it branched off the history of
    ``commit``, the source's pin. Its head is kept in the mirror. Raises SourceError if there is no such request, or it
    changes nothing."""
    return mirror_access.with_mirror(mirrors, url, lambda repository: _vendor(repository, number, commit), notify)


def _vendor(repository: GitRepository, number: int, commit: str) -> VendoredPatch:
    import hashlib

    mirror.ensure_commit(repository, commit)
    head = _fetch(repository, number)
    start = run_local(repository, ["merge-base", commit, head])
    if start.status == 1:
        raise SourceError(f"pull request {number} of {repository.address.url} shares no history with {commit[:7]}")
    base = start.text or run_checked(repository, ["merge-base", commit, head]).text
    if base == head:
        raise already_included(f"pull request {number}", commit)
    diff = _diff(repository, base, head)
    if not diff:
        raise SourceError(f"pull request {number} of {repository.address.url} changes nothing", hint="drop it")
    return VendoredPatch(PullPin(number, head, hashlib.sha256(diff).hexdigest()), diff)


def already_included(name: str, commit: str) -> SourceError:
    """Returns the error for a pull request whose changes are in ``commit`` already."""
    return SourceError(f"{name} is already in {commit[:7]}: drop it", hint="take it out of `pulls:` in image.yaml")


def _fetch(repository: GitRepository, number: int) -> str:
    repository.notify(f"fetching pull request {number} of {repository.address.url}")
    for ref in _HEADS:
        try:
            mirror.fetch(repository, f"+{ref.format(number)}:{_INCOMING}")
        except MissingError:
            continue
        head = run_checked(repository, ["rev-parse", "--verify", f"{_INCOMING}^{{commit}}"]).text
        moves = f"update refs/builder/pulls/{number}/{head} {head}\ndelete {_INCOMING}\n"
        run_checked(repository, ["update-ref", "--stdin"], moves.encode())
        return head
    raise MissingError(f"{repository.address.url} has no pull request {number}", hint="correct its number in `pulls:`")


def _diff(repository: GitRepository, base: str, head: str) -> bytes:
    raw = run_checked(repository, ["diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", base, head]).text
    blobs: set[str] = set()
    for entry in raw.split("\0"):
        if entry.startswith(":"):  # the names of files come between these
            old_mode, new_mode, old, new, _ = entry[1:].split(" ")
            blobs |= {blob for mode, blob in ((old_mode, old), (new_mode, new)) if mode != mirror.SUBMODULE_MODE}
    mirror.ensure_blobs(repository, blobs - {_NOTHING})
    return run_checked(repository, [*_DIFF, base, head]).output
