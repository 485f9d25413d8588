"""The patches on top of a git source: pull requests, patch files, and the uncommitted changes of a local checkout.

A definition names the first two under ``pulls`` and ``patches``. The pin of a patch is the SHA-256 of its diff.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from builder.base import files
from builder.base.errors import Location, Problem, UsageError, require_no_problems
from builder.base.project import below_project
from builder.base.values import dataclass, replace

LOCAL_CHANGES = "local-changes"
"""The name of the uncommitted changes of a local checkout."""
LARGEST_PATCH = 64 << 20  # bytes
SERIES = "series"
# These names become part of a file name in a build directory, and of a line in a Dockerfile.
FILE = "[A-Za-z0-9][A-Za-z0-9._+-]*(?:/[A-Za-z0-9][A-Za-z0-9._+-]*)*"
# The page of a request, or a page below it.
_PAGE = re.compile(r"(?P<name>(?P<repository>.+?://.+?)/(?:pull|-/merge_requests)/(?P<number>[1-9][0-9]*))(?:/.*)?")


@dataclass(frozen=True)
class SourcePatch:
    """A patch on top of a source. ``name`` is the number of a pull request, the address of a pull request in another
    repository, the path of a patch file relative to its definition, or `LOCAL_CHANGES`.

    ``sha256`` (64 hex digits) is the digest of its diff, and ``head`` is the last commit of a pull request (40 hex
    digits); both are empty before a pull request is pinned. ``base`` is the base branch, tag or commit of a pull
    request, if the definition names it. ``strip`` is the number of folders that are removed from the names in a patch
    file, as with ``patch -p``."""

    name: str
    head: str = ""
    sha256: str = ""
    base: str = ""
    strip: int = 1

    @property
    def repository(self) -> str:
        """The address of a pull request's repository if it is another repository; otherwise empty."""
        match = _PAGE.fullmatch(self.name)
        return match["repository"] if match else ""

    @property
    def is_pull(self) -> bool:
        return self.name.isdecimal() or bool(self.repository)

    @property
    def is_file(self) -> bool:
        """True for a patch file of the definition."""
        return not self.is_pull and self.name != LOCAL_CHANGES

    @property
    def number(self) -> int:
        return int(self.name.rpartition("/")[2])

    @property
    def label(self) -> str:
        """The name of the patch in messages, and its key in the inputs of a step."""
        if self.name == LOCAL_CHANGES:
            return "local changes"
        return f"pull request {self.name}" if self.is_pull else f"patch {self.name}"

    @property
    def stem(self) -> str:
        """The patch's part of a file name: ``40898``, ``owner-repository-7``, ``fixes-0001-a``."""
        path = "/".join([*self.repository.split("/")[3:], str(self.number)]) if self.repository else self.name
        return re.sub(r"[^A-Za-z0-9._+]+", "-", re.sub(r"\.(patch|diff)$", "", path)).strip("-.")

    @property
    def requested(self) -> SourcePatch:
        """The patch as a definition requests it, without the pin of a pull request."""
        return replace(self, head="", sha256="") if self.is_pull else self


def of_label(label: str) -> SourcePatch:
    kind, _, name = label.rpartition(" ")
    return SourcePatch(LOCAL_CHANGES if kind == "local" else name)


def local_changes(diff: bytes) -> SourcePatch:
    return SourcePatch(LOCAL_CHANGES, sha256=hashlib.sha256(diff).hexdigest())


def requested_patches(project: Path, folder: Path, git: str, source: dict[str, Any]) -> tuple[SourcePatch, ...]:
    """The pull requests and patch files of a ``source`` in image.yaml in ``folder``, in the order of application.
    ``git`` is the repository of the source. Raises UsageError if a file cannot be read, UnsafePathError if it is
    outside the ``project``, FileProblemsError if a line of a series is not a patch."""
    pulls = tuple(_pull(pull if isinstance(pull, dict) else {"number": pull}, git) for pull in source.get("pulls", ()))
    listed = source.get("patches", ())
    paths = [listed] if isinstance(listed, str) else listed
    names = [name for path in paths for name in _files(project, folder, path)]
    digests = {name: hashlib.sha256(_content(project, folder / name)).hexdigest() for name, _ in names}
    return (*pulls, *(SourcePatch(name, sha256=digests[name], strip=strip) for name, strip in names))


def _pull(pull: dict[str, Any], git: str) -> SourcePatch:
    """A request of the source's own repository is named by its number, even if its address is given."""
    name = str(pull["number"])
    if match := _PAGE.fullmatch(name):
        own, other = (url.rstrip("/").removesuffix(".git").casefold() for url in (git, match["repository"]))
        name = match["number" if own == other else "name"]
    return SourcePatch(name, base=pull.get("base", ""))


def _files(project: Path, folder: Path, path: str) -> Iterator[tuple[str, int]]:
    """The patch file ``path``, or the patch files in the series of the folder ``path``, each with its strip."""
    if not (folder / path).is_dir():
        yield path, 1
        return
    problems = []
    series = folder / path / SERIES
    # quilt's format: each line has a file and its options (https://man7.org/linux/man-pages/man1/quilt.1.html).
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
    """The first patch whose file in a build directory would have the same name as another one's; empty if there is
    none."""
    stems = [patch.stem for patch in patches]
    return next((patch.label for number, patch in enumerate(patches) if patch.stem in stems[:number]), "")
