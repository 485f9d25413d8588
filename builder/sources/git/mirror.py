"""Contents of a local mirror of a git repository: bare, and without the contents of files until they are needed.

Pinned commits stay: each has a ref of ours (``refs/builder/pins/COMMIT``, ``refs/builder/pulls/NUMBER/COMMIT``), so
neither a force-push upstream nor git's own garbage collection removes it. All functions here need the mirror's lock
(``mirror_access.with_mirror``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.errors import SourceError
from builder.sources.git.errors import MissingError
from builder.sources.git.git_command import GitRepository, run_checked, run_local, run_remote

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PINS = "refs/builder/pins"
SUBMODULE_MODE = "160000"  # of an entry in a tree
ALL_TAGS = "+refs/tags/*:refs/tags/*"
_UPSTREAM = "source"  # the remote's name; not `origin`, for which the user's own configuration may have settings
_QUIETLY = ["--quiet", "--no-tags", "--no-prune", "--no-write-fetch-head", "--recurse-submodules=no"]
_FETCH = ["fetch", *_QUIETLY, "--filter=blob:none"]


def ensure_commit(repository: GitRepository, commit: str) -> None:
    """Ensures that ``commit`` (40 hex digits) is in the mirror with its history, under a ref of ours. Takes no network
    if it is there already. Raises MissingError if the repository does not have it, SourceError if it is not a commit.
    """
    if has_commit(repository, commit):
        return
    repository.notify(f"fetching {commit[:7]} from {repository.address.url}")
    try:
        fetch(repository, f"{commit}:{PINS}/{commit}", ALL_TAGS)
    except MissingError as error:
        if "unadvertised" not in error.message:
            raise MissingError(
                f"{repository.address.url} has no commit {commit}",
                hint="was it pushed? A commit that was force-pushed away is only where it was mirrored before",
            ) from None
        # A server older than git's protocol 2 gives only what its branches and tags point at, and no commit by name.
        fetch(repository, "+refs/heads/*:refs/builder/branches/*", ALL_TAGS)
        if not has_commit(repository, commit):
            raise MissingError(f"no branch or tag of {repository.address.url} holds the commit {commit}") from None
    kind = run_checked(repository, ["cat-file", "-t", commit]).text
    if kind != "commit":
        run_checked(repository, ["update-ref", "-d", f"{PINS}/{commit}"])
        raise SourceError(
            f"{commit} in {repository.address.url} is a {kind}, not a commit", hint="write the commit or the tag's name"
        )


def has_commit(repository: GitRepository, commit: str) -> bool:
    """Tells whether the mirror holds ``commit`` and its history; if so, gives it a ref of ours."""
    ref = f"{PINS}/{commit}"
    if run_checked(repository, ["for-each-ref", "--format=%(refname)", ref]).text:
        run_checked(repository, ["cat-file", "-e", f"{commit}^{{commit}}"])
        return True
    if commit not in _present(repository, [commit]):
        return False
    # A commit that nothing points at may have come without its history, from an interrupted fetch.
    if not run_checked(repository, ["for-each-ref", "--count=1", "--contains", commit]).text:
        return False
    run_checked(repository, ["update-ref", ref, commit])
    return True


def fetch(repository: GitRepository, *refs: str) -> None:
    """Fetches ``refs`` (git's refspecs) with their history. Raises as ``git_command.run_remote`` does."""
    run_remote(repository, [*_FETCH, _UPSTREAM, *refs])


def fetch_tree(repository: GitRepository, ref: str) -> None:
    """Fetches one commit (git's refspec) with all its files and without its history."""
    run_remote(repository, ["fetch", *_QUIETLY, "--no-filter", "--depth=1", _UPSTREAM, ref])


def update_tags(repository: GitRepository, upstream: Mapping[str, str]) -> None:
    """Updates the mirror's tags to those of ``upstream`` (name to object). Takes no network if they are the same."""
    lines = run_checked(
        repository, ["for-each-ref", "--format=%(objectname) %(refname:strip=2)", "refs/tags"]
    ).text.splitlines()
    local_tags = {name: commit for commit, _, name in (line.partition(" ") for line in lines)}
    deletions = "".join(f"delete refs/tags/{name}\n" for name in local_tags if name not in upstream)
    if deletions:
        run_checked(repository, ["update-ref", "--stdin"], deletions.encode())
    if any(local_tags.get(name) != commit for name, commit in upstream.items()):
        fetch(repository, ALL_TAGS)


def blob_names(repository: GitRepository, commit: str, files: Iterable[str]) -> dict[str, str]:
    """Returns the object names of those of ``files`` that ``commit`` has, by path, without folders and submodules."""
    paths = sorted(file for file in files if not file.startswith(("/", "../")))  # git refuses those as a whole
    if not paths:
        return {}
    entries = (
        run_checked(repository, ["ls-tree", "-z", commit, "--", *paths]).output.decode("utf-8", "replace").split("\0")
    )
    pairs = (entry.partition("\t") for entry in entries)
    return {name: meta.split()[2] for meta, _, name in pairs if " blob " in meta and name in paths}


def ensure_blobs(repository: GitRepository, names: Iterable[str]) -> None:
    """Ensures that the contents of these files (object names) are in the mirror, with one fetch for all of them."""
    unique_names = sorted(set(names))
    present = _present(repository, unique_names, "--objects")
    missing = "".join(f"{blob}\n" for blob in unique_names if blob not in present).encode()
    if not missing:
        return
    # As git's promisor-remote.c does: negotiating what is here already would save nothing.
    run_remote(repository, ["-c", "fetch.negotiationAlgorithm=noop", *_FETCH, "--stdin", _UPSTREAM], missing)


def _present(repository: GitRepository, names: Iterable[str], *options: str) -> set[str]:
    """Returns those of ``names`` that are in the mirror: commits, and with ``--objects`` contents of files, too. With
    ``--missing`` git only looks; any other command would first go through every object that upstream promised."""
    command = ["rev-list", *options, "--no-walk", "--ignore-missing", "--missing=print", "--stdin"]
    return set(run_local(repository, command, "".join(f"{name}\n" for name in names).encode()).text.split())
