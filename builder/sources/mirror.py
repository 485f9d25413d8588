"""A mirror is a local, bare copy of a git repository, without the contents of files until they are needed.

Pinned commits stay in the mirror: each has a ref of ours (``refs/builder/pins/COMMIT``,
``refs/builder/pulls/NUMBER/COMMIT``), so neither a force-push upstream nor git's own garbage collection removes it.
A function that changes a mirror requires its lock: the function or its caller is decorated with ``under_lock``."""

from __future__ import annotations

import functools
import hashlib
import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from shutil import rmtree
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar

from builder.base import files, words
from builder.base.errors import SourceError
from builder.base.project import below_project
from builder.base.values import dataclass, replace
from builder.base.words import did_you_mean, parse_version
from builder.lock.model import GitPin
from builder.sources import git
from builder.sources.git import (
    ANSWER_SECONDS,
    SUBMODULE_MODE,
    DamagedError,
    GitRepository,
    MissingError,
    Notify,
    damaged,
    discard,
    printable,
    run_checked,
    run_local,
    run_remote,
    shorten,
)

P = ParamSpec("P")
T = TypeVar("T")


def locate(mirrors: Path, url: str, notify: Notify = discard) -> GitRepository:
    """Returns the mirror of ``url``, which need not exist yet. Raises SourceError if it is not an address."""
    address = git.split(url.strip())
    is_odd = not address.url or not address.url.isprintable()
    if is_odd or "::" in address.url.partition("/")[0] or address.url.startswith("-"):
        message = f"git cannot use the address `{address.url}`"
        hint = "addresses look like https://host/owner/repository.git, ssh://git@host/… or /a/folder"
        raise SourceError(message, hint=hint)
    parts = re.findall(r"[A-Za-z0-9._-]+", address.url.removesuffix("/").removesuffix(".git"))[-2:]
    key = hashlib.sha256(address.url.encode()).hexdigest()[:12]
    return GitRepository(mirrors.absolute() / f"{'-'.join(parts)[-60:].lstrip('.-')}-{key}.git", address, notify)


def under_lock(action: Callable[Concatenate[GitRepository, P], T]) -> Callable[Concatenate[GitRepository, P], T]:
    """Decorates a function of a mirror: creates a missing mirror, and holds its lock during the call. If the mirror is
    damaged, ``action`` is called again on a new mirror. Raises SourceError."""

    @functools.wraps(action)
    def locked(repository: GitRepository, /, *args: P.args, **kwargs: P.kwargs) -> T:
        path, address, notify = repository.path, repository.address.url, repository.notify
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            waiting = f"waiting for the mirror of {address}, which is in use"
            with files.locked(path.with_suffix(".lock"), on_wait=lambda: notify(waiting)):
                ensure(repository)
                try:
                    return action(repository, *args, **kwargs)
                except DamagedError as error:
                    # The damaged mirror may contain commits that upstream no longer has.
                    aside = path.with_name(f"{path.name}.damaged")
                    notify(f"{error.message}; keeping it as {aside.name}, and fetching it again")
                    rmtree(aside, ignore_errors=True)
                    path.rename(aside)
                    ensure(repository)
                    return action(repository, *args, **kwargs)
        except OSError as error:
            message = f"the mirror of {address} in {path} cannot be used: {error.strerror or error}"
            raise SourceError(
                message, hint="make room, or make the folder writable; then run the command again"
            ) from None

    return locked


@under_lock
def resolve_ref(repository: GitRepository, ref: str) -> GitPin:
    """Returns the pin of a branch, tag or commit, and keeps its commit in the mirror. A full commit in the mirror needs
    no network. Raises SourceError for an unknown or ambiguous ref, an abbreviated commit, no access or no answer."""
    refs = None if is_commit(ref.lower()) else list_refs(repository)
    commit = commit_of(repository, refs, ref) if refs else ref.lower()
    ensure_commit(repository, commit)
    if refs:
        update_tags(repository, refs.tags)
    version = version_of(repository, commit)
    return GitPin(repository.address.url, ref, commit, version, date_of(repository, commit))


_DESCRIBED = re.compile(r"(?P<tag>.+)-(?P<distance>[0-9]+)-g[0-9a-f]{40}")
_DESCRIBE = ["describe", "--tags", "--long", "--always", "--abbrev=40", "--match=v[0-9]*", "--match=[0-9]*"]
_UNUSABLE_AT_MOST = 20  # tags that only look like versions, before giving up


def version_of(repository: GitRepository, commit: str) -> str:
    """Returns the version (PEP 440) of ``commit``: the version of its tag, or else a development release of the version
    after the nearest tag; ``0.1.dev…`` if there is no tag. This is setuptools-scm's ``guess-next-dev`` with two
    exceptions: tags that are not plain versions, such as FlashInfer's nightly tags, are ignored, and the commit has
    seven digits, because git's choice depends on the number of objects in the repository."""
    exclusions: list[str] = []
    for _ in range(_UNUSABLE_AT_MOST):
        described = _DESCRIBED.fullmatch(run_checked(repository, [*_DESCRIBE, *exclusions, commit]).text)
        if not described:
            break
        if version := _highest_version(repository, described["tag"]):
            distance = int(described["distance"])
            return f"{next_version(version)}.dev{distance}+g{commit[:7]}" if distance else version
        exclusions.append(f"--exclude={described['tag']}")
    return f"0.1.dev{run_checked(repository, ['rev-list', '--count', commit]).text}+g{commit[:7]}"


def date_of(repository: GitRepository, commit: str) -> str:
    return _rfc3339(run_checked(repository, ["log", "--no-walk", "--format=%ct", commit]).text)


def _rfc3339(seconds: str) -> str:
    try:
        return words.timestamp_of(datetime.fromtimestamp(int(seconds), UTC))
    except (ValueError, OverflowError, OSError):
        raise SourceError(f"a commit has no valid date: {seconds[:40] or 'none'} seconds after 1970") from None


def next_version(version: str) -> str:
    """Guesses the version after ``version``: ``0.19.1rc1`` after ``0.19.1rc0``; after a development release, the
    version in development."""
    public = version.partition("+")[0]
    release, developing, _ = public.partition(".dev")
    if developing:
        return release
    number = re.fullmatch(r"(.*?)([0-9]+)", public)
    return f"{number[1]}{int(number[2]) + 1}" if number else public


def _highest_version(repository: GitRepository, tag: str) -> str:
    """The highest version among the tags of the commit of ``tag``: a release is often also its last candidate."""
    commit = run_checked(repository, ["rev-parse", "--verify", f"refs/tags/{tag}^{{commit}}"]).text
    listed = ["for-each-ref", "--format=%(refname:strip=2)", f"--points-at={commit}", "refs/tags"]
    versions = filter(None, map(parse_version, run_checked(repository, listed).text.splitlines()))
    return str(max(versions, default=""))


@dataclass(frozen=True)
class RemoteRefs:
    """The refs of a repository, by name. ``tags`` gives the tag object of an annotated tag, ``peeled`` its commit."""

    branches: dict[str, str]
    tags: dict[str, str]
    peeled: dict[str, str]


def list_refs(repository: GitRepository) -> RemoteRefs:
    """Lists all branches and tags. Pull requests are left out: vLLM's alone have several megabytes."""
    refs = RemoteRefs({}, {}, {})
    result = run_remote(repository, ["ls-remote", "--quiet", "--heads", "--tags", "source"], seconds=ANSWER_SECONDS)
    for line in result.text.splitlines():
        commit, _, ref = line.partition("\t")
        if len(commit) == 64:
            url = repository.address.url
            message = f"{url} names its objects by SHA-256, but builder pins only commits of 40 hex digits"
            raise SourceError(message, hint="use a repository with the object format sha1, which is git's default")
        kind, _, name = ref.removeprefix("refs/").partition("/")
        if kind == "heads":
            refs.branches[name] = commit
        elif name.endswith("^{}"):
            refs.peeled[name.removesuffix("^{}")] = commit
        else:
            refs.tags[name] = commit
    return refs


def is_commit(ref: str) -> bool:
    """True if ``ref`` is a full commit, which is never looked up."""
    return bool(re.fullmatch(r"[0-9a-f]{40}", ref))


def commit_of(repository: GitRepository, refs: RemoteRefs, ref: str) -> str:
    """Returns the commit of the branch or tag ``ref``, also ``refs/heads/NAME`` or ``HEAD``. Raises MissingError if it
    does not exist, SourceError if it is ambiguous or an abbreviated commit."""
    url = repository.address.url
    branch = refs.branches.get(ref.removeprefix("refs/heads/")) if not ref.startswith("refs/tags/") else None
    name = ref.removeprefix("refs/tags/")
    tag = refs.peeled.get(name, refs.tags.get(name)) if not ref.startswith("refs/heads/") else None
    if branch and tag:
        message = f"`{ref}` is both a branch ({branch[:7]}) and a tag ({tag[:7]}) of {url}"
        raise SourceError(message, hint=f"write refs/heads/{ref} or refs/tags/{ref}")
    if commit := branch or tag or (_other_ref(repository, ref) if ref.startswith("refs/") or ref == "HEAD" else None):
        return commit
    if re.fullmatch(r"[0-9a-f]{4,39}", ref, flags=re.IGNORECASE):
        whole = run_local(repository, ["rev-parse", "--quiet", "--verify", f"{ref.lower()}^{{commit}}"]).text
        raise SourceError(
            f"`{ref}` is not a branch or tag of {url}, and a commit has 40 digits",
            hint=f"write {whole or 'all 40 digits of the commit: a shorter prefix may later match another commit'}",
        )
    hint = did_you_mean(ref, [*refs.branches, *refs.tags], most=3) or "check the branches and tags of that repository"
    raise MissingError(f"{url} has no branch or tag `{ref}`", hint=hint)


def _other_ref(repository: GitRepository, ref: str) -> str | None:
    result = run_remote(repository, ["ls-remote", "--quiet", "source", ref], seconds=ANSWER_SECONDS)
    pairs = (line.partition("\t") for line in result.text.splitlines())
    return next((commit for commit, _, name in pairs if name == ref), None)


_COMMENT = re.compile(r"(?:^|\s+)#.*")


@dataclass(frozen=True)
class Commit:
    """A commit. ``date`` is the committer's date (RFC 3339 UTC); ``title`` is safe to print."""

    commit: str
    date: str
    title: str


@dataclass(frozen=True)
class CommitRange:
    """The commits between two commits: ``total`` is their number, ``matching`` is the number that pass the filter, and
    ``commits`` are the newest of these, newest first. ``dropped`` is the number of commits that only the old history
    has."""

    commits: tuple[Commit, ...]
    total: int
    dropped: int
    matching: int


@dataclass(frozen=True)
class CommitFilter:
    """The commits to list: at most ``limit``, with ``grep`` in their message (ignoring case), that change one of
    ``paths``."""

    grep: str = ""
    paths: tuple[str, ...] = ()
    limit: int = 200


ALL_COMMITS = CommitFilter()
_COUNT_BOTH = ["rev-list", "--count", "--left-right"]


@under_lock
def commits_between(
    repository: GitRepository, old: str, new: str, commit_filter: CommitFilter = ALL_COMMITS
) -> CommitRange:
    """Counts the commits in the history of ``new`` that ``old`` (40 hex digits) lacks, and lists the commits that pass
    the filter. Needs no network if the mirror has both. Raises SourceError."""
    for commit in (old, new):
        ensure_commit(repository, commit)
    return _range(repository, old, new, commit_filter)


def commits_present(repository: GitRepository, old: str, new: str, limit: int) -> CommitRange | None:
    """Like `commits_between`, but None if the mirror lacks a commit. Needs no network, and changes nothing."""
    if not repository.path.is_dir() or run_local(repository, [*_COUNT_BOTH, f"{old}...{new}"]).status:
        return None
    return _range(repository, old, new, CommitFilter(limit=limit))


def _range(repository: GitRepository, old: str, new: str, commit_filter: CommitFilter) -> CommitRange:
    dropped, total = map(int, run_checked(repository, [*_COUNT_BOTH, f"{old}...{new}"]).text.split())
    text = commit_filter.grep
    grep = ["--fixed-strings", "--regexp-ignore-case", f"--grep={text}"] if text else []
    selection = [*grep, f"{old}..{new}", "--", *commit_filter.paths]
    matching = int(run_checked(repository, ["rev-list", "--count", *selection]).text)
    options = ["-z", f"--max-count={commit_filter.limit}", "--encoding=UTF-8", "--format=%H %ct %s"]
    output = run_checked(repository, ["log", *options, *selection]).output
    entries = (line.split(" ", 2) for line in output.decode("utf-8", "replace").split("\0") if line)
    commits = tuple(Commit(commit, _rfc3339(seconds), printable(title)) for commit, seconds, title in entries)
    return CommitRange(commits, total=total, dropped=dropped, matching=matching)


@under_lock
def read_files(repository: GitRepository, commit: str, paths: Collection[str]) -> dict[str, bytes]:
    """Reads the files ``paths`` of ``commit``. Missing files are left out. Raises SourceError."""
    return _read(repository, commit, paths)


def read_present(repository: GitRepository, commit: str, paths: Collection[str]) -> dict[str, bytes]:
    """Reads the files ``paths`` of ``commit`` whose contents the mirror has. Needs no network, and changes nothing."""
    if not repository.path.is_dir():
        return {}
    results = {path: run_local(repository, ["cat-file", "blob", f"{commit}:{path}"]) for path in paths}
    return {path: result.output for path, result in results.items() if not result.status}


@under_lock
def read_requirements(repository: GitRepository, commit: str, path: str) -> tuple[str, ...]:
    """Returns the requirements in the file ``path`` of ``commit`` and in the files that it includes with ``-r``, each
    once, without comments and pip's options (indexes, hashes, constraints). Raises SourceError if a file is missing."""
    read: dict[str, tuple[str, ...]] = {}
    waiting = [posixpath.normpath(path)]
    while waiting:
        if (file := waiting.pop()) in read:
            continue
        content = _read(repository, commit, [file]).get(file)
        if content is None:
            message = f"{commit[:7]} of {repository.address.url} has no file {file}"
            raise SourceError(message, hint="correct `requirements` of the source in image.yaml")
        included, read[file] = parse_requirements(content.decode("utf-8-sig", "replace"))
        folder = posixpath.dirname(file)
        waiting += [posixpath.normpath(posixpath.join(folder, other)) for other in reversed(included)]
    return tuple(dict.fromkeys(requirement for own in read.values() for requirement in own))


def parse_requirements(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The files that a requirements.txt includes, and its own requirements, without comments and options. The format is
    pip's: https://pip.pypa.io/en/stable/reference/requirements-file-format/"""
    included: list[str] = []
    requirements: list[str] = []
    for line in text.replace("\\\r\n", " ").replace("\\\n", " ").splitlines():
        content = _COMMENT.sub("", line).strip()
        if include := re.fullmatch(r"(?:-r|--requirement)(?:\s*=\s*|\s*)(?P<file>\S+)", content):
            included.append(include["file"])
        elif content and not content.startswith("-"):
            requirements.append(" ".join(re.sub(r"\s+--?[a-z].*", "", content).split()))
    return tuple(included), tuple(requirements)


def _read(repository: GitRepository, commit: str, paths: Collection[str]) -> dict[str, bytes]:
    ensure_commit(repository, commit)
    blobs = blob_names(repository, commit, paths)
    ensure_blobs(repository, blobs.values())
    contents = read_blobs(repository, blobs.values())
    return {path: contents[blob] for path, blob in blobs.items()}


# Whole source trees are stored while upstream has them. BuildKit fetches the tree of a commit with its submodules from
# upstream; if that fails, the stored tree is used.

# Separate from the mirrors: submodules are shallow, and would truncate the history of a source at the same address.
_SUBMODULES = "submodules"
_ADDRESSES = ("https://", "http://", "ssh://", "git://", "git@")


Submodule = tuple[str, str, str]
"""A submodule of a tree: its path, its address, and the commit that the tree records."""


class _AddressError(SourceError):
    """A submodule at an address that neither BuildKit nor a mirror fetches from."""


def preserve(repository: GitRepository, commit: str) -> None:
    """Fetches the contents of all files of ``commit`` into the mirror, and the trees of its submodules next to it. If a
    submodule on another server cannot be fetched, this is only reported: BuildKit may reach that server. Raises
    SourceError, also for a submodule at an address that no build can fetch, such as a folder."""
    for submodule in _fetch_files(repository, commit):
        what = f"the submodule {submodule[0]} of {repository.address.url}"
        try:
            _preserve_submodule(repository.path.parent / _SUBMODULES, submodule, repository.notify)
        except _AddressError as error:
            hint = "in a copy of the repository, write its https:// address into .gitmodules; then build from the copy"
            raise SourceError(f"{what} cannot be built: {error.message}", hint=hint) from None
        except SourceError as error:
            repository.notify(f"{what} was not fetched: {error.message}")


@under_lock
def _fetch_files(repository: GitRepository, commit: str) -> tuple[Submodule, ...]:
    ensure_commit(repository, commit)
    ensure_blobs(repository, (name for mode, name, _ in tree_entries(repository, commit) if mode != SUBMODULE_MODE))
    return _submodules(repository, commit)


def check_out(repository: GitRepository, commit: str, folder: Path, submodules: Path | None = None) -> None:
    """Writes the files of ``commit`` and of its submodules, which `preserve` fetched, into ``folder``. Needs no
    network. Raises SourceError if the mirror lacks one, UnsafePathError if a link would take a submodule elsewhere: git
    also reads trees in which a link and a folder have the same name."""
    submodules = submodules or repository.path.parent / _SUBMODULES
    if not repository.path.exists():
        raise SourceError(f"there is no mirror of {repository.address.url}")
    for path, url, pinned in _write_files(repository, commit, folder):
        check_out(locate(submodules, url), pinned, below_project(folder, folder / path), submodules)


@under_lock
def _write_files(repository: GitRepository, commit: str, folder: Path) -> tuple[Submodule, ...]:
    folder.mkdir(parents=True, exist_ok=True)
    index = folder.with_name(f"{folder.name}.index")
    environ = {"GIT_WORK_TREE": str(folder), "GIT_INDEX_FILE": str(index)}
    result = run_local(repository, ["read-tree", "-u", "--reset", commit], environ=environ)
    index.unlink(missing_ok=True)
    if result.status:
        reason = shorten(result.stderr)
        raise SourceError(f"the mirror of {repository.address.url} does not contain all files of {commit}: {reason}")
    return _submodules(repository, commit)


def _preserve_submodule(mirrors: Path, submodule: Submodule, notify: Notify) -> None:
    path, url, commit = submodule
    if not url.startswith(_ADDRESSES):
        raise _AddressError(f"builder cannot fetch from the address `{url}`: write it with https://, ssh:// or git://")
    for nested in _fetch_submodule(locate(mirrors, url, notify), path, commit):
        _preserve_submodule(mirrors, nested, notify)


@under_lock
def _fetch_submodule(repository: GitRepository, path: str, commit: str) -> tuple[Submodule, ...]:
    ref = f"{PINS}/{commit}"
    if not run_checked(repository, ["for-each-ref", ref]).text:
        repository.notify(f"fetching {path} from {repository.address.url}")
        # All files of the commit, without its history.
        run_remote(repository, ["fetch", *_QUIETLY, "--no-filter", "--depth=1", _UPSTREAM, f"{commit}:{ref}"])
    return _submodules(repository, commit)


class TreeEntry(NamedTuple):
    """A file, link or submodule of a commit: its mode, object name and path."""

    mode: str
    blob: str
    path: str


def tree_entries(repository: GitRepository, commit: str, *paths: str) -> list[TreeEntry]:
    """All entries of a commit except folders; with ``paths``, only the entries at or below these paths."""
    listed = run_checked(repository, ["ls-tree", "-r", "-z", "--full-tree", commit, "--", *paths]).output
    pairs = (entry.partition("\t") for entry in listed.decode("utf-8", "surrogateescape").split("\0") if entry)
    return [TreeEntry(meta.split()[0], meta.split()[2], path) for meta, _, path in pairs]


def _submodules(repository: GitRepository, commit: str) -> tuple[Submodule, ...]:
    links = {path: name for mode, name, path in tree_entries(repository, commit) if mode == SUBMODULE_MODE}
    if not links:
        return ()
    settings = run_local(repository, ["config", f"--blob={commit}:.gitmodules", "--list", "-z"]).text
    values = dict(setting.partition("\n")[::2] for setting in settings.split("\0"))
    return tuple(
        (path, absolute_url(repository.address.url, url), links[path])
        for key, path in values.items()
        if key.startswith("submodule.") and key.endswith(".path") and path in links
        if values.get(f"{key.removesuffix('.path')}.update") != "none"  # neither git nor BuildKit fetches it
        if (url := values.get(f"{key.removesuffix('.path')}.url", ""))
    )


def absolute_url(parent: str, url: str) -> str:
    """Returns the address of a submodule. It may be relative to the address of its parent: ``../cutlass.git``."""
    if not url.startswith(("./", "../")):
        return url
    base = parent.rstrip("/")
    while url.startswith(("./", "../")):
        step, _, url = url.partition("/")
        base = base.rpartition("/")[0] if step == ".." else base
    return f"{base}/{url}"


PINS = "refs/builder/pins"
ALL_TAGS = "+refs/tags/*:refs/tags/*"
_UPSTREAM = "source"  # the name of the remote; the user's configuration may have settings for `origin`
_QUIETLY = ["--quiet", "--no-tags", "--no-prune", "--no-write-fetch-head", "--recurse-submodules=no"]
_FETCH = ["fetch", *_QUIETLY, "--filter=blob:none"]


def ensure_commit(repository: GitRepository, commit: str) -> None:
    """Ensures that ``commit`` (40 hex digits) is in the mirror with its history, under a ref of ours. Raises
    MissingError if the repository lacks the commit, SourceError if it is not a commit."""
    if has_commit(repository, commit):
        return
    repository.notify(f"fetching {commit[:7]} from {repository.address.url}")
    try:
        fetch_mirror(repository, f"{commit}:{PINS}/{commit}", ALL_TAGS)
    except MissingError as error:
        if "unadvertised" not in error.message:
            message = f"{repository.address.url} has no commit {commit}"
            pins = "`builder lock DEFINITION --update SOURCE` pins another"
            hint = f"check that the commit was pushed; after a force push, {pins}"
            raise MissingError(message, hint=hint) from None
        # A server older than git's protocol 2 provides only branches and tags, not other commits.
        fetch_mirror(repository, "+refs/heads/*:refs/builder/branches/*", ALL_TAGS)
        if not has_commit(repository, commit):
            message = f"no branch or tag of {repository.address.url} contains the commit {commit}"
            raise MissingError(message, hint="check that the commit was pushed") from None
    kind = run_checked(repository, ["cat-file", "-t", commit]).text
    if kind != "commit":
        run_checked(repository, ["update-ref", "-d", f"{PINS}/{commit}"])
        message = f"{commit} in {repository.address.url} is a {kind}, not a commit"
        raise SourceError(message, hint="write a commit or the tag's name")


def has_commit(repository: GitRepository, commit: str) -> bool:
    """True if the mirror has ``commit`` and its history. The commit then gets a ref of ours."""
    ref = f"{PINS}/{commit}"
    if run_checked(repository, ["for-each-ref", "--format=%(refname)", ref]).text:
        run_checked(repository, ["cat-file", "-e", f"{commit}^{{commit}}"])
        return True
    # After an interrupted fetch, a commit without a ref may lack its history.
    holders = ["for-each-ref", "--count=1", "--contains", commit]
    if commit not in _present(repository, [commit]) or not run_checked(repository, holders).text:
        return False
    run_checked(repository, ["update-ref", ref, commit])
    return True


def fetch_mirror(repository: GitRepository, *refs: str, other: str = "") -> None:
    """Fetches refs of the upstream or ``other`` repository. From the other repository, it also fetches the contents
    that only that repository has: later, contents can only be fetched from upstream."""
    if other:
        theirs = replace(repository, address=git.split(other))
        run_remote(theirs, ["fetch", *_QUIETLY, "--no-filter", theirs.address.url, *refs])
    else:
        run_remote(repository, [*_FETCH, _UPSTREAM, *refs])


def update_tags(repository: GitRepository, upstream: Mapping[str, str]) -> None:
    """Updates the mirror's tags to those of ``upstream`` (name to object). Needs no network if they are equal."""
    listed = ["for-each-ref", "--format=%(objectname) %(refname:strip=2)", "refs/tags"]
    lines = (line.partition(" ") for line in run_checked(repository, listed).text.splitlines())
    local = {name: commit for commit, _, name in lines}
    if deletions := "".join(f"delete refs/tags/{name}\n" for name in local if name not in upstream):
        run_checked(repository, ["update-ref", "--stdin"], deletions.encode())
    if any(local.get(name) != commit for name, commit in upstream.items()):
        fetch_mirror(repository, ALL_TAGS)


def blob_names(repository: GitRepository, commit: str, files: Iterable[str]) -> dict[str, str]:
    """Returns the object names of the ``files`` in ``commit``, by path, without folders and submodules."""
    # git would refuse all paths because of one that leads out of the tree.
    paths = sorted(file for file in files if {"", ".", ".."}.isdisjoint(file.split("/")))
    entries = tree_entries(repository, commit, *paths) if paths else []
    return {path: name for mode, name, path in entries if mode != SUBMODULE_MODE and path in paths}


def ensure_blobs(repository: GitRepository, names: Iterable[str]) -> None:
    """Ensures that the contents of these files (object names) are in the mirror, with one fetch for all of them."""
    wanted = set(names)
    missing = "".join(f"{blob}\n" for blob in sorted(wanted - _present(repository, sorted(wanted), "--objects")))
    if missing:
        # Like git's promisor-remote.c: negotiating about existing objects would save nothing.
        fetch = ["-c", "fetch.negotiationAlgorithm=noop", *_FETCH, "--stdin", _UPSTREAM]
        run_remote(repository, fetch, missing.encode())


def read_blobs(repository: GitRepository, names: Iterable[str]) -> dict[str, bytes]:
    """The contents of these files, by object name. One git reads all of them. Raises DamagedError."""
    wanted = sorted(set(names))
    command = ["cat-file", "--batch"]
    output = run_checked(repository, command, "".join(f"{name}\n" for name in wanted).encode()).output
    contents, at = {}, 0
    for name in wanted:
        header, _, _ = output[at : at + 200].partition(b"\n")
        kind, size = header.split()[1:] if header.count(b" ") == 2 else (b"missing", b"0")
        if kind != b"blob":
            raise damaged(repository, f"{name} is {kind.decode()}")
        begin = at + len(header) + 1
        at = begin + int(size) + 1
        contents[name] = output[begin : at - 1]
    return contents


def _present(repository: GitRepository, names: Iterable[str], *options: str) -> set[str]:
    """The ``names`` in the mirror: commits, and with ``--objects`` also contents of files. With ``--missing``, git only
    checks; any other command would first read every object that upstream promised."""
    command = ["rev-list", *options, "--no-walk", "--ignore-missing", "--missing=print", "--stdin"]
    return set(run_local(repository, command, "".join(f"{name}\n" for name in names).encode()).text.split())


# A mirror is created in a temporary folder, which is then renamed. git's fetches are atomic. The files of a killed git
# are removed.

# The files of a killed git: no other process works here while we hold the lock. Locks below `objects` belong to git's
# housekeeping after a fetch.
_LEFTOVERS = ["*.lock", "refs/**/*.lock", "objects/*.lock", "objects/info/**/*.lock", "objects/pack/*.lock"]
_LEFTOVERS += ["objects/pack/tmp_*", "objects/??/tmp_obj_*"]
# gitrepository-layout(5): other settings, alternate objects, and replaced parents of commits.
_NAME_OTHER_FOLDERS = ("commondir", "objects/info/alternates", "objects/info/http-alternates", "info/grafts")

# With extensions.partialClone, a git that is too old for missing objects refuses the mirror. `tagOpt` and `gc` apply if
# the user runs git here; `uploadpack` allows a mirror to be cloned from another mirror.
_CONFIGURATION = """\
[core]
	repositoryformatversion = 1
	bare = true
	logAllRefUpdates = false
[extensions]
	partialClone = source
[remote "source"]
	url = "{url}"
	promisor = true
	partialclonefilter = blob:none
	tagOpt = --no-tags
[gc]
	autoDetach = false
	pruneExpire = never
[maintenance]
	autoDetach = false
[uploadpack]
	allowFilter = true
	allowAnySHA1InWant = true
"""


def ensure(repository: GitRepository) -> None:
    """Creates the mirror. In an existing mirror, removes the files of killed processes, and foreign settings, whose
    programs git would run. Raises UnsafePathError if a link leads elsewhere."""
    path = repository.path
    below_project(path.parent, path)
    quoted = repository.address.url.replace("\\", "\\\\").replace('"', '\\"')
    config, settings = path / "config", _CONFIGURATION.format(url=quoted).encode()
    if not path.exists():
        # `git init --bare` would use the user's templates, and fails if a hook has set GIT_WORK_TREE.
        fresh = path.with_name(f"{path.name}.new")
        rmtree(fresh, ignore_errors=True)
        for folder in ("objects/info", "objects/pack", "refs/heads", "refs/tags"):
            (fresh / folder).mkdir(parents=True, exist_ok=True)
        (fresh / "HEAD").write_text("ref: refs/heads/none\n", encoding="utf-8")
        (fresh / "config").write_bytes(settings)
        files.put_folder_in_place(fresh, path)
        return
    if not config.exists() or config.read_bytes() != settings:
        files.write_atomically(config, settings)
    leftovers = [file for pattern in _LEFTOVERS for file in path.glob(pattern)]
    for stale in (*(path / name for name in _NAME_OTHER_FOLDERS), *leftovers):
        stale.unlink(missing_ok=True)
