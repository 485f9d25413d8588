"""Making a mirror: in a temporary place, then renamed; and making a damaged one anew without losing what is pinned.

All of this needs the mirror's lock. git makes a fetch all or nothing by itself; what a killed one leaves is swept up.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from builder.sources.git import git_environment
from builder.sources.git.errors import MissingError
from builder.sources.git.git_command import GitRepository, run_local
from builder.sources.git.mirror import ALL_TAGS, fetch
from builder.storage import atomic_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_PINNED_REF = re.compile(r"refs/builder/(?:pins|pulls/[0-9]+)/(?P<commit>[0-9a-f]{40})(?![0-9a-f])")

# extensions.partialClone keeps a git too old for missing objects away. `tagOpt` and `gc` hold when people run git here
# by hand; `uploadpack` lets one mirror be made from another.
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
    """Makes the mirror where there is none, and sweeps up after a process that was killed."""
    if not repository.path.exists():
        atomic_folder.put_in_place(_init(repository), repository.path)
        return
    for stale in _stale_files(repository.path):
        with contextlib.suppress(FileNotFoundError):
            stale.unlink()


def rebuild(repository: GitRepository) -> None:
    """Puts a fresh mirror in the place of a damaged one. The commits that had a ref of ours come from the damaged one
    where it can still give them, and from upstream otherwise; one that neither has is lost, and said to be. Where
    upstream does not answer, the damaged one stays for the next time (SourceError)."""
    fresh = replace(repository, path=_init(repository))
    pinned = _pinned_refs(repository.path)
    _repair(repository, pinned)
    fetch(fresh, ALL_TAGS)
    for ref, commit in pinned.items():
        if _copy_ref(fresh, repository.path, f"{commit}:{ref}"):
            continue
        try:
            fetch(fresh, f"{commit}:{ref}")
        except MissingError:
            repository.notify(
                f"{commit} is lost: {repository.address.url} no longer has it, and the mirror of it was damaged"
            )
    atomic_folder.replace(fresh.path, repository.path)


def _init(repository: GitRepository) -> Path:
    """An empty mirror beside the place where it belongs."""
    from shutil import rmtree

    path = repository.path.with_name(f"{repository.path.name}.new")
    rmtree(path, ignore_errors=True)
    _write_skeleton(path, repository.address.url)
    return path


def _write_skeleton(path: Path, url: str) -> None:
    """What makes a folder a repository. `git init --bare` would obey the person's templates, and it refuses to run
    where a hook set GIT_WORK_TREE."""
    for folder in ("objects/info", "objects/pack", "refs/heads", "refs/tags"):
        (path / folder).mkdir(parents=True, exist_ok=True)
    (path / "HEAD").write_text("ref: refs/heads/none\n", encoding="utf-8")
    quoted = url.replace("\\", "\\\\").replace('"', '\\"')
    (path / "config").write_text(_CONFIGURATION.format(url=quoted), encoding="utf-8")


def _pinned_refs(path: Path) -> dict[str, str]:
    """The refs of ours with their commits, read off their names: git refuses to list them when one file is broken."""
    names = [str(file.relative_to(path)) for file in (path / "refs").rglob("*") if file.is_file()]
    with contextlib.suppress(FileNotFoundError):
        names.append((path / "packed-refs").read_text(encoding="utf-8", errors="replace"))
    return {match[0]: match["commit"] for match in _PINNED_REF.finditer("\n".join(names))}


def _repair(damaged: GitRepository, pinned: Mapping[str, str]) -> None:
    """Makes all but the objects of a damaged mirror whole, so that git can take from it what is left of those."""
    from shutil import rmtree

    _write_skeleton(damaged.path, damaged.address.url)
    rmtree(damaged.path / "refs")
    (damaged.path / "refs").mkdir()
    lines = "".join(f"{commit} {ref}\n" for ref, commit in pinned.items())
    (damaged.path / "packed-refs").write_text(lines, encoding="utf-8")


def _copy_ref(fresh: GitRepository, damaged: Path, ref: str) -> bool:
    """Fetches ``ref`` from the damaged mirror, if it can be had. git checks what it gets, whoever gives it."""
    remote = "remote.damaged"
    # A remote of this command alone: a bare address with --filter would be written into the configuration.
    settings = (
        (f"{remote}.url", f"file://{damaged}"),
        (f"{remote}.promisor", "true"),
        (f"{remote}.partialclonefilter", "blob:none"),
    )
    environ = {"GIT_ALLOW_PROTOCOL": "file", **git_environment.config_variables(settings)}
    arguments = ["fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--filter=blob:none", "damaged"]
    return run_local(fresh, [*arguments, ref], environ=environ).status == 0


def _stale_files(path: Path) -> Iterator[Path]:
    """What only a git that was killed leaves: nobody else works here while we hold the lock."""
    objects = path / "objects"
    locks = chain(path.glob("*.lock"), (path / "refs").rglob("*.lock"))
    return chain(locks, (objects / "pack").glob("tmp_*"), objects.glob("??/tmp_obj_*"))
