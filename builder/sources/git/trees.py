"""Whole source trees in the mirrors, preserved while upstream has them, for the day when it no longer does.

BuildKit takes a tree from upstream by its commit, submodules included. The preserved tree is used when it cannot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.errors import SourceError
from builder.sources.git import credentials, mirror, mirror_access
from builder.sources.git.errors import shorten
from builder.sources.git.git_command import GitRepository, Notify, discard, run_checked, run_local

if TYPE_CHECKING:
    from pathlib import Path

# Submodules are kept apart from the mirrors: they are shallow, and would cut off the history of a source at the same
# address.
_SUBMODULES = "submodules"
_ADDRESSES = ("https://", "http://", "ssh://", "git://", "git@")


@dataclass(frozen=True)
class Submodule:
    """A submodule at ``path`` of a tree: its address, and the commit that the tree records."""

    path: str
    url: str
    commit: str


def preserve(mirrors: Path, url: str, commit: str, notify: Notify = discard) -> None:
    """Fetches the contents of all files of ``commit`` into the mirror of ``url``, and the trees of its submodules next
    to it. A submodule that cannot be fetched is only reported, as it comes from another server. Raises SourceError."""

    def fetch_files(repository: GitRepository) -> tuple[Submodule, ...]:
        mirror.ensure_commit(repository, commit)
        blobs = {name for mode, name, _ in _entries(repository, commit) if mode != mirror.SUBMODULE_MODE}
        mirror.ensure_blobs(repository, blobs)
        return _submodules(repository, commit)

    for submodule in mirror_access.with_mirror(mirrors, url, fetch_files, notify):
        try:
            _preserve_submodule(mirrors / _SUBMODULES, submodule, notify)
        except SourceError as error:
            notify(f"the submodule {submodule.path} of {credentials.split(url).url} is not kept: {error.message}")


def check_out(mirrors: Path, url: str, commit: str, folder: Path) -> None:
    """Writes the files of ``commit`` and of its submodules, as ``preserve`` fetched them, into ``folder``. Takes no
    network.

    Raises SourceError if any of them is not in the mirror.
    """
    for submodule in _write(mirrors, url, commit, folder):
        _write_submodule(mirrors / _SUBMODULES, submodule, folder)


def _preserve_submodule(mirrors: Path, submodule: Submodule, notify: Notify) -> None:
    if not submodule.url.startswith(_ADDRESSES):
        raise SourceError(f"`{submodule.url}` is no address that is followed")
    ref = f"{mirror.PINS}/{submodule.commit}"

    def fetch(repository: GitRepository) -> tuple[Submodule, ...]:
        if not run_checked(repository, ["for-each-ref", ref]).text:
            notify(f"fetching {submodule.path} from {submodule.url}")
            mirror.fetch_tree(repository, f"{submodule.commit}:{ref}")
        return _submodules(repository, submodule.commit)

    for nested in mirror_access.with_mirror(mirrors, submodule.url, fetch, notify):
        _preserve_submodule(mirrors, nested, notify)


def _write(mirrors: Path, url: str, commit: str, folder: Path) -> tuple[Submodule, ...]:
    def write(repository: GitRepository) -> tuple[Submodule, ...]:
        folder.mkdir(parents=True, exist_ok=True)
        index = folder.with_name(f"{folder.name}.index")
        environ = {"GIT_WORK_TREE": str(folder), "GIT_INDEX_FILE": str(index)}
        result = run_local(repository, ["read-tree", "-u", "--reset", commit], environ=environ)
        index.unlink(missing_ok=True)
        if result.status:
            reason = shorten(result.stderr)
            raise SourceError(f"the mirror of {repository.address.url} does not give all files of {commit}: {reason}")
        return _submodules(repository, commit)

    mirrored = mirror_access.locate(mirrors, url)
    if not mirrored.path.exists():
        raise SourceError(f"there is no mirror of {mirrored.address.url}")
    return mirror_access.with_mirror(mirrors, url, write)


def _write_submodule(mirrors: Path, submodule: Submodule, folder: Path) -> None:
    into = folder / submodule.path
    for nested in _write(mirrors, submodule.url, submodule.commit, into):
        _write_submodule(mirrors, nested, into)


def _entries(repository: GitRepository, commit: str) -> list[tuple[str, str, str]]:
    """Returns mode, object name and path of everything in a commit but folders."""
    listed = run_checked(repository, ["ls-tree", "-r", "-z", "--full-tree", commit]).output.decode(
        "utf-8", "surrogateescape"
    )
    pairs = (entry.partition("\t") for entry in listed.split("\0") if entry)
    return [(meta.split()[0], meta.split()[2], path) for meta, _, path in pairs]


def _submodules(repository: GitRepository, commit: str) -> tuple[Submodule, ...]:
    """Returns the submodules of ``commit``."""
    links = {path: name for mode, name, path in _entries(repository, commit) if mode == mirror.SUBMODULE_MODE}
    if not links:
        return ()
    settings = run_local(repository, ["config", f"--blob={commit}:.gitmodules", "--list", "-z"]).text
    values = dict(setting.partition("\n")[::2] for setting in settings.split("\0"))
    submodules = []
    for key, path in values.items():
        url = values.get(f"{key.removesuffix('.path')}.url", "")
        if key.startswith("submodule.") and key.endswith(".path") and path in links and url:
            submodules.append(Submodule(path, absolute_url(repository.address.url, url), links[path]))
    return tuple(submodules)


def absolute_url(parent: str, url: str) -> str:
    """Returns the address of a submodule, which may be relative to its parent's: ``../cutlass.git``."""
    if not url.startswith(("./", "../")):
        return url
    base = parent.rstrip("/")
    while url.startswith(("./", "../")):
        step, _, url = url.partition("/")
        base = base.rpartition("/")[0] if step == ".." else base
    return f"{base}/{url}"
