"""The origin of the files of a checkout, for those that are as the repository has them that it was cloned from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.copies import origin
from builder.copies.address import DEFAULT_BRANCH
from builder.copies.origin import Origin
from builder.definitions.reading import LARGEST_TEXT
from builder.errors import BuilderError
from builder.sources.git import credentials, git_command
from builder.sources.git.git_command import GitRepository
from builder.storage import regular_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from builder.sources.git.foreign_files import PlainFile


# What its settings include may never end, such as a pipe that nobody writes to.
_SECONDS = 30


@dataclass(frozen=True)
class UpstreamCommit:
    """The last commit of a checkout that the repository at ``url`` has, on its branch ``ref``; ``blobs`` are the ids of
    its files by path."""

    url: str
    ref: str
    commit: str
    blobs: dict[str, str]


def find(root: Path) -> UpstreamCommit | None:
    """Finds the commit that the checkout at ``root`` shares with the repository that it was cloned from, without asking
    that. None where it is no clone, or git cannot tell."""
    if not (root / ".git").is_dir():
        return None
    repository = GitRepository(root / ".git", credentials.split(""))
    try:
        return _find(repository)
    except (BuilderError, OSError):
        return None


def of(upstream: UpstreamCommit | None, path: str, files: Sequence[PlainFile]) -> Origin | None:
    """The origin of ``files`` at ``path`` of the checkout, where they are what upstream has there; None for what is the
    user's own, or was edited."""
    if upstream is None:
        return None
    there = {name: blob for name, blob in upstream.blobs.items() if name == path or name.startswith(f"{path}/")}
    here = {path if path in there else f"{path}/{file.path}": _blob(file.content) for file in files}
    if not there or here != there:
        return None
    return Origin(upstream.url, path, upstream.ref, upstream.commit, origin.digests(files))


def edited(upstream: UpstreamCommit | None, root: Path, paths: Sequence[str]) -> tuple[str, ...]:
    """Those of ``paths`` in the checkout at ``root`` that are not as upstream has them; without an upstream all that
    are there."""
    blobs = upstream.blobs if upstream else {}
    there = [path for path in paths if (root / path).is_file()]
    return tuple(path for path in there if _content(root / path) != blobs.get(path))


def _content(path: Path) -> str:
    """The blob of a file; empty of one that is none, or larger than any that is taken."""
    try:
        return _blob(regular_file.read(path.resolve(), LARGEST_TEXT))
    except OSError:
        return ""


def _find(repository: GitRepository) -> UpstreamCommit | None:
    tracking = _output(repository, "rev-parse", "--symbolic-full-name", "@{upstream}")
    default = _output(repository, "symbolic-ref", "refs/remotes/origin/HEAD")
    branch = tracking or default
    if not branch.startswith("refs/remotes/"):
        return None
    remote, _, ref = branch.removeprefix("refs/remotes/").partition("/")
    url = credentials.split(_output(repository, "config", "--get", f"remote.{remote}.url")).url
    commit = _output(repository, "merge-base", "HEAD", branch)
    if not url or url.startswith(".") or not commit:
        return None
    listed = git_command.run_local(repository, ["ls-tree", "-r", "-z", "--full-tree", commit], seconds=_SECONDS).output
    pairs = (entry.partition(b"\t") for entry in listed.split(b"\0") if entry)
    blobs = {name.decode("utf-8", "surrogateescape"): meta.split()[2].decode() for meta, _, name in pairs}
    return UpstreamCommit(url, DEFAULT_BRANCH if branch == default else ref, commit, blobs)


def _output(repository: GitRepository, *arguments: str) -> str:
    result = git_command.run_local(repository, arguments, seconds=_SECONDS)
    return result.text if result.status == 0 else ""


def _blob(content: bytes) -> str:
    """The id of a file's content in git."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
