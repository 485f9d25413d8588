"""Pull requests: fetched once, and kept as a frozen diff, because their branches move, get force-pushed and deleted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.errors import SourceError
from builder.lock.pins import PullPin
from builder.sources.git import mirror, mirror_access
from builder.sources.git.errors import MissingError
from builder.sources.git.git_command import Place, Say, must, read, silent

if TYPE_CHECKING:
    from pathlib import Path

# Where GitHub and GitLab keep the head of request N.
_HEADS = ("refs/pull/{}/head", "refs/merge-requests/{}/head")
_INCOMING = "refs/builder/incoming"
_SUBMODULE = "160000"
_NOTHING = "0" * 40
# Everything that a setting, an attribute or another version of git could change is said. Whole object names, because
# how far git shortens them depends on the number of objects in the repository. No renames: whether git sees one depends
# on limits, and patch(1) does not know them.
_DIFF = ["diff-tree", "-r", "-p", "--full-index", "--binary", "--no-renames", "--no-color", "--no-ext-diff"]
_DIFF += ["--no-textconv", "--src-prefix=a/", "--dst-prefix=b/", "--diff-algorithm=myers", "--indent-heuristic"]
_DIFF += ["--unified=3", "--inter-hunk-context=0", "--submodule=short", "--ignore-submodules=none"]


@dataclass(frozen=True)
class Frozen:
    """A pull request as it is now: its pin, and the diff that the pin's SHA-256 is of."""

    pin: PullPin
    diff: bytes


def freeze(mirrors: Path, url: str, number: int, commit: str, say: Say = silent) -> Frozen:
    """What pull request ``number`` of the repository ``url`` changes since it left the history of ``commit``, which is
    the source's pin. Its head stays in the mirror. Raises SourceError: no such request, or nothing of it is new."""
    return mirror_access.using(mirrors, url, lambda place: _freeze(place, number, commit), say)


def _freeze(place: Place, number: int, commit: str) -> Frozen:
    import hashlib

    mirror.keep(place, commit)
    head = _fetch(place, number)
    start = read(place, ["merge-base", commit, head])
    if start.status == 1:
        raise SourceError(f"pull request {number} of {place.address.url} shares no history with {commit[:7]}")
    base = start.text or must(place, ["merge-base", commit, head]).text
    if base == head:
        raise already_in(f"pull request {number}", commit)
    diff = _diff(place, base, head)
    if not diff:
        raise SourceError(f"pull request {number} of {place.address.url} changes nothing", hint="drop it")
    return Frozen(PullPin(number, head, hashlib.sha256(diff).hexdigest()), diff)


def already_in(name: str, commit: str) -> SourceError:
    """The error for a pull request whose changes ``commit`` has."""
    return SourceError(f"{name} is already in {commit[:7]}: drop it", hint="take it out of `pulls:` in image.yaml")


def _fetch(place: Place, number: int) -> str:
    place.say(f"fetching pull request {number} of {place.address.url}")
    for ref in _HEADS:
        try:
            mirror.fetch(place, f"+{ref.format(number)}:{_INCOMING}")
        except MissingError:
            continue
        head = must(place, ["rev-parse", "--verify", f"{_INCOMING}^{{commit}}"]).text
        moves = f"update refs/builder/pulls/{number}/{head} {head}\ndelete {_INCOMING}\n"
        must(place, ["update-ref", "--stdin"], moves.encode())
        return head
    raise MissingError(f"{place.address.url} has no pull request {number}", hint="correct its number in `pulls:`")


def _diff(place: Place, base: str, head: str) -> bytes:
    raw = must(place, ["diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", base, head]).text
    blobs: set[str] = set()
    for entry in raw.split("\0"):
        if entry.startswith(":"):  # the names of files stand between these
            old_mode, new_mode, old, new, _ = entry[1:].split(" ")
            blobs |= {blob for mode, blob in ((old_mode, old), (new_mode, new)) if mode != _SUBMODULE}
    mirror.bring(place, blobs - {_NOTHING})
    return must(place, [*_DIFF, base, head]).output
