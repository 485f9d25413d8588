"""Reads files from untrusted repositories: a mirror, the project's own history, a local checkout.

Only plain files leave a mirror, at paths that stay in their folder. Nothing is checked out, so no hook, filter or
submodule of a repository ever runs."""

from __future__ import annotations

import posixpath
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from builder.base.errors import SourceError, UsageError
from builder.base.tar_stream import is_unsafe
from builder.base.words import shell_word
from builder.definitions.mod import LARGEST_FILE, LARGEST_MOD, MOST_FILES, PlainFile, ambiguous_names, unfit_name
from builder.definitions.source_patches import LARGEST_PATCH
from builder.sources import mirror, patches
from builder.sources.git import (
    SUBMODULE_MODE,
    GitRepository,
    GitResult,
    printable,
    run_checked,
    run_in_project,
    shorten,
    split,
    without_filters,
)

if TYPE_CHECKING:
    from builder.sources.mirror import TreeEntry


_PLAIN = {"100644": False, "100664": False, "100755": True}
_LINK = "120000"
_LFS = b"version https://git-lfs.github.com/spec/"
_MOST_TOLD = 10


@mirror.under_lock
def find_commit(repository: GitRepository, ref: str) -> tuple[str, tuple[str, ...]]:
    """Returns the commit of ``ref`` (or ``HEAD``), and the sorted paths of its files with plain names. The mirror keeps
    the commit. Raises SourceError."""
    commit = ref.lower()
    if not mirror.is_commit(commit):
        commit = mirror.commit_of(repository, mirror.list_refs(repository), ref)
    mirror.ensure_commit(repository, commit)
    paths = (entry.path for entry in mirror.tree_entries(repository, commit))
    return commit, tuple(sorted(path for path in paths if not _unfit_path(path)))


@mirror.under_lock
def read_foreign_files(repository: GitRepository, commit: str, *paths: str) -> tuple[PlainFile, ...]:
    """Returns the files of ``commit`` at or below these ``paths`` (``""`` is the whole tree), sorted. Their own paths
    are relative to the folder that contains all of them. A link to another of these files becomes a copy. Raises
    SourceError with all refused entries: links that lead out, submodules, invalid names, content that is too large, and
    pointers to Git LFS."""
    mirror.ensure_commit(repository, commit)
    entries = {each.path: each for each in mirror.tree_entries(repository, commit, *filter(None, paths))}
    path = posixpath.commonpath(paths)
    if len(entries) > MOST_FILES:
        there = f"{repository.address.url} has {len(entries):,} files in {path or 'it'}"
        raise SourceError(f"{there}; at most {MOST_FILES:,} are copied")
    wrong = ambiguous_names(entries)
    for name, entry in entries.items():
        is_file = entry.mode in _PLAIN or entry.mode == _LINK
        kind = "" if is_file else "a submodule" if entry.mode == SUBMODULE_MODE else "not a plain file"
        if reason := _unfit_path(name) or kind:
            wrong[name] = reason
    _refuse(repository, wrong)
    mirror.ensure_blobs(repository, (entry.blob for entry in entries.values()))
    _refuse(repository, _too_large(repository, entries))
    blobs = mirror.read_blobs(repository, (entry.blob for entry in entries.values()))
    contents = {name: blobs[entry.blob] for name, entry in entries.items()}
    sources = {name: _followed(name, entries, contents, path) for name in entries}
    outside = {name: contents[name][:80].decode("utf-8", "replace") for name in entries if sources[name] is None}
    wrong = {name: f"a link to {printable(to)}, which is not a file in the folder" for name, to in outside.items()}
    _refuse(repository, wrong)
    above = posixpath.dirname(path) if list(entries) == [path] else path
    files = tuple(
        PlainFile(name[len(above) + bool(above) :], _PLAIN[entries[source].mode], contents[source])
        for name, source in sorted(sources.items())
        if source is not None
    )
    pointers = {file.path: "a Git LFS pointer, not the content" for file in files if file.content.startswith(_LFS)}
    _refuse(repository, pointers)
    return files


def _unfit_path(path: str) -> str:
    """The reason why a file must not have this path here, or nothing."""
    if is_unsafe(path) or ".git" in path.lower().split("/"):
        return "its path leads outside the folder or into .git, contains a backslash, or has a name that is too long"
    return unfit_name(path)


def _too_large(repository: GitRepository, entries: dict[str, TreeEntry]) -> dict[str, str]:
    lines = "".join(f"{entry.blob}\n" for entry in entries.values()).encode()
    listed = run_checked(repository, ["cat-file", "--batch-check=%(objectsize)"], lines).text.split()
    sizes = dict(zip(entries, map(int, listed), strict=True))
    large = [(name, size, LARGEST_FILE) for name, size in sizes.items() if size > LARGEST_FILE]
    if not large and (total := sum(sizes.values())) > LARGEST_MOD:
        large = [("all files together", total, LARGEST_MOD)]
    return {name: f"{size:,} bytes; at most {most:,} are copied" for name, size, most in large}


def _followed(name: str, entries: dict[str, TreeEntry], contents: dict[str, bytes], folder: str) -> str | None:
    """The plain file ``name``, after links within ``folder`` are followed; None if a link leads elsewhere."""
    for _ in range(len(entries)):
        if entries[name].mode != _LINK:
            return name
        target = contents[name].decode("utf-8", "surrogateescape")
        name = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
        if target.startswith("/") or name not in entries or (folder and not name.startswith(f"{folder}/")):
            return None
    return None


def _refuse(repository: GitRepository, wrong: dict[str, str]) -> None:
    if not wrong:
        return
    shown = [f"{printable(name.encode(errors='replace').decode())}: {reason}" for name, reason in wrong.items()]
    if len(shown) > _MOST_TOLD:
        shown[_MOST_TOLD:] = [f"and {len(shown) - _MOST_TOLD} more"]
    raise SourceError(f"{repository.address.url} has files that cannot be copied:\n" + "\n".join(shown))


# Files and folders in the project's git history. The repository is untrusted: a clone may contain a bare repository
# whose configuration names programs.


def read_file(folder: Path, revision: str, name: str) -> bytes | None:
    """Returns the file ``name`` of ``folder`` in ``revision``; None if the revision lacks it. Raises UsageError if the
    folder is not in a git repository, or if the revision does not exist."""
    repository = run_in_project(folder, "rev-parse", "--git-dir")
    if repository.is_without_git:
        raise UsageError("git is not installed", hint="install it: apt-get install git")
    _refuse_other_owner(repository)
    if repository.status:
        raise UsageError(
            f"{folder} is not in a git repository", hint="run the command in the clone that has the history"
        )
    commit = "" if revision.startswith("-") else _verified(folder, revision)
    if not commit:
        hint = "`git log images.lock` shows the revisions that changed it"
        raise UsageError(f"git has no revision `{revision}`", hint=hint)
    content = run_in_project(folder, "cat-file", "blob", f"{commit}:./{name}")
    return None if content.status else content.output


def unmerged_stages(folder: Path, name: str) -> frozenset[int]:
    """Returns the stages of ``name`` in git's index during an unfinished merge, rebase, cherry-pick or `stash pop`: 1
    is the common ancestor, 2 ours, 3 theirs. Empty otherwise."""
    return frozenset(stage for stage, _ in _unmerged(folder, name))


def unmerged_files(folder: Path) -> frozenset[str]:
    """Returns the files below ``folder`` that git's index has in several versions, relative to ``folder``."""
    return frozenset(file for _, file in _unmerged(folder, "."))


def _unmerged(folder: Path, name: str) -> Iterator[tuple[int, str]]:
    """The stage and the path of each version that an unfinished merge left."""
    listed = run_in_project(folder, "ls-files", "--unmerged", "-z", "--", name)
    _refuse_other_owner(listed)
    for entry in [] if listed.status else listed.output.decode("utf-8", "replace").split("\0")[:-1]:
        facts, _, file = entry.partition("\t")
        yield int(facts.split(" ")[2]), file


def _refuse_other_owner(result: GitResult) -> None:
    """Raises UsageError if git did not read a repository because it belongs to another user."""
    if refused := re.search(r"dubious ownership in repository at '(.*)'", result.stderr):
        message = f"git does not read {refused[1]}, because it belongs to another user"
        hint = f"if you trust it: `git config --global --add safe.directory {shell_word(refused[1])}`"
        raise UsageError(message, hint=hint)


def read_stage(folder: Path, stage: int, name: str) -> bytes | None:
    """Returns the file ``name`` in a stage of git's index (0 for a merged file); None if the stage lacks it."""
    content = run_in_project(folder, "cat-file", "blob", f":{stage}:./{name}")
    return None if content.status else content.output


def mark_conflict(base: Path, ours: Path, theirs: Path) -> None:
    """Merges three versions of a text into ``ours`` like git, with conflict markers if both sides changed a line."""
    labels = ("-L", "ours", "-L", "base", "-L", "theirs")
    run_in_project(
        ours.parent, "merge-file", "-q", *labels, *map(str, (ours.resolve(), base.resolve(), theirs.resolve()))
    )


def last_change(folder: Path, name: str, before: str) -> str:
    """Returns the last commit before a moment (RFC 3339) that changed ``name``; empty if there is none."""
    return _line(run_in_project(folder, "log", "-1", "--format=%H", f"--before={before}", "HEAD", "--", name))


def extract_folder(project: Path, revision: str, name: str, into: Path) -> bool:
    """Writes the files of the project's folder ``name`` in ``revision`` into the folder ``into``. False if the folder
    or the revision does not exist, or without git. Links and submodules are left out. `git archive` is not used: it
    runs programs that the repository's configuration names."""
    listed = run_in_project(project, "ls-tree", "-r", "-z", revision, "--", f"{name}/")
    files: list[tuple[int, str, bytes]] = []
    for entry in filter(None, [] if listed.status else listed.output.split(b"\0")):
        meta, _, file = entry.partition(b"\t")
        (mode, _, blob), path = meta.decode().split(), file.decode("utf-8", "surrogateescape")
        if mode in _PLAIN and not is_unsafe(path):
            content = run_in_project(project, "cat-file", "blob", blob)
            if content.status:  # a partial clone, or a damaged one
                return False
            files.append((0o755 if _PLAIN[mode] else 0o644, path, content.output))
    for permissions, path, text in files:
        (into / path).parent.mkdir(parents=True, exist_ok=True)
        (into / path).write_bytes(text)
        (into / path).chmod(permissions)
    return bool(files)


def begin(folder: Path) -> bool:
    """Creates a git repository in ``folder``. False if the folder is already in a repository, or without git."""
    in_one = run_in_project(folder, "rev-parse", "--git-dir").status == 0
    return not in_one and run_in_project(folder, "init", "--quiet").status == 0


def commit_of(folder: Path) -> str:
    """The commit that is checked out in ``folder``, the top of a repository; empty if ``folder`` is not one."""
    return _verified(folder, "HEAD")


def origin_of(folder: Path) -> str:
    """The address that the repository in ``folder`` was cloned from; empty if it is not a clone."""
    return _line(run_in_project(folder, "config", "--get", "remote.origin.url"))


def _line(result: GitResult) -> str:
    return "" if result.status else result.text


def _verified(folder: Path, revision: str) -> str:
    return _line(run_in_project(folder, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}"))


# A local checkout as a source (``path:``): its commit, and its changes as one diff on top of the commit. The changes
# include tracked files, and untracked files that git does not ignore. The checkout itself stays unchanged.

# An address that other machines can reach, also an ssh address in the form of scp.
_REMOTE = re.compile(r"(?:https?|ssh|git)://.+")
_SCP = re.compile(r"(?P<host>[\w.-]+@[\w.-]+):(?P<path>[^/:].*)")


def read_checkout(folder: Path) -> tuple[str, bytes]:
    """The commit (40 hex digits) of a checkout, and the diff of its changes, which may be empty. Raises SourceError if
    ``folder`` is not the top of a checkout, or if a diff cannot represent the changes."""
    import tempfile

    missing = GitResult(1, b"", "the folder does not exist")
    top = run_in_project(folder, "rev-parse", "--show-toplevel") if folder.is_dir() else missing
    commit = "" if top.status else commit_of(folder)
    if not commit or not folder.samefile(top.text):
        reason = f"{folder} lies inside the checkout {top.text}"
        if not commit:
            why = f": {shorten(top.stderr)}" if top.stderr else ""
            reason = f"{folder} is not a git checkout with a commit{why}"
        message = f"`path` does not name a checkout: {reason}"
        hint = "correct the `path` of the source in image.yaml; `git log` has to work in that folder"
        raise SourceError(message, hint=hint)
    if unmerged := sorted(unmerged_files(folder)):
        message = f"{folder} is in the middle of a merge, with conflicts in {', '.join(unmerged[:_MOST_TOLD])}"
        hint = "resolve the conflicts and `git add` the files, or abort the merge: `git status` there shows how"
        raise SourceError(message, hint=hint)
    # A copy of the checkout's index: git then reads only changed files.
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
        own_filters = without_filters(folder)
        _checked(folder, "add", "--all", environ=environ, settings=own_filters)
        # Git also reads files here: those that changed at the moment when the index was written.
        tree = _checked(folder, "write-tree", environ=environ, settings=own_filters).text
        _refuse_submodules(folder, commit, tree, environ, own_filters)
        diff = _checked(folder, *patches.DIFF, commit, tree, environ=environ).output
    if len(diff) > LARGEST_PATCH:
        message = f"{folder} has more than {LARGEST_PATCH >> 20} MiB of uncommitted changes"
        raise SourceError(message, hint="commit the changes, or list files that are not sources in .gitignore")
    return commit, diff


def refuse_shallow(folder: Path) -> None:
    """Raises SourceError if a checkout is a shallow clone: git cannot serve a commit without its history."""
    if _git(folder, "rev-parse", "--is-shallow-repository") == "true":
        message = f"{folder} is a shallow clone, and no remote has its commit, so git cannot read the commit's history"
        raise SourceError(message, hint="complete the clone with `git fetch --unshallow`, or push its commit")


def remotes_with(folder: Path, commit: str) -> tuple[str, ...]:
    """The addresses of the remotes that have the commit, as far as the checkout knows, without logins."""
    refs = _git(folder, "for-each-ref", f"--contains={commit}", "--format=%(refname:lstrip=2)", "refs/remotes").split()
    addresses = []
    for name in _git(folder, "remote").splitlines():
        url = run_in_project(folder, "config", "--get", f"remote.{name}.url").text
        if scp := _SCP.fullmatch(url):
            url = f"ssh://{scp['host']}/{scp['path']}"
        if _REMOTE.fullmatch(url) and any(ref.startswith(f"{name}/") for ref in refs):
            addresses.append(split(url).url)
    return tuple(addresses)


def _refuse_submodules(
    folder: Path, commit: str, tree: str, environ: Mapping[str, str], settings: Sequence[tuple[str, str]]
) -> None:
    """Raises SourceError if a submodule, or another repository inside, differs from the commit."""
    raw = _git(folder, "diff-tree", "-r", "--raw", "--no-renames", commit, tree, environ=environ).splitlines()
    moved = [line.partition("\t")[2] for line in raw if SUBMODULE_MODE in line[: len(":160000 160000")]]
    status = _checked(folder, "status", "--porcelain=v2", "--ignore-submodules=untracked", settings=settings)
    states = status.text.splitlines()
    # The third field describes a submodule: its commit, its tracked files, its untracked files.
    dirty = [line.split(" ", 8)[8] for line in states if re.match(r"1 \S+ S(C|.M)", line)]
    if changed := sorted({*moved, *dirty}):
        message = f"{folder} has a submodule or another repository that differs from its commit: {', '.join(changed)}"
        hint = "commit the change in both repositories, or restore the submodule: `git submodule update`"
        raise SourceError(message, hint=hint)


def _git(folder: Path, *arguments: str, environ: Mapping[str, str] | None = None) -> str:
    return _checked(folder, *arguments, environ=environ).text


def _checked(
    folder: Path,
    *arguments: str,
    environ: Mapping[str, str] | None = None,
    settings: Sequence[tuple[str, str]] = (),
) -> GitResult:
    result = run_in_project(folder, *arguments, environ=environ, settings=settings)
    if result.status:
        hint = "`git status` has to work in that folder, and TMPDIR needs room for a copy of the changes"
        raise SourceError(f"git cannot read the checkout {folder}: {shorten(result.stderr)}", hint=hint)
    return result
