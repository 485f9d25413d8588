"""The place of the files that come with this program: in the wheel, or in the checkout that it runs from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import builder
from builder import definitions
from builder.errors import UsageError
from builder.project import Project

if TYPE_CHECKING:
    from collections.abc import Iterator

_PACKAGE = Path(builder.__file__).parent
# pyproject.toml puts them there when a wheel is made.
_IN_WHEEL = _PACKAGE / "shipped/files"
_SKELETON = Path(__file__).parent / "skeleton"
_LITTER = frozenset({"__pycache__", ".DS_Store"})


@dataclass(frozen=True)
class ShippedFile:
    """A file for a project, by its path in it."""

    path: str
    content: bytes
    executable: bool = False


def project() -> Project:
    """The definitions, mods, recipes, scripts and pins that come with this program, as a project that is only read.
    Raises UsageError where they are neither in the package nor around it."""
    for root in (_IN_WHEEL, _PACKAGE.parent):
        if (root / "dockerfiles/_parts").is_dir():
            return Project(root)
    raise UsageError(
        f"this installation has no definitions: neither {_IN_WHEEL} nor {_PACKAGE.parent} holds dockerfiles/",
        hint="install the wheel that `uv build` makes, or run it from a checkout",
    )


def below(root: Path, folder: str) -> Iterator[ShippedFile]:
    """The files in ``folder`` of ``root``, sorted, or the file that it is; a link is none of them."""
    top = root / folder
    for path in (top,) if top.is_file() else sorted(top.rglob("*")):
        inside = path.relative_to(root)
        if path.is_file() and not path.is_symlink() and not _LITTER.intersection(inside.parts):
            yield ShippedFile(inside.as_posix(), path.read_bytes(), bool(path.stat().st_mode & 0o100))


def schemas() -> Iterator[ShippedFile]:
    """The schemas of the files that users write, where the first line of each shipped file says that they are."""
    root = Path(definitions.__file__).parent
    for file in below(root, "schemas"):
        yield ShippedFile(f"builder/definitions/{file.path}", file.content)


def skeleton(name: str) -> bytes:
    """The beginning of a file that each project has of its own."""
    return (_SKELETON / name).read_bytes()
