"""Branches and tags of a remote repository, listed with one ``ls-remote``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from builder.errors import SourceError
from builder.sources.git.errors import MissingError
from builder.sources.git.git_command import ANSWER_SECONDS, GitRepository, run_local, run_remote
from builder.suggestions import did_you_mean

_COMMIT = re.compile(r"[0-9a-f]{40}")
_ABBREVIATED = re.compile(r"[0-9a-f]{4,39}", re.IGNORECASE)


@dataclass(frozen=True)
class RemoteRefs:
    """The refs of a repository, by name. ``branches`` and ``tags`` give the object, which for an annotated tag is the
    tag object; ``peeled`` gives the commit for those."""

    branches: dict[str, str]
    tags: dict[str, str]
    peeled: dict[str, str]


def list_refs(repository: GitRepository) -> RemoteRefs:
    """Lists all branches and tags. With git's protocol 2 the server sends nothing else; the pull requests of vLLM alone
    would be some megabytes."""
    refs = RemoteRefs({}, {}, {})
    result = run_remote(repository, ["ls-remote", "--quiet", "--heads", "--tags", "source"], seconds=ANSWER_SECONDS)
    for line in result.text.splitlines():
        commit, _, ref = line.partition("\t")
        kind, _, name = ref.removeprefix("refs/").partition("/")
        if kind == "heads":
            refs.branches[name] = commit
        elif name.endswith("^{}"):
            refs.peeled[name.removesuffix("^{}")] = commit
        else:
            refs.tags[name] = commit
    return refs


def is_commit(ref: str) -> bool:
    """True if ``ref`` is a full commit name, which is never looked up."""
    return bool(_COMMIT.fullmatch(ref))


def commit_of(repository: GitRepository, refs: RemoteRefs, ref: str) -> str:
    """Returns the commit of the branch or tag ``ref``; ``refs/heads/NAME`` and the like select one kind, and
    ``HEAD`` is the default branch.

    Raises MissingError if there is none, SourceError if it is ambiguous or an abbreviated commit.
    """
    url = repository.address.url
    branch = refs.branches.get(ref.removeprefix("refs/heads/")) if not ref.startswith("refs/tags/") else None
    name = ref.removeprefix("refs/tags/")
    tag = refs.peeled.get(name, refs.tags.get(name)) if not ref.startswith("refs/heads/") else None
    if branch and tag:
        raise SourceError(
            f"`{ref}` is both a branch ({branch[:7]}) and a tag ({tag[:7]}) of {url}",
            hint=f"write refs/heads/{ref} or refs/tags/{ref}",
        )
    commit = branch or tag or (_other_ref(repository, ref) if ref.startswith("refs/") or ref == "HEAD" else None)
    if commit:
        return commit
    if _ABBREVIATED.fullmatch(ref):
        whole = run_local(repository, ["rev-parse", "--quiet", "--verify", f"{ref.lower()}^{{commit}}"]).text
        raise SourceError(
            f"`{ref}` is no branch or tag of {url}, and a commit has 40 digits",
            hint=f"write {whole}"
            if whole
            else "write all 40 digits of the commit: part of them may mean another later",
        )
    raise MissingError(f"{url} has no branch or tag `{ref}`", hint=_suggestion(refs, ref))


def _other_ref(repository: GitRepository, ref: str) -> str | None:
    result = run_remote(repository, ["ls-remote", "--quiet", "source", ref], seconds=ANSWER_SECONDS)
    pairs = (line.partition("\t") for line in result.text.splitlines())
    return next((commit for commit, _, name in pairs if name == ref), None)


def _suggestion(there: RemoteRefs, ref: str) -> str:
    return did_you_mean(ref, [*there.branches, *there.tags], most=3) or "look at the branches and tags there"
