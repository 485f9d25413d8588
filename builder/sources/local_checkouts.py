"""A local checkout as a source: the commit that it is at, and its changes as one diff on top of that.

Its changes are those of tracked files, and the untracked files that git does not ignore. Nothing in it is changed."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.base.errors import SourceError
from builder.definitions.source_patches import LARGEST_PATCH
from builder.sources import git, mirror, patches

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# An address that others may reach, too; that of ssh in the form of scp as well.
_REMOTE = re.compile(r"(?:https?|ssh|git)://.+")
_SCP = re.compile(r"(?P<host>[\w.-]+@[\w.-]+):(?P<path>[^/:].*)")


@dataclass(frozen=True)
class CheckoutState:
    """The state of a checkout: its commit (40 hex digits), and the diff of its changes, empty where it has none."""

    commit: str
    diff: bytes


def read_checkout(folder: Path) -> CheckoutState:
    """Raises SourceError where ``folder`` is not the top of a checkout, and for changes that a diff cannot hold."""
    import tempfile

    top = git.run_in_project(folder, "rev-parse", "--show-toplevel").text if folder.is_dir() else ""
    commit = git.run_in_project(folder, "rev-parse", "--verify", "--quiet", "HEAD^{commit}").text if top else ""
    if not commit or not folder.samefile(top):
        reason = f"{folder} lies in the one at {top}" if top else f"{folder} is no checkout of git with a commit"
        raise SourceError(f"`path` names no checkout: {reason}", hint="correct the `path` of the source in image.yaml")
    # An index of its own, which begins as that of the checkout: git then reads only what was changed since.
    with tempfile.TemporaryDirectory(prefix="builder-") as name:
        index, objects = f"{name}/index", _git(folder, "rev-parse", "--git-path", "objects")
        own = folder / _git(folder, "rev-parse", "--git-path", "index")
        if own.exists():
            shutil.copyfile(own, index)
        environ = {
            "GIT_INDEX_FILE": index,
            "GIT_OBJECT_DIRECTORY": name,
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": f'"{folder / objects}"',
        }
        _git(folder, "add", "--all", environ=environ)
        tree = _git(folder, "write-tree", environ=environ)
        _refuse_submodules(folder, commit, tree, environ)
        diff = git.run_in_project(folder, *patches.DIFF, commit, tree, environ=environ).output
    if len(diff) > LARGEST_PATCH:
        raise SourceError(
            f"{folder} has changes of more than {LARGEST_PATCH >> 20} MiB beside its commit",
            hint="commit them, or name in .gitignore what is no source",
        )
    return CheckoutState(commit, diff)


def remotes_with(folder: Path, commit: str) -> tuple[str, ...]:
    """The addresses of the remotes that have the commit, as far as the checkout knows, without logins."""
    refs = _git(folder, "for-each-ref", f"--contains={commit}", "--format=%(refname:lstrip=2)", "refs/remotes").split()
    addresses = []
    for name in _git(folder, "remote").splitlines():
        url = git.run_in_project(folder, "config", "--get", f"remote.{name}.url").text
        if scp := _SCP.fullmatch(url):
            url = f"ssh://{scp['host']}/{scp['path']}"
        if _REMOTE.fullmatch(url) and any(ref.startswith(f"{name}/") for ref in refs):
            addresses.append(git.split(url).url)
    return tuple(addresses)


def _refuse_submodules(folder: Path, commit: str, tree: str, environ: Mapping[str, str]) -> None:
    """Raises SourceError for a submodule, or another repository inside, that is not as the commit has it."""
    raw = _git(folder, "diff-tree", "-r", "--raw", "--no-renames", commit, tree, environ=environ).splitlines()
    moved = [line.partition("\t")[2] for line in raw if mirror.SUBMODULE_MODE in line[: len(":160000 160000")]]
    states = _git(folder, "status", "--porcelain=v2", "--ignore-submodules=untracked").splitlines()
    # The third field tells of a submodule: its commit, its tracked files, its untracked ones.
    dirty = [line.split(" ", 8)[8] for line in states if re.match(r"1 \S+ S(C|.M)", line)]
    if changed := sorted({*moved, *dirty}):
        raise SourceError(
            f"{folder} has a submodule or another repository that is not as its commit has it: {', '.join(changed)}",
            hint="commit it there and here, or put it back: `git submodule update`",
        )


def _git(folder: Path, *arguments: str, environ: Mapping[str, str] | None = None) -> str:
    result = git.run_in_project(folder, *arguments, environ=environ)
    if result.status:
        raise SourceError(f"git cannot read the checkout {folder}: {git.shorten(result.stderr)}")
    return result.text
