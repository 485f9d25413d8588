"""Edits in a build directory: files that are no longer what the number was built from.

plan.json has the inputs of each step, and images.lock the hash over them; every file is compared with its step. Of the
bake file everything counts but the labels: they are of the image, which has a fingerprint.
"""

from __future__ import annotations

import hashlib
import re
from datetime import datetime
from typing import TYPE_CHECKING

from builder.numbered import bake_targets, build_directory, build_files, build_metadata
from builder.plan import bake, layout, model, python
from builder.storage import regular_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from builder.lock.model import NumberedImage
    from builder.lock.pins import LockedPackage
    from builder.numbered.build_directory import BuildDirectory, BuildPart

_PULL = "pull request "


def edits(directory: BuildDirectory, image: NumberedImage) -> Iterator[str]:
    """Yields a line for each file that differs, by its path in the directory; none if all is as it was built."""
    if model.input_hash(directory.steps) != image.input_hash:
        yield "plan.json does not have the input hash that images.lock records"
    for part in directory.parts:
        prefix = f"{part.definition}/" if part.definition else ""
        for edit in (*_texts(part), *_patches(part), *_packages(part), *_mods(part)):
            yield f"{prefix}{edit}"
    deviations = (*bake_targets.deviations(directory, image.platform), *_outdated(directory))
    yield from (f"bake.json: {deviation}" for deviation in dict.fromkeys(deviations))
    yield from (f"{path} belongs to no build" for path in build_files.strays(directory))


def _texts(part: BuildPart) -> Iterator[str]:
    for step in ("Dockerfile", "build-metadata.yaml"):
        for key, sha256 in part.takes.get(step, {"text": ""}).items():
            name = step if key == "text" else key
            if problem := _problem(part.folder / name, sha256):
                yield f"{name} {problem}"


def _patches(part: BuildPart) -> Iterator[str]:
    for source, takes in part.takes.items():
        for key, sha256 in takes.items():
            if key.startswith(_PULL):
                name = f"patches/{source}-{key.removeprefix(_PULL)}.patch"
                if problem := _problem(part.folder / name, sha256.removeprefix("sha256:")):
                    yield f"{name} {problem}"


def _problem(path: Path, sha256: str) -> str:
    """Describes the problem with a file that should have this hash; empty if there is none."""
    try:
        content = regular_file.read(path, layout.LARGEST_FILE)
    except FileNotFoundError:
        return "is gone"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return "" if hashlib.sha256(content).hexdigest() == sha256 else "was edited"


def _packages(part: BuildPart) -> Iterator[str]:
    runtime = part.takes.get("python packages")
    if runtime is None:
        return
    listed: dict[str, dict[str, LockedPackage]] = {}
    for path in sorted((part.folder / "python").glob("*.txt")):
        try:
            packages = python.read(regular_file.read(path, layout.LARGEST_FILE).decode())
        except (OSError, ValueError) as error:
            yield f"python/{path.name} was edited: {error}"
            return
        listed[path.name] = {package.name: package for package in packages}
    to_build, installed = listed.pop("build.txt", {}), _joined(listed)
    if names := _differences(runtime, installed):
        yield f"python/ was edited: {names}"
    # Packages with a requirements file of their own are installed from that one before a build, too.
    elsewhere = _joined({file: packages for file, packages in listed.items() if file != "packages.txt"})
    required = part.takes.get("build packages", {})
    if names := _differences(
        required, {**{name: at for name, at in elsewhere.items() if name in required}, **to_build}
    ):
        yield f"python/build.txt was edited: {names}"


def _joined(files: Mapping[str, Mapping[str, LockedPackage]]) -> dict[str, LockedPackage]:
    return {name: package for packages in files.values() for name, package in packages.items()}


def _differences(takes: Mapping[str, str], packages: Mapping[str, LockedPackage]) -> str:
    now = {name: python.identity(package) for name, package in packages.items()}
    names = sorted(name for name in takes.keys() | now.keys() if takes.get(name) != now.get(name))
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _mods(part: BuildPart) -> Iterator[str]:
    for name in part.mods:
        folder = part.mod(name)
        try:
            staged = {
                path.relative_to(folder).as_posix(): model.StagedFile(
                    regular_file.read(path, layout.LARGEST_FILE), bool(path.stat().st_mode & 0o100)
                )
                for path in build_directory.files(folder)
            }
        except OSError as error:
            yield f"mods/{name} cannot be read: {error.strerror}"
            continue
        if model.files_hash(staged) != part.takes[f"mod {name}"].get("files"):
            yield f"mods/{name} was edited" if folder.is_dir() else f"mods/{name} is gone"


def _outdated(directory: BuildDirectory) -> Iterator[str]:
    """Yields what is in the bake file as this program writes it, but not as it wrote it for this image."""
    for part in directory.parts:
        name = part.definition or bake.TARGET
        if part.target.get("args") != {"SOURCE_DATE_EPOCH": _epoch(part)}:
            yield f"`args` of target {name}"
        if any(source not in part.contexts for source in _mounted_sources(part)):
            yield f"`contexts` of target {name}"


def _mounted_sources(part: BuildPart) -> Iterator[str]:
    """Yields the sources whose trees the Dockerfile mounts."""
    try:
        text = regular_file.read(part.folder / "Dockerfile", layout.LARGEST_FILE).decode()
    except (OSError, UnicodeDecodeError):
        return
    mounted = set(re.findall(r"from=([^\s,]+)", text))
    yield from (name for name in part.takes if bake.source_context(name) in mounted)


def _epoch(part: BuildPart) -> str:
    """Returns the date of the image as the bake file gives it, from the metadata; empty if that is damaged."""
    try:
        return str(int(datetime.fromisoformat(build_metadata.read(part.folder)["build_date"]).timestamp()))
    except (ValueError, KeyError, TypeError):
        return ""
