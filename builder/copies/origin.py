"""The origin of a copy: ``mods/NAME.source`` or ``recipes/NAME.source``, beside what was copied.

Beside it, and not in it: a copy stays what it is in its own repository, file for file, and its content hash as well.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from builder.copies.address import DEFAULT_BRANCH
from builder.definitions.reading import read_text
from builder.errors import FileProblemsError, Location, Problem
from builder.storage import atomic_file
from builder.yaml import yaml_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from builder.project import Project
    from builder.sources.git.foreign_files import PlainFile

Kind = Literal["mod", "recipe"]
SUFFIX = ".source"
_HEAD = """\
# Where {name} came from. `builder {kind}s update {bare}` writes this file; commit it with the copy.
"""
_KEYS = ("url", "path", "ref", "commit", "content")


@dataclass(frozen=True)
class Origin:
    """The origin of a copy: ``path`` in the repository ``url`` at ``commit``, which ``ref`` was then. ``files`` holds
    the digest of each file as it was copied, by path."""

    url: str
    path: str
    ref: str
    commit: str
    files: Mapping[str, str]

    @property
    def content(self) -> str:
        """SHA-256 over the names, execute bits and bytes of all files."""
        return f"sha256:{hashlib.sha256(json.dumps(dict(self.files), sort_keys=True).encode()).hexdigest()}"

    @property
    def address(self) -> str:
        """The address as `builder mods add` takes it."""
        path = f"//{self.path}" if self.path else ""
        return f"{self.url}{path}" + ("" if self.ref == DEFAULT_BRANCH else f"@{self.ref}")


def digests(files: Iterable[PlainFile]) -> dict[str, str]:
    """The digest of each file: SHA-256 of its bytes, with ``+x`` behind it where it is executable."""
    return {
        file.path: f"sha256:{hashlib.sha256(file.content).hexdigest()}{' +x' if file.executable else ''}"
        for file in files
    }


def path_of(project: Project, kind: Kind, name: str) -> Path:
    """The file that holds the origin of the mod or recipe ``name``; it may not be there."""
    folder = project.mods if kind == "mod" else project.recipes
    return folder / f"{name}{SUFFIX}"


def names(project: Project, kind: Kind) -> tuple[str, ...]:
    """The names of all copies of a kind, sorted."""
    if kind == "mod":
        paths = [path.name for path in project.mods.glob(f"*{SUFFIX}")]
    else:  # recipes lie in folders, too
        paths = [path.relative_to(project.recipes).as_posix() for path in project.recipes.rglob(f"*{SUFFIX}")]
    return tuple(sorted(path.removesuffix(SUFFIX) for path in paths))


def read(project: Project, kind: Kind, name: str) -> Origin | None:
    """Reads the origin of the mod or recipe ``name``; None where it is no copy. Raises FileProblemsError for a file
    that holds none."""
    path = path_of(project, kind, name)
    if not path.is_file():
        return None
    file = project.relative(path)
    data = yaml_file.load(read_text(path, file, project.root), file)
    if not _is_origin(data):
        message = f"no origin of a copy: {', '.join(_KEYS)} and files must be there"
        hint = f"take it back with git, or remove it: `builder {kind}s add` makes it anew"
        raise FileProblemsError((Problem(Location(file), message),), hint=hint)
    return Origin(data["url"], data["path"], data["ref"], data["commit"], data["files"])


def write(project: Project, kind: Kind, name: str, origin: Origin) -> None:
    """Writes the origin of a copy."""
    path = path_of(project, kind, name)
    values = {key: getattr(origin, key) for key in _KEYS}
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in values.items()]
    lines += ["files:\n", *(f"  {json.dumps(file)}: {digest}\n" for file, digest in sorted(origin.files.items()))]
    head = _HEAD.format(name=f"{kind}s/{name}", kind=kind, bare=name)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_file.write(path, f"{head}{''.join(lines)}".encode())


def _is_origin(data: Any) -> bool:
    if not isinstance(data, dict) or not all(isinstance(data.get(key), str) for key in _KEYS):
        return False
    files = data.get("files")
    return isinstance(files, dict) and all(isinstance(digest, str) for digest in files.values())
