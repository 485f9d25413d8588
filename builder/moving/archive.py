"""An archive is one file with a numbered image and all records of the project about it. It is a tar of an OCI image
layout. Its folder ``builder/`` contains the number's build directory (``build/``), its excerpt of images.lock, and
optional compile caches (``caches/``). The last files are ``archive.json``, with the image and the sha256 of the other
files, and its own sha256. An archive is untrusted, so everything is checked."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from builder.base import records, tar_stream
from builder.base.errors import FileProblemsError, LockError, NewerLockError, TransferError, UsageError
from builder.base.tar_stream import Member, Writer, printable
from builder.base.values import dataclass, field, replace
from builder.base.words import sha256_of
from builder.definitions.mod import FETCHED
from builder.engine import archives
from builder.lock import lock_file, text
from builder.lock.model import ImageName, Lock, Model, NumberedImage, Repository
from builder.moving import traveling_caches
from builder.moving.traveling_caches import TravelingCaches  # noqa: TC001 (the type of a record)
from builder.numbers import build_directory
from builder.plan import plan_model
from builder.plan.plan_model import StagedFile

if TYPE_CHECKING:
    from builder.engine.archives import Descriptor, Manifest


FOLDER = "builder/"
ABOUT = f"{FOLDER}archive.json"
SEAL = f"{ABOUT}.sha256"
LOCK = f"{FOLDER}images.lock"
BUILD = f"{FOLDER}build/"
CACHES = f"{FOLDER}caches/"
VERSION = 1


@dataclass(frozen=True)
class _About:
    """The record archive.json: the number, the descriptor of its manifest, and the sha256 of each other file."""

    image: str
    manifest: Mapping[str, Any]
    files: Mapping[str, str]
    caches: TravelingCaches | None = None


@dataclass(frozen=True)
class Archive:
    """The contents of an archive: the number, its excerpt of images.lock (``part``), its build directory (empty if it
    was lost), its blobs by digest, and its compile caches with their members by path."""

    name: ImageName
    part: Lock
    build: Mapping[str, StagedFile]
    top: Descriptor
    image: Manifest
    blobs: Mapping[str, Member]
    caches: TravelingCaches | None = None
    compiled: Mapping[str, Member] = field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        return self.part.images[self.name.repository].numbers[self.name.number].fingerprint


def lock_excerpt(lock: Lock, name: ImageName) -> Lock:
    """The excerpt of images.lock for a number: its record, and the models paired with it. The repository keeps its
    ``next``, since all smaller numbers are used."""
    repository = lock.images[name.repository]
    image = replace(repository.numbers[name.number], pruned=None)
    models = {model: Model(lock.models[model].pairing) for model in lock.models_on(name)}
    return Lock(images={name.repository: Repository(repository.next, numbers={name.number: image})}, models=models)


def write_metadata(
    writer: Writer,
    name: ImageName,
    part: Lock,
    build: Mapping[str, StagedFile],
    top: Descriptor,
    compiled: tuple[TravelingCaches, Path] | None = None,
) -> None:
    """Writes the folder ``builder/``. ``compiled`` has the compile caches and their folder."""
    files = {LOCK: StagedFile(text.dump_lock(part).encode())} | {BUILD + path: file for path, file in build.items()}
    for path, file in files.items():
        writer.add(path, file.content, executable=file.executable)
    caches, folder = compiled or (None, Path())
    for path, (size, digest, _) in caches.files.items() if caches else ():
        if writer.stream(CACHES + path, size, traveling_caches.read_pieces(folder, path)) != f"sha256:{digest}":
            raise ValueError(f"{folder / path} changed while it was being read")
    about = {
        "version": VERSION,
        "image": str(name),
        "manifest": top.json,
        "files": {path: sha256(file.content).hexdigest() for path, file in files.items()},
        **({"caches": records.plain(caches)} if caches else {}),
    }
    content = json.dumps(about, indent=1).encode()
    writer.add(ABOUT, content)
    writer.add(SEAL, seal_archive(content))


def seal_archive(content: bytes) -> bytes:
    """The content of an archive's last file: the sha256 of archive.json, in the format of `sha256sum`."""
    return f"{sha256(content).hexdigest()}  {ABOUT.removeprefix(FOLDER)}\n".encode()


def damaged(path: Path, why: str) -> TransferError:
    return TransferError(f"{path} is damaged: {why}", hint="copy the file again, or export the image again")


def refused(path: Path, why: str) -> TransferError:
    return TransferError(
        f"{path} cannot be imported: {why}",
        hint="`builder export-image` does not write such a file: ask the author of the file",
    )


def of_other_version(path: Path, why: str) -> TransferError:
    hint = "use the same version of builder on both machines, then export the image again"
    return TransferError(f"{path} cannot be imported: {why}", hint=hint)


def unreadable(path: Path, error: OSError) -> TransferError:
    return TransferError(f"{path} cannot be read: {error.strerror}", hint="check the disk that holds the file")


def load_stream(archive: Archive, file: IO[bytes], path: Path, tag: str) -> tuple[int, Iterator[bytes]]:
    """The size in bytes and the content of an archive that the engine loads as ``tag``. Each blob is compared with its
    digest during reading; the iterator raises TransferError if they differ."""

    def content_of(digest: str, member: Member) -> Iterator[bytes]:
        mismatch = damaged(path, f"the content of {digest} does not match its digest")
        try:
            yield from archives.verified(tar_stream.pieces(file, member), digest, mismatch)
        except ValueError as error:
            raise damaged(path, str(error)) from None
        except OSError as error:
            raise unreadable(path, error) from None

    blobs = ((digest, member.size, content_of(digest, member)) for digest, member in archive.blobs.items())
    return archives.packed(archive.top, archive.image, tag, blobs)


_NAMED = "name a file that `builder export-image` wrote"
_OUTSIDE = (archives.LAYOUT, archives.INDEX, archives.DOCKER_INDEX)
_LARGEST_MANIFEST = 16 << 20


@contextmanager
def opened(path: Path) -> Iterator[tuple[Archive, IO[bytes]]]:
    """Opens an archive; yields its contents and the file with the blobs. Raises UsageError if the file cannot be
    opened, and TransferError if it is not a complete archive of this program."""
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is not a file", hint=_NAMED)
    try:
        file = path.open("rb")
    except OSError as error:
        raise UsageError(f"{path} cannot be opened: {error.strerror}", hint=_NAMED) from None
    with file:
        try:
            archive_contents = _read(path, file)
        except OSError as error:
            raise unreadable(path, error) from None
        yield archive_contents, file


def _read(path: Path, file: IO[bytes]) -> Archive:
    try:
        members = tar_stream.members(file)
        if SEAL in members and ABOUT in members:
            return _parse(path, file, members)
    except NewerLockError as error:
        raise of_other_version(path, error.message) from None
    except LockError as error:
        raise damaged(path, error.message) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        plain = isinstance(error, ValueError) and not isinstance(error, json.JSONDecodeError | UnicodeDecodeError)
        raise damaged(path, str(error) if plain else f"its folder {FOLDER} has an unknown form") from None
    if any(name.startswith(FOLDER) for name in members):
        raise damaged(path, "it is truncated")
    message = f"{path} is not an archive of `builder export-image`"
    raise TransferError(message, hint="use `docker load` for archives of `docker save`")


def _parse(path: Path, file: IO[bytes], members: Mapping[str, Member]) -> Archive:
    about = _about(path, file, members)
    compiled = _compiled(about.caches, members) if about.caches else {}
    expected = {*_OUTSIDE, ABOUT, SEAL, *about.files, *(CACHES + inside for inside in compiled)}
    blobs: dict[str, Member] = {}
    for inside, member in members.items():
        if digest := archives.digest_of(inside):
            blobs[digest] = member
        elif inside not in expected:
            raise ValueError(f"it contains `{printable(inside)}`, which does not belong in an archive")
    files = _files(file, members, about.files)
    part = lock_file.parse_bytes(files.pop(LOCK).content, LOCK)
    name = _name(about.image)
    if [*part.images] != [name.repository] or [*part.images[name.repository].numbers] != [name.number]:
        raise ValueError(f"its {LOCK} does not describe {name}")
    top = archives.descriptor(about.manifest)

    def get(digest: str) -> bytes:
        if digest not in blobs:
            raise ValueError(f"it lacks {digest}")
        content = _content(file, blobs[digest], _LARGEST_MANIFEST)
        if sha256_of(content) != digest:
            raise ValueError(f"the content of {digest} does not match its digest")
        return content

    image, sizes = archives.read_image(top, get)
    _require_whole(blobs, sizes)
    build = {inside.removeprefix(BUILD): content for inside, content in files.items()}
    record = part.images[name.repository].numbers[name.number]
    if fault := build_fault(name, record, build):
        raise refused(path, fault)
    return Archive(name, part, build, top, image, blobs, about.caches, compiled)


def _compiled(caches: TravelingCaches, members: Mapping[str, Member]) -> dict[str, Member]:
    for path, (size, _, _) in caches.files.items():
        if not traveling_caches.is_welcome(path) or members[CACHES + path].size != size:
            what = "is not a compile-cache file, or its size differs from the recorded size"
            raise ValueError(f"`{printable(path)}` {what}")
    return {path: members[CACHES + path] for path in caches.files}


def _about(path: Path, file: IO[bytes], members: Mapping[str, Member]) -> _About:
    content = _content(file, members[ABOUT], plan_model.LARGEST_FILE)
    if _content(file, members[SEAL], plan_model.LARGEST_FILE) != seal_archive(content):
        raise ValueError(f"the content of {ABOUT} does not match its checksum")
    try:
        return records.parse(content, _About, {"version": VERSION})
    except records.RecordError as error:
        if error.path == ("version",):
            raise of_other_version(path, f"{ABOUT}: {error}") from None
        raise


def _content(file: IO[bytes], member: Member, largest: int) -> bytes:
    if member.size > largest:
        raise ValueError("a file in it is larger than any that this program writes")
    return b"".join(tar_stream.pieces(file, member))


def _name(text: str) -> ImageName:
    repository, _, number = text.rpartition(":")
    if not repository or tar_stream.is_unsafe(repository) or not number.isdecimal() or not 0 < int(number) < 10**18:
        raise ValueError("it does not name a numbered image")
    return ImageName(repository, int(number))


def _files(file: IO[bytes], members: Mapping[str, Member], checksums: Mapping[str, str]) -> dict[str, StagedFile]:
    """The files of the folder ``builder/``, verified against ``checksums``."""
    files = {}
    if len(checksums) > plan_model.MOST_FILES:
        raise ValueError(f"it has more than {plan_model.MOST_FILES:,} files")
    if sum(members[name].size for name in checksums) > plan_model.LARGEST_BUILD:
        raise ValueError(f"its files are more than {plan_model.LARGEST_BUILD:,} bytes")
    for name, digest in checksums.items():
        if name != LOCK and not name.startswith(BUILD):
            raise ValueError(f"`{printable(name)}` does not belong in its list of files")
        content = _content(file, members[name], plan_model.LARGEST_FILE)
        if sha256(content).hexdigest() != digest:
            raise ValueError(f"the content of {printable(name)} does not match its checksum")
        files[name] = StagedFile(content, members[name].executable)
    return files


def _require_whole(blobs: Mapping[str, Member], sizes: Mapping[str, int]) -> None:
    if unknown := sorted(blobs.keys() - sizes.keys()):
        raise ValueError(f"no image in it uses {unknown[0]}")
    for digest, size in sizes.items():
        if digest not in blobs:
            raise ValueError(f"it lacks {digest}")
        if blobs[digest].size != size:
            raise ValueError(f"{digest} does not have the size in the manifest")


# The build directory of an untrusted archive gets into the project, where `rebuild`, git, editors and Docker read it.
# It is refused as a whole if it contains a file or an instruction that no version of this program writes.


def build_fault(name: ImageName, image: NumberedImage, build: Mapping[str, StagedFile]) -> str:
    """Returns the fault of a number's build directory, or an empty text. ``build`` is empty if it was lost."""
    mods: Mapping[str, tuple[str, ...]] = {}
    for path in build:
        if why := unwelcome(path):
            return f"`{printable(path)}`: {why}"
    if folders := repositories(build):
        return f"`{printable(min(folders))}`: git would treat this folder as a repository"
    if image.adopted is None and build:
        try:
            directory = build_directory.parse_build_directory(Path(), "build", lambda file: _content_of(build, file))
        except FileProblemsError as error:
            return error.message
        if wrong := next(build_directory.deviations(directory, image.platform), ""):
            return f"`bake.json`: {wrong} does not have the form that any version of this program writes"
        mods = build_directory.mods_by_definition(directory)
    for path, file in build.items():
        if not (plan_model.belongs(path, mods) if mods else path in {plan_model.ADOPTED, plan_model.RECORD}):
            return f"`{printable(path)}` does not belong in a build directory"
        if file.executable and not plan_model.may_be_executable(path, mods):
            return f"`{printable(path)}` must not be executable"
    return "its images.lock describes other images" if _is_of_others(name, image, build, mods.keys()) else ""


def _content_of(build: Mapping[str, StagedFile], file: str) -> bytes:
    if file not in build:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    return build[file].content


def _is_of_others(
    name: ImageName, image: NumberedImage, build: Mapping[str, StagedFile], definitions: Collection[str]
) -> bool:
    """True if the excerpt of images.lock in the build directory contains more than this number and the pins of its
    ``definitions``: if images.lock is lost, recovery uses the whole excerpt."""
    if plan_model.RECORD not in build:
        return False
    try:
        record = lock_file.parse_bytes(build[plan_model.RECORD].content, plan_model.RECORD)
    except LockError:
        return False  # recovery cannot use an invalid excerpt
    pinned = {(definition, platform) for definition, pins in record.pins.items() for platform in pins}
    own = {image.definition, *definitions}
    if any(definition not in own or platform != image.platform for definition, platform in pinned):
        return True
    return any(
        repository != name.repository or numbers.numbers.keys() != {name.number}
        for repository, numbers in record.images.items()
    )


# Names that are not accepted from untrusted archives, because programs obey files with these names.

_OWN_BY_MODS = frozenset({".gitignore", ".gitkeep", ".gitattributes"})
# If a folder has a HEAD and one of these, git treats it as a bare repository and obeys its settings.
_OF_A_REPOSITORY = frozenset({"config", "commondir", "objects", "refs"})


def unwelcome(path: str) -> str:
    """The reason why this path is refused in a build directory, or an empty text. Folders with a dot belong to version
    control and editors. Git treats any ``.git`` as a repository, and runs the programs in its settings. Some file
    systems ignore case and invisible characters."""
    if not path.isprintable():
        return "its name contains a control or invisible character"
    *folders, name = path.casefold().split("/")
    for depth, folder in enumerate(folders):
        fetched = folder == FETCHED and depth > 1 and folders[depth - 2] == "mods"
        if folder.startswith(".") and not fetched:
            return "it is in a folder whose name begins with a dot"
    is_gits = any(re.match("git~[0-9]", part) for part in (*folders, name))
    return (
        "git would read it as its own file" if is_gits or (name.startswith(".git") and name not in _OWN_BY_MODS) else ""
    )


def repositories(paths: Iterable[str]) -> set[str]:
    """The folders of ``paths`` that git would treat as bare repositories."""
    names: dict[str, set[str]] = {}
    for path in paths:
        parts = path.split("/")
        for depth, part in enumerate(parts):
            names.setdefault("/".join(parts[:depth]), set()).add(part.casefold())
    return {folder for folder, inside in names.items() if "head" in inside and not inside.isdisjoint(_OF_A_REPOSITORY)}
