"""The patches on top of a source from git: pull requests, patch files, and what a local checkout has beside its commit.

A definition names the first two under ``pulls`` and ``patches``. What is pinned of each is the SHA-256 of its diff.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

from builder.base import files
from builder.base.errors import Location, Problem, UsageError, require_no_problems
from builder.base.project import below_project
from builder.base.values import dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

LOCAL_CHANGES = "local-changes"
"""The name of what a local checkout has beside its commit."""
LARGEST_PATCH = 64 << 20  # bytes
SERIES = "series"
# What becomes a part of a file's name in a build directory, and of a line in a Dockerfile.
FILE = "[A-Za-z0-9][A-Za-z0-9._+-]*(?:/[A-Za-z0-9][A-Za-z0-9._+-]*)*"
# The page of a request, or one of the pages below it.
_PAGE = re.compile(r"(?P<name>(?P<repository>.+?://.+?)/(?:pull|-/merge_requests)/(?P<number>[1-9][0-9]*))(?:/.*)?")


@dataclass(frozen=True)
class SourcePatch:
    """A patch on top of a source. ``name`` is the number of a pull request, the address of one in another repository,
    the path of a patch file below the folder of its definition, or `LOCAL_CHANGES`. ``sha256`` (64 hex digits) is that
    of its diff, ``head`` the last commit of a pull request (40); a pull request has neither before it is pinned.
    ``base`` is the branch, tag or commit that a pull request was opened for, where the definition names one; ``strip``
    is how many folders are removed from the names in a patch file, as ``patch -p`` does."""

    name: str
    head: str = ""
    sha256: str = ""
    base: str = ""
    strip: int = 1

    @property
    def repository(self) -> str:
        """The address of the other repository that a pull request is from; empty for all else."""
        match = _PAGE.fullmatch(self.name)
        return match["repository"] if match else ""

    @property
    def is_pull(self) -> bool:
        return self.name.isdecimal() or bool(self.repository)

    @property
    def is_file(self) -> bool:
        """True for a patch file that the definition has beside it."""
        return not self.is_pull and self.name != LOCAL_CHANGES

    @property
    def number(self) -> int:
        return int(self.name.rpartition("/")[2])

    @property
    def label(self) -> str:
        """The words for it in messages, and its key among the inputs of a step."""
        if self.name == LOCAL_CHANGES:
            return "local changes"
        return f"pull request {self.name}" if self.is_pull else f"patch {self.name}"

    @property
    def stem(self) -> str:
        """Its part of a file's name: ``40898``, ``owner-repository-7``, ``fixes-0001-a``."""
        path = "/".join([*self.repository.split("/")[3:], str(self.number)]) if self.repository else self.name
        return re.sub(r"[^A-Za-z0-9._+]+", "-", re.sub(r"\.(patch|diff)$", "", path)).strip("-.")

    @property
    def requested(self) -> SourcePatch:
        """The same as a definition requests it: without what the pin of a pull request adds."""
        return replace(self, head="", sha256="") if self.is_pull else self


def of_label(label: str) -> SourcePatch:
    kind, _, name = label.rpartition(" ")
    return SourcePatch(LOCAL_CHANGES if kind == "local" else name)


def local_changes(diff: bytes) -> SourcePatch:
    return SourcePatch(LOCAL_CHANGES, sha256=hashlib.sha256(diff).hexdigest())


def requested_patches(project: Path, folder: Path, git: str, source: dict[str, Any]) -> tuple[SourcePatch, ...]:
    """The pull requests and patch files of a ``source`` from the repository ``git``, as image.yaml in ``folder`` has
    it, in the order in which they are applied. Raises UsageError for a file that cannot be read, UnsafePathError for
    one outside of the ``project``, FileProblemsError for a line of a series that names no patch."""
    pulls = tuple(_pull(pull if isinstance(pull, dict) else {"number": pull}, git) for pull in source.get("pulls", ()))
    listed = source.get("patches", ())
    paths = [listed] if isinstance(listed, str) else listed
    names = [name for path in paths for name in _files(project, folder, path)]
    digests = {name: hashlib.sha256(_content(project, folder / name)).hexdigest() for name, _ in names}
    return (*pulls, *(SourcePatch(name, sha256=digests[name], strip=strip) for name, strip in names))


def _pull(pull: dict[str, Any], git: str) -> SourcePatch:
    """A request of the source's own repository is called by its number, also where its address is given."""
    name = str(pull["number"])
    if match := _PAGE.fullmatch(name):
        own, other = (url.rstrip("/").removesuffix(".git").casefold() for url in (git, match["repository"]))
        name = match["number" if own == other else "name"]
    return SourcePatch(name, base=pull.get("base", ""))


def _files(project: Path, folder: Path, path: str) -> Iterator[tuple[str, int]]:
    """The patch file ``path``, or those that the series in the folder of that name lists, each with its strip."""
    if not (folder / path).is_dir():
        yield path, 1
        return
    problems = []
    series = folder / path / SERIES
    # quilt's format: a file and its options a line (https://man7.org/linux/man-pages/man1/quilt.1.html).
    for number, line in enumerate(_content(project, series).decode(errors="replace").splitlines(), start=1):
        name, *options = re.sub(r"(^|\s)#.*", "", line).split() or [""]
        strip = re.fullmatch(r"-p([0-9])", options[0] if options else "-p1")
        if name and re.fullmatch(FILE, name) and strip and len(options) < 2:
            yield f"{path.rstrip('/')}/{name}", int(strip[1])
        elif name:
            expected = "expected the name of a patch file in this folder, optionally followed by -p0 to -p9"
            place = Location(str(series.relative_to(project)), number)
            problems.append(Problem(place, f"`{line.strip()}`: {expected}"))
    require_no_problems(problems)


def _content(project: Path, path: Path) -> bytes:
    try:
        return files.read_plain_file(below_project(project, path).resolve(), LARGEST_PATCH)
    except OSError as error:
        hint = "`patches` names patch files, or a folder with patch files and a file `series` that lists them"
        raise UsageError(f"{path.relative_to(project)} cannot be read: {error.strerror}", hint=hint) from None


def repeated(patches: Sequence[SourcePatch]) -> str:
    """The first of several patches whose files in a build directory would have the same name; empty without one."""
    stems = [patch.stem for patch in patches]
    return next((patch.label for number, patch in enumerate(patches) if patch.stem in stems[:number]), "")
