"""Compares the contents of two images; the most likely culprits come first."""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from builder.base import files
from builder.base.errors import FileProblemsError, SourceError
from builder.base.events import Message, Report
from builder.base.values import dataclass, field, replace
from builder.base.words import parse_version, shell_word
from builder.definitions import source_patches
from builder.definitions.build_target import definition_of, find_target
from builder.definitions.image import PACKAGES_BUILT_FROM, load_chain
from builder.definitions.mod import PlainFile, mod_names, name_of
from builder.engine import machine
from builder.lock.model import GitPin, ImageName, Lock, NumberedImage, Pairing, Version
from builder.numbers import adopted, build_directory
from builder.plan import making, plan_model
from builder.plan.plan_model import StagedFile

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.numbers.adopted import AdoptedContents
    from builder.numbers.build_directory import BuildDirectory, BuildPart
    from builder.numbers.workspace import Workspace
    from builder.sources.mirror import CommitFilter, CommitRange


Kind = Literal["added", "removed", "changed"]
PackageKind = Literal["down", "up", "in", "out", "other files"]
_ORDER: tuple[PackageKind, ...] = ("down", "up", "in", "out", "other files")
K = TypeVar("K", bound=Any)
V = TypeVar("V")


@dataclass(frozen=True)
class BaseChange:
    """A base image that differs; None if a side lacks it."""

    before: str | None
    after: str | None


@dataclass(frozen=True)
class SourceChange:
    """A source with a new version. ``git`` is its address; empty if neither side was taken from git."""

    name: str
    before: Version | None
    after: Version | None
    git: str


@dataclass(frozen=True)
class SourcePatchChange:
    """A pull request or another patch on a source. ``patch`` is its label; ``before`` and ``after`` are the SHA-256 of
    its diff."""

    source: str
    patch: str
    kind: Kind
    before: str | None
    after: str | None


@dataclass(frozen=True)
class PackageChange:
    """A Python package that differs. ``other files``: the same version with other hashes."""

    name: str
    kind: PackageKind
    before: str | None
    after: str | None


@dataclass(frozen=True)
class Changes:
    """All differences, except those that only the files of a build directory show."""

    sources: tuple[SourceChange, ...]
    patches: tuple[SourcePatchChange, ...]
    packages: tuple[PackageChange, ...]
    build_packages: tuple[PackageChange, ...]
    base: BaseChange | None

    def __bool__(self) -> bool:
        return bool(self.sources or self.patches or self.packages or self.build_packages or self.base)


def changes_between(before: ImageContents, after: ImageContents) -> Changes:
    sources = (
        SourceChange(name, old, new, after.git.get(name) or before.git.get(name, ""))
        for name, old, new in differing(before.sources, after.sources)
    )
    patches = (
        SourcePatchChange(source, patch, kind_of(old, new), old, new)
        for (source, patch), old, new in differing(before.patches, after.patches)
    )
    return Changes(
        sources=tuple(sources)[::-1],  # vLLM before FlashInfer: vLLM changes most, and is the most frequent culprit
        patches=tuple(patches),
        packages=package_changes(before.packages, after.packages),
        build_packages=package_changes(before.build, after.build),
        base=BaseChange(before.base or None, after.base or None) if before.base != after.base else None,
    )


def differing(before: Mapping[K, V], after: Mapping[K, V]) -> Iterator[tuple[K, V | None, V | None]]:
    """Yields the keys with different values, sorted, with both values."""
    for key in sorted(before.keys() | after.keys()):
        if (old := before.get(key)) != (new := after.get(key)):
            yield key, old, new


def kind_of(before: object, after: object) -> Kind:
    """The kind of a change between two values; None stands for a missing value."""
    return "added" if before is None else "removed" if after is None else "changed"


def package_changes(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[PackageChange, ...]:
    """The packages that differ, downgrades first. A value is a version, which may be followed by a space and a digest
    of the files."""
    changes = []
    for name, left, right in differing(before, after):
        old, new = (identity.partition(" ")[0] if identity else None for identity in (left, right))
        kind: PackageKind = "in" if old is None else "out" if new is None else "other files"
        if old and new and old != new:
            versions = parse_version(old), parse_version(new)
            kind = "up" if (versions[0] < versions[1] if versions[0] and versions[1] else old < new) else "down"
        changes.append(PackageChange(name, kind, old, new))
    return tuple(sorted(changes, key=lambda change: (_ORDER.index(change.kind), change.name)))


# The contents of an image.

UPSTREAM = {
    "vllm": "https://github.com/vllm-project/vllm.git",
    "flashinfer": "https://github.com/flashinfer-ai/flashinfer.git",
}


@dataclass(frozen=True)
class ImageContents:
    """The contents of an image. ``git`` has the address of each source from git, and ``patches`` the SHA-256 of each
    patch by its source and label. ``packages`` has the version of each Python package and a digest of its files;
    ``build`` has the same for packages that are only needed to build."""

    base: str = ""
    sources: Mapping[str, Version] = field(default_factory=dict)
    git: Mapping[str, str] = field(default_factory=dict)
    patches: Mapping[tuple[str, str], str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    build: Mapping[str, str] = field(default_factory=dict)


def _patch_hashes(part: BuildPart) -> dict[tuple[str, str], str]:
    """The SHA-256 of each patch of a part of a build directory, by source and label. Only labels of patches contain a
    space."""
    return {
        (source, label): sha256.removeprefix("sha256:")
        for source, takes in part.takes.items()
        for label, sha256 in takes.items()
        if " " in label
    }


# Two numbered images, and the contents that are known for both.


@dataclass(frozen=True)
class ComparedImage:
    """One of the two images. ``directory`` is None for an adopted image, and if the build directory is missing or
    damaged. ``adopted`` has the contents of an adopted image. ``pairings`` has the present or earlier pairing of each
    model with the image."""

    name: ImageName
    image: NumberedImage
    directory: BuildDirectory | None
    adopted: AdoptedContents | None
    pairings: Mapping[str, Pairing]

    @property
    def knows_base(self) -> bool:
        """True if the build recorded the packages of the base image."""
        return bool(self.directory and any("base packages" in part.takes for part in self.directory.parts))


def compared_image(project: Project, lock: Lock, name: ImageName) -> tuple[ComparedImage, str]:
    """An image of images.lock, and the error if its build directory cannot be read."""
    image = lock.images[name.repository].numbers[name.number]
    pairings = {
        name_of_model: pairing
        for name_of_model, model in sorted(lock.models.items())
        for pairing in (model.pairing, *model.previous)
        if pairing.image == name
    }
    if image.adopted:
        inside = adopted.read_adopted(folder := build_directory.path_of(project, name))
        restore = f"`git checkout HEAD -- {shell_word(project.relative(folder))}` restores it"
        fault = inside.unknown if inside else f"the record of the contents of {name} cannot be read: {restore}"
        return ComparedImage(name, image, None, inside, pairings), fault
    try:
        return ComparedImage(name, image, build_directory.read_build_directory(project, name), None, pairings), ""
    except FileProblemsError as error:
        return ComparedImage(name, image, None, None, pairings), error.message


def contents_of_both(lock: Lock, before: ComparedImage, after: ComparedImage) -> tuple[ImageContents, ImageContents]:
    """The contents of both images, limited to what is known for both."""
    sides, both = (before, after), [contents_of(lock, side) for side in (before, after)]
    if any(side.directory is None and not (side.adopted and side.adopted.packages) for side in sides):
        both = [ImageContents(sources=each.sources, git=each.git) for each in both]
    elif before.adopted or after.adopted:
        both = [ImageContents(sources=each.sources, git=each.git, packages=_versions(each)) for each in both]
        # Without pins of the base, a build does not know its packages: both images may contain Debian's pip and wheel.
        for own, side in zip(both, sides, strict=True):
            if side.directory and not side.knows_base:
                kept = ({name: at for name, at in each.packages.items() if name in own.packages} for each in both)
                both = [replace(each, packages=packages) for each, packages in zip(both, kept, strict=True)]
    return both[0], both[1]


def _versions(contents: ImageContents) -> dict[str, str]:
    """The versions of the packages that are not built from the sources."""
    made = {name for source in contents.sources for name in (source, *PACKAGES_BUILT_FROM.get(source, ()))}
    return {name: at.partition(" ")[0] for name, at in contents.packages.items() if name not in made}


def are_same(before: ComparedImage, after: ComparedImage) -> bool:
    """True if one of the images was adopted and their contents are byte for byte equal."""
    has_adopted = bool(before.image.adopted or after.image.adopted)
    return has_adopted and before.image.fingerprint == after.image.fingerprint


def contents_of(lock: Lock, side: ComparedImage) -> ImageContents:
    """The known contents of an image. The sources of an adopted image are assumed to come from the upstream projects,
    so the commits between two versions can be found. Without its build directory, only the versions of an image are
    known, and the addresses of its sources come from the pins of its definition."""
    image = side.image
    if image.adopted:
        return ImageContents("", image.versions, UPSTREAM, packages=side.adopted.packages if side.adopted else {})
    pinned = lock.pins_of(image.definition, image.platform)
    commits = [pin.commit for pin in pinned.sources.values()]
    git = {name: pin.git for name, pin in pinned.sources.items() if isinstance(pin, GitPin)}
    base = ""
    patches: dict[tuple[str, str], str] = {}
    packages: dict[str, str] = {}
    build: dict[str, str] = {}
    for part in side.directory.parts if side.directory else ():
        if not base and (takes := part.takes.get("base")) is not None:
            base = f"{takes.get('image', '')} {takes.get('content', '')}".strip()
        git |= {name: url for name, (url, _) in part.contexts.items()}
        commits += [part.takes[name].get("commit") for name in image.versions if name in part.takes]
        patches |= _patch_hashes(part)
        packages |= {**part.takes.get("base packages", {}), **part.takes.get("python packages", {})}
        build |= part.takes.get("build packages", {})
    sources = {name: _with_whole_commit(version, commits) for name, version in image.versions.items()}
    return ImageContents(base, sources, git, patches, packages, build)


def _with_whole_commit(version: Version, commits: Iterable[str | None]) -> Version:
    """The version with a full commit: the one of ``commits`` that begins with the version's few digits."""
    start = version.commit or "-"
    return replace(version, commit=next((each for each in commits if each and each.startswith(start)), version.commit))


def extra_mods(workspace: Workspace, name: ImageName, image: NumberedImage) -> tuple[str, ...]:
    """The mods of an image that neither its recipe nor its definition requests today: they came from ``--mod``, or the
    recipe no longer has them. Raises EngineError, and the errors of its files."""
    project = workspace.project
    target = find_target(project, image.recipe or image.definition)
    chain = load_chain(project, definition_of(project, target), machine.platform(workspace.engine))
    requested = {name_of(mod) for definition in chain for mod in definition.mods}
    requested |= {name_of(mod) for mod in (target.recipe.mods if target.recipe else ())}
    try:  # in the order of the build, if the build directory shows it
        order = [*build_directory.read_build_directory(project, name).mods, *image.mods]
    except FileProblemsError:
        order = [*image.mods]
    return tuple(sorted((image.mods.keys() & mod_names(project)) - requested, key=order.index))


# Differences between two files, or two folders, as text for the user.

LARGEST = 64 * 1024
CONTEXT = 3


@dataclass(frozen=True)
class FileChange:
    """A file that differs: the lines of a unified diff without its header, or a ``note`` instead."""

    path: str
    kind: Kind
    lines: tuple[str, ...]
    note: str


def of_files(
    before: Mapping[str, StagedFile | PlainFile], after: Mapping[str, StagedFile | PlainFile]
) -> Iterator[FileChange]:
    """Yields the files that differ, sorted by path."""
    for path, old, new in differing(before, after):
        if old and new and old.content == new.content:
            yield FileChange(path, "changed", (), "is executable now" if new.executable else "is no longer executable")
        else:
            yield of_contents(old.content if old else None, new.content if new else None, path)


def read_files(folder: Path, names: Iterable[str] | None = None) -> dict[str, StagedFile]:
    """The files in ``folder`` by path: the files ``names``, or all. An unreadable file counts as missing."""
    if names is None:
        names = (path.relative_to(folder).as_posix() for path in build_directory.build_directory_files(folder))
    read = {}
    for name in names:
        with suppress(OSError):
            content = files.read_plain_file(folder / name, plan_model.LARGEST_FILE)
            read[name] = StagedFile(content, bool((folder / name).stat().st_mode & 0o100))
    return read


def of_contents(old: bytes | None, new: bytes | None, name: str) -> FileChange:
    """The difference between two contents; at most one is None, for a missing file."""
    if old is None or new is None:
        return FileChange(name, kind_of(old, new), (), f"{len(old or new or b''):,} bytes")
    before, after = _lines(old), _lines(new)
    if before is None or after is None:
        return FileChange(name, "changed", (), f"{len(old):,} → {len(new):,} bytes")
    diff = difflib.unified_diff(before, after, n=CONTEXT, lineterm="")
    return FileChange(name, "changed", tuple(diff)[2:], "")


def _lines(content: bytes) -> list[str] | None:
    """The lines of a small text file; None for anything else."""
    if len(content) > LARGEST or b"\0" in content:
        return None
    try:
        lines = content.decode().split("\n")
    except UnicodeDecodeError:
        return None
    # As in git: a text without a final line break differs from one with it.
    return lines[:-1] if not lines[-1] else [*lines[:-1], f"{lines[-1]}\n\\ No newline at the end"]


# Upstream commits of sources with a new version, from the mirrors of their repositories.

_WITHOUT_NETWORK = 5  # commits


@dataclass(frozen=True)
class UpstreamCommits:
    """A source with a new version, and the commits that it gained and lost (lost after a force-push or a downgrade).
    ``unknown_reason`` says why they are not known."""

    change: SourceChange
    gained: CommitRange | None = None
    lost: CommitRange | None = None
    unknown_reason: str = ""


def commits_of(
    project: Project, changes: Changes, commit_filter: CommitFilter | None, report: Report
) -> tuple[UpstreamCommits, ...]:
    """The sources with a new version, and their commits. A repository that does not answer causes no error. Without a
    filter, nothing is fetched: the newest commits come from the mirror, if it has both ends."""
    from builder.sources import mirror

    commits = []
    for change in changes.sources:
        old, new = (version.commit or "" if version else "" for version in (change.before, change.after))
        reason, gained, lost = "", None, None
        if change.before is None or change.after is None:
            reason = "only one of the two images has it"
        elif old == new:
            reason = "both have the same commit" if old else "neither version names its commit"
        elif not change.git:
            reason = "it was not taken from git, so only versions are known"
        elif not (mirror.is_commit(old) and mirror.is_commit(new)):
            reason = "a wheel does not name its whole commit, so only versions are known"
        elif commit_filter is None:
            upstream = mirror.locate(project.mirrors, change.git)
            gained = mirror.commits_present(upstream, old, new, _WITHOUT_NETWORK)
            reason = "" if gained else "its commits are not in the mirror"
        else:
            try:
                upstream = mirror.locate(project.mirrors, change.git, lambda text: report(Message(text)))
                gained = mirror.commits_between(upstream, old, new, commit_filter)
                lost = mirror.commits_between(upstream, new, old, commit_filter) if gained.dropped else None
            except SourceError as error:
                reason, gained = error.message, None
        commits.append(UpstreamCommits(change, gained, lost, reason))
    return tuple(commits)


# Edits in a build directory since the number was built. plan.json contains the inputs of each step, and images.lock
# their hash. Each file is compared with its step. Labels in the bake file are ignored: the image's fingerprint covers
# them.


def build_directory_edits(directory: BuildDirectory, image: NumberedImage) -> Iterator[str]:
    """Yields a line for each file that differs, with its path in the directory."""
    if plan_model.input_hash(directory.steps) != image.input_hash:
        yield "plan.json does not have the input hash that images.lock records"
    try:
        present = build_directory.read_build_files(directory)
    except FileProblemsError as error:
        for problem in error.problems:
            yield f"{problem.location.file.removeprefix(f'{directory.shown}/')}: {problem.message}"
        return
    for part in directory.parts:
        prefix = f"{part.definition}/" if part.definition else ""
        own = {path.removeprefix(prefix): file for path, file in present.items() if path.startswith(prefix)}
        for edit in (*_edited_texts(part, own), *_edited_packages(part, own), *_edited_mods(part, own)):
            yield f"{prefix}{edit}"
    deviations = (*build_directory.deviations(directory, image.platform), *_outdated(directory, present))
    yield from (f"bake.json: {deviation}" for deviation in dict.fromkeys(deviations))
    yield from (f"{path} is not part of this build" for path in build_directory.strays(directory))


def _edited_texts(part: BuildPart, own: Mapping[str, StagedFile]) -> Iterator[str]:
    """Yields the edits of the Dockerfile, the metadata, scripts and patches, compared with the input of their steps."""
    hashes = {
        step if key == "text" else key: sha256
        for step in ("Dockerfile", "build-metadata.yaml")
        for key, sha256 in part.takes.get(step, {"text": ""}).items()
    }
    for (source, label), sha256 in _patch_hashes(part).items():
        hashes[f"patches/{source}-{source_patches.of_label(label).stem}.patch"] = sha256
    for name, sha256 in hashes.items():
        if name not in own:
            yield f"{name} no longer exists"
        elif hashlib.sha256(own[name].content).hexdigest() != sha256:
            yield f"{name} was edited"


def _edited_packages(part: BuildPart, own: Mapping[str, StagedFile]) -> Iterator[str]:
    runtime, required = part.takes.get("python packages"), part.takes.get("build packages", {})
    if runtime is None:
        return
    listed: dict[str, dict[str, str]] = {}
    for path in sorted(path for path in own if path.startswith("python/")):
        try:
            packages = making.read_requirements(own[path].content.decode())
        except ValueError as error:
            yield f"{path} was edited: {error}"
            return
        listed[path] = {package.name: making.requirement_identity(package) for package in packages}
    to_build, usual = listed.pop("python/build.txt", {}), listed.pop("python/packages.txt", {})
    # Packages with their own requirements file are installed from that file before a build, too.
    elsewhere = {name: at for packages in listed.values() for name, at in packages.items()}
    also = {name: at for name, at in elsewhere.items() if name in required}
    for shown, takes, now in (
        ("python/", runtime, {**usual, **elsewhere}),
        ("python/build.txt", required, {**also, **to_build}),
    ):
        if names := [name for name, _, _ in differing(takes, now)]:
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            yield f"{shown} was edited: {', '.join(names[:5])}{more}"


def _edited_mods(part: BuildPart, own: Mapping[str, StagedFile]) -> Iterator[str]:
    for name in part.mods:
        folder = f"mods/{name}/"
        staged = {path.removeprefix(folder): file for path, file in own.items() if path.startswith(folder)}
        if plan_model.files_hash(staged) != part.takes[f"mod {name}"].get("files"):
            yield f"mods/{name} was edited" if staged else f"mods/{name} no longer exists"


def _outdated(directory: BuildDirectory, present: Mapping[str, StagedFile]) -> Iterator[str]:
    """Yields parts of the bake file that are valid but differ from the original ones of this image."""
    for part in directory.parts:
        name = part.definition or making.TARGET
        try:
            built = datetime.fromisoformat(build_directory.read_metadata(part.folder)["build_date"])
            epoch = str(int(built.timestamp()))
        except (ValueError, KeyError, TypeError):
            epoch = ""
        if part.target.get("args") != {"SOURCE_DATE_EPOCH": epoch}:
            yield f"`args` of target {name}"
        # The sources whose trees the Dockerfile mounts.
        dockerfile = present[f"{part.definition}/Dockerfile".removeprefix("/")].content
        mounted = set(re.findall(rb"from=([^\s,]+)", dockerfile))
        if any(making.source_context(each).encode() in mounted for each in part.takes.keys() - part.contexts.keys()):
            yield f"`contexts` of target {name}"
