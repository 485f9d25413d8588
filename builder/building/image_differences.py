"""The differences between two images of the same build: by layer, path and kind."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from builder.engine import container_files, disk_usage, image_files
from builder.errors import ImageStateError

if TYPE_CHECKING:
    from builder.engine.client.endpoint import Endpoint
    from builder.engine.image_files import ImageFile
    from builder.engine.images import ImageDetails

Kind = Literal["time", "bytecode", "compiled", "package", "file"]
# What changes nothing that the image does: Python compares bytecode with its source.
HARMLESS: frozenset[Kind] = frozenset({"time", "bytecode"})

_PACKAGES = re.compile(r"/var/lib/(dpkg|apt)/|/usr/share/builder/distribution-packages$|\.dist-info/|\.egg-info/")
_LARGEST = 512 << 20
_MOST_SECTIONS = 20
_NAME = re.compile(r"(?:^|-c )# (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class FileDifference:
    """A path in which two images differ; ``what`` says how."""

    path: str
    kind: Kind
    what: str


def of_files(endpoint: Endpoint, first: str, second: str, labels: Mapping[str, str]) -> tuple[FileDifference, ...]:
    """Compares all files of two images that the engine has, which takes a second for 100 to 200 MB. Of compiled files
    the sections are named that differ, for the first 20. Raises ImageStateError where one is missing."""
    old = image_files.listing(endpoint, first, labels)
    new = image_files.listing(endpoint, second, labels)
    differences = []
    looked_into = 0
    for path in sorted(old.keys() | new.keys()):
        difference = _difference(path, old.get(path), new.get(path))
        if (
            difference
            and difference.kind == "compiled"
            and path in old
            and path in new
            and looked_into < _MOST_SECTIONS
        ):
            looked_into += 1
            sections = ", ".join(_sections(endpoint, (first, second), path, labels))
            difference = FileDifference(path, "compiled", sections or difference.what)
        if difference:
            differences.append(difference)
    return tuple(differences)


def differing_layers(endpoint: Endpoint, first: tuple[str, ...], second: ImageDetails) -> tuple[str, ...]:
    """The steps whose layers are other ones in ``second`` than the layers ``first``, lowest first; each by its name in
    the Dockerfile, or by the number of the layer."""
    steps = [
        each for each in disk_usage.history(endpoint, second) if not disk_usage.NO_LAYER.match(str(each["CreatedBy"]))
    ]
    names = [_step_name(str(each["CreatedBy"])) for each in steps]
    below = len(second.layers) - len(names)
    return tuple(
        names[number - below] if number >= below >= 0 else f"layer {number + 1}"
        for number, layer in enumerate(second.layers)
        if layer not in first[number : number + 1]
    )


def _step_name(created_by: str) -> str:
    comment = _NAME.search(created_by)
    return comment[1] if comment else created_by.splitlines()[0][:60]


def _difference(path: str, old: ImageFile | None, new: ImageFile | None) -> FileDifference | None:
    if old is None or new is None:
        what = "only in the image built again" if old is None else "only in the first image"
        return FileDifference(path, _kind(path, old or new), what)
    changes = [
        f"{name} {before} → {after}"
        for name, before, after in (
            ("type", old.kind, new.kind),
            ("mode", f"{old.mode:04o}", f"{new.mode:04o}"),
            ("owner", old.owner, new.owner),
        )
        if before != after
    ]
    if changes:
        return FileDifference(path, "file", ", ".join(changes))
    if old.content != new.content:
        return FileDifference(path, _kind(path, new), "content")
    return FileDifference(path, "time", "time of change") if old.modified != new.modified else None


def _kind(path: str, file: ImageFile | None) -> Kind:
    if path.endswith(".pyc") and "/__pycache__/" in path:
        return "bytecode"
    if file and file.is_compiled:
        return "compiled"
    return "package" if _PACKAGES.search(path) else "file"


def _sections(endpoint: Endpoint, both: tuple[str, str], path: str, labels: Mapping[str, str]) -> Iterator[str]:
    """The names of the sections in which a compiled file differs; none where it is too large to look into."""
    try:
        contents = [container_files.read(endpoint, image, path, labels, _LARGEST) or b"" for image in both]
    except ImageStateError:
        return
    old, new = map(image_files.elf_sections, contents)
    yield from (name or "(no name)" for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name))
