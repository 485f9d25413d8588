"""Creation of mirrors, in a temporary folder that is then renamed, and recreation of damaged ones with their pins.

All of this needs the mirror's lock. git itself makes a fetch all or nothing; files left by a killed one are removed.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from builder.project import below
from builder.sources.git import git_environment
from builder.sources.git.errors import MissingError
from builder.sources.git.git_command import GitRepository, run_local
from builder.sources.git.mirror import ALL_TAGS, fetch
from builder.storage import atomic_file, atomic_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_PINNED_REF = re.compile(r"refs/builder/(?:pins|pulls/[0-9]+)/(?P<commit>[0-9a-f]{40})(?![0-9a-f])")

# gitrepository-layout(5): a folder with other settings, those with more objects, and other parents of commits.
_NAME_OTHER_FOLDERS = ("commondir", "objects/info/alternates", "objects/info/http-alternates", "info/grafts")

# extensions.partialClone makes a git refuse that is too old for missing objects. `tagOpt` and `gc` apply when the user
# runs git here by hand; `uploadpack` allows one mirror to be made from another.
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
    """Creates the mirror if there is none, and otherwise removes what a killed process left in it, and settings that
    are not ours: git runs the programs that they name. Raises UnsafePathError for a link that leads elsewhere."""
    below(repository.path.parent, repository.path)
    if not repository.path.exists():
        atomic_folder.put_in_place(_init(repository), repository.path)
        return
    settings = _settings(repository.address.url)
    if not _holds(repository.path / "config", settings):
        atomic_file.write(repository.path / "config", settings)
    for name in _NAME_OTHER_FOLDERS:
        (repository.path / name).unlink(missing_ok=True)
    for stale in _stale_files(repository.path):
        with contextlib.suppress(FileNotFoundError):
            stale.unlink()


def rebuild(repository: GitRepository) -> None:
    """Replaces a damaged mirror with a new one. Commits with a ref of ours come from the damaged one as far as it can
    be read, and from upstream otherwise; if neither has one, it is lost, and the user is told. If upstream does not
    answer (SourceError), the damaged mirror stays for the next time."""
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
    """Creates an empty mirror next to its final path; returns where it is."""
    from shutil import rmtree

    path = repository.path.with_name(f"{repository.path.name}.new")
    rmtree(path, ignore_errors=True)
    _write_skeleton(path, repository.address.url)
    return path


def _write_skeleton(path: Path, url: str) -> None:
    """Writes the files that make a folder a repository. `git init --bare` would obey the user's templates, and it
    refuses to run when a hook has set GIT_WORK_TREE."""
    for folder in ("objects/info", "objects/pack", "refs/heads", "refs/tags"):
        (path / folder).mkdir(parents=True, exist_ok=True)
    (path / "HEAD").write_text("ref: refs/heads/none\n", encoding="utf-8")
    (path / "config").write_bytes(_settings(url))


def _settings(url: str) -> bytes:
    quoted = url.replace("\\", "\\\\").replace('"', '\\"')
    return _CONFIGURATION.format(url=quoted).encode()


def _holds(path: Path, content: bytes) -> bool:
    try:
        return path.read_bytes() == content
    except FileNotFoundError:
        return False


def _pinned_refs(path: Path) -> dict[str, str]:
    """Returns our refs with their commits, read from their names: git lists none if one file is damaged."""
    names = [str(file.relative_to(path)) for file in (path / "refs").rglob("*") if file.is_file()]
    with contextlib.suppress(FileNotFoundError):
        names.append((path / "packed-refs").read_text(encoding="utf-8", errors="replace"))
    return {match[0]: match["commit"] for match in _PINNED_REF.finditer("\n".join(names))}


def _repair(damaged: GitRepository, pinned: Mapping[str, str]) -> None:
    """Repairs everything but the objects of a damaged mirror, so that git can fetch those that are left."""
    from shutil import rmtree

    _write_skeleton(damaged.path, damaged.address.url)
    rmtree(damaged.path / "refs")
    (damaged.path / "refs").mkdir()
    lines = "".join(f"{commit} {ref}\n" for ref, commit in pinned.items())
    (damaged.path / "packed-refs").write_text(lines, encoding="utf-8")


def _copy_ref(fresh: GitRepository, damaged: Path, ref: str) -> bool:
    """Fetches ``ref`` from the damaged mirror; returns False if that fails. git checks what it receives in any case."""
    remote = "remote.damaged"
    # A remote for this command only: a plain address with --filter would be written to the configuration.
    settings = (
        (f"{remote}.url", f"file://{damaged}"),
        (f"{remote}.promisor", "true"),
        (f"{remote}.partialclonefilter", "blob:none"),
    )
    environ = {"GIT_ALLOW_PROTOCOL": "file", **git_environment.config_variables(settings)}
    arguments = ["fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--filter=blob:none", "damaged"]
    return run_local(fresh, [*arguments, ref], environ=environ).status == 0


def _stale_files(path: Path) -> Iterator[Path]:
    """Yields files that only a killed git can have left, as nothing else works here while we hold the lock."""
    objects = path / "objects"
    locks = chain(
        path.glob("*.lock"),
        (path / "refs").rglob("*.lock"),
        objects.glob("*.lock"),  # of git's own housekeeping after a fetch
        (objects / "info").rglob("*.lock"),
        (objects / "pack").glob("*.lock"),
    )
    return chain(locks, (objects / "pack").glob("tmp_*"), objects.glob("??/tmp_obj_*"))
