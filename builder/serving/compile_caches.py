"""Compile caches: folders on this machine with the code that an image compiled while it served
(`container.COMPILE_CACHES`). Numbers whose compilation has the same inputs share the folder of the first one that
served: a number with only a changed template starts warm. A file that is not in the record of complete files is never
used."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING, Literal

from builder.base import files, processes, records
from builder.base.errors import BuilderError, FileProblemsError, UnsafePathError
from builder.base.project import Project, below_project
from builder.base.values import dataclass
from builder.base.words import shell_word
from builder.definitions.container import COMPILE_CACHES, compile_cache
from builder.engine import containers
from builder.lock import lock_file
from builder.lock.model import ImageName, Lock, NumberedImage
from builder.numbers import build_directory

if TYPE_CHECKING:
    from builder.engine.client import Endpoint
    from builder.numbers.build_directory import BuildPart


_PROC = Path("/proc")

# The key: everything in the build directory of a number that compiled code depends on. vLLM, Triton and FlashInfer
# themselves separate what they compile (by the model, its flags, the kernel's source).

# Packages whose code is compiled, or that compile code. No compiled kernel depends on any other package.
_COMPILED = re.compile(
    r"(?:vllm|torch|triton|flashinfer|b12x|tilelang|nvidia|cuda|flash|apache-tvm|cutlass|quack|xformers|deep-?gemm"
    r"|deep-?ep|helion|numba|llvmlite|cupy|setuptools|ninja|pybind11)\b.*|.*(?:-kernels?|-cu\d+)"
)
# Files from which nothing is compiled.
_DATA = frozenset({".jinja", ".json", ".md", ".txt", ".yaml", ".yml", ".toml", ".template"})
_MOD_OWN = frozenset({"mod.yaml", "run.sh", "README.md", "LICENSE"})
# Commands that only put files in place. A script with any other command may change what is compiled.
_HARMLESS = frozenset(
    {":", "[", "cd", "chmod", "cp", "echo", "exit", "install", "ls", "mkdir", "printf", "set", "test"}
)
_WORDS = frozenset(["if", "then", "else", "elif", "fi", "for", "do", "done", "in", "{", "}", "!"])
_STAGE = re.compile(
    r"^(?:FROM \S+ AS mod-\S+\n|ARG SOURCE_DATE_EPOCH\n| +--mount=type=bind,from=\S+ \\\n)", re.MULTILINE
)
_MOD_STEP = re.compile(
    r"^RUN [^\n]*\\\n(?:[^\n]*\\\n)*[^\n]*<<'EOF'\n# mod (?P<name>\S+)\n(?:(?!EOF$).*\n)*EOF\n\n?", re.MULTILINE
)


def cache_key(project: Project, name: ImageName, image: NumberedImage, proc: Path = _PROC) -> str:
    """The digest of all inputs of what this number compiles: the base image, the sources, the packages whose code is
    compiled or that compile code, the Dockerfile without the steps of harmless mods, each other mod, and the chips of
    this machine. A number with an unreadable build directory has its own key."""
    try:
        parts = build_directory.read_build_directory(project, name).parts
        inputs: object = [_inputs(part) for part in parts]
    except (FileProblemsError, OSError, ValueError):
        inputs = image.fingerprint
    text = json.dumps([image.platform, chips_of(proc), inputs], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def chips_of(proc: Path = _PROC) -> tuple[str, ...]:
    return parse_chips("\n".join(map(processes.text, [*sorted(proc.glob(processes.GPUS)), proc / "cpuinfo"])))


def parse_chips(text: str) -> tuple[str, ...]:
    """The models of the GPUs in the ``text`` of their files and of /proc/cpuinfo. Without a GPU: the models of the
    processor, and a digest of its features."""
    lines = {(key.strip(), value.strip()) for key, _, value in (line.partition(":") for line in text.splitlines())}
    if gpus := sorted(value for key, value in lines if key == "Model"):
        return tuple(gpus)
    able = sorted(value for key, value in lines if key in {"flags", "Features"})
    names = sorted(value for key, value in lines if key in {"model name", "CPU part"})
    return (*names, hashlib.sha256(" ".join(able).encode()).hexdigest()[:12])


def _inputs(part: BuildPart) -> Mapping[str, Mapping[str, str]]:
    harmless = {name for name in part.mods if is_harmless(part.mod(name))}
    inputs: dict[str, Mapping[str, str]] = {}
    for step, takes in part.takes.items():
        if step.endswith("packages"):
            inputs[step] = {name: what for name, what in takes.items() if _COMPILED.fullmatch(name)}
        elif step not in {"Dockerfile", "build-metadata.yaml"} and step.removeprefix("mod ") not in harmless:
            inputs[step] = takes
    dockerfile = (part.folder / "Dockerfile").read_text(encoding="utf-8")
    without = _MOD_STEP.sub(lambda step: "" if step["name"] in harmless else step[0], dockerfile)
    # The numbers of the stages depend on the set of mods.
    return {**inputs, "Dockerfile": {"text": _STAGE.sub("", without).rstrip()}}


def is_harmless(mod: Path) -> bool:
    """True for a mod that only puts data such as a chat template into the image. Nothing is compiled from the data. The
    mod has no other files, installs and patches nothing, and its script only copies."""
    paths = [path for path in mod.rglob("*") if not path.is_dir()]
    if any(path.suffix not in _DATA and path.name not in _MOD_OWN for path in paths):
        return False
    written = (mod / "mod.yaml").read_text(encoding="utf-8") if (mod / "mod.yaml").is_file() else ""
    if re.search(r"^\s*(?:packages|patches|env)\s*:|[\"'](?:packages|patches|env)[\"']\s*:", written, re.MULTILINE):
        return False
    # A copy into a package could replace the package's code.
    scripts = [path.read_text(encoding="utf-8") for path in paths if path.name == "run.sh"]
    return not any(re.search(r"-packages|package:|\.py\b|\.so\b", text) for text in (written, *scripts)) and all(
        map(_only_copies, scripts)
    )


def _only_copies(script: str) -> bool:
    text = re.sub(r"^\s*#.*$|\\\n", "", script, flags=re.MULTILINE)
    if re.search(r"`|\$\(|<<|\|(?!\|)|>(?!&2|\s*/dev/null)", text):
        return False
    commands = (part.split() for part in re.split(r"\n|;|&&|\|\|", text))
    for words in commands:
        rest = [word for word in words if word not in _WORDS]
        if words[:1] != ["for"] and rest and rest[0] not in _HARMLESS and not re.match(r"[A-Za-z_]\w*=", rest[0]):
            return False
    return True


# The folder of a number is the folder of the first number of its repository with the same key and a folder.


def shared_with(project: Project, environ: Mapping[str, str], name: ImageName) -> ImageName:
    """The number whose folder ``name`` uses: itself, unless another number compiled from the same inputs."""
    own = Path(compile_cache(environ, name.repository, name.number))
    if _is_folder(own) or not own.parent.is_dir():
        return name
    record = lock_file.read_project_lock(project).images.get(name.repository)
    if record is None or name.number not in record.numbers:
        return name
    others = [
        ImageName(name.repository, number)
        for number in sorted(record.numbers)
        if number != name.number and _is_folder(Path(compile_cache(environ, name.repository, number)))
    ]
    key = cache_key(project, name, record.numbers[name.number]) if others else ""
    same = (other for other in others if cache_key(project, other, record.numbers[other.number]) == key)
    return next(same, name)


def without_used(
    project: Project, lock: Lock, caches: Sequence[CompileCache], going: Collection[ImageName]
) -> tuple[CompileCache, ...]:
    """The ``caches`` that no remaining number uses. A number remains if it is neither pruned nor ``going``."""
    # The build directory of each number is read once, and only if a ``going`` number has a folder.
    used = {
        (repository, cache_key(project, ImageName(repository, number), image))
        for repository in {cache.name.repository for cache in caches}
        for number, image in lock.images[repository].numbers.items()
        if image.pruned is None and ImageName(repository, number) not in going
    }

    def is_used(name: ImageName) -> bool:
        image = lock.image(name)
        return image is not None and (name.repository, cache_key(project, name, image)) in used

    return tuple(cache for cache in caches if not is_used(cache.name))


def warm_from(project: Project, environ: Mapping[str, str], name: ImageName) -> ImageName | None:
    """The number whose complete files a start of ``name`` uses; None for a cold start."""
    owner = shared_with(project, environ, name)
    return owner if complete_files(Path(compile_cache(environ, owner.repository, owner.number))) else None


# The record of complete files is written when a server answers, and when it was stopped. Files that differ from it are
# removed before the next start. A start that never answered leaves a mark, and all files that it added are removed.

RECORD, _BEGUN = "complete.json", "begun"
_HEAD = {"version": 1}
Entry = tuple[int, str, int]
"""The size of a complete file in bytes, its SHA-256 and its time of change (ns)."""


def begin(endpoint: Endpoint, folder: Path, image: str) -> tuple[str, ...]:
    """Prepares a folder for a start: removes files that differ from the record of complete files and, after a failed
    start, files that the record lacks. Returns the removed paths. A file that a server rewrote after it had answered
    has another time, and stays. A folder of another user is left unchanged."""
    if not _is_folder(folder) or not os.access(folder, os.W_OK):
        return ()
    complete, begun = complete_files(folder), (folder / _BEGUN).exists()
    wrong = []
    for path, entry in complete.items():
        now = file_entry(folder / path)
        if now != entry and (begun or now is None or now[2] == entry[2]):
            wrong.append(path)
    if begun:
        wrong += sorted({str(path.relative_to(folder)) for path in _files(folder)} - complete.keys())
    wrong = [path for path in wrong if os.path.lexists(folder / path)]
    for path in wrong:
        with suppress(OSError):
            (folder / path).unlink()
    if remaining := [folder / path for path in wrong if os.path.lexists(folder / path)]:
        _remove_as_root(endpoint, image, folder, remaining)
    with suppress(OSError):
        files.write_atomically(folder / _BEGUN, b"")
    return tuple(path for path in wrong if not os.path.lexists(folder / path))


def record_complete(folder: Path) -> None:
    """Records the existing files, and that the start succeeded. Unreadable files are not recorded."""
    if _write_record(folder, {}):
        with suppress(OSError):
            (folder / _BEGUN).unlink(missing_ok=True)


def record_added(folder: Path) -> None:
    """Records also what a server compiled between its first answer and its end, such as the kernels for its requests.
    Does nothing after a start that never answered."""
    if not (folder / _BEGUN).exists():
        _write_record(folder, complete_files(folder))


def _write_record(folder: Path, entries: Mapping[str, Entry]) -> bool:
    """Writes the record of complete files: these ``entries``, and all other files. False if that is not possible."""
    if not _is_folder(folder) or not os.access(folder, os.W_OK):
        return False
    others = {str(path.relative_to(folder)): path for path in _files(folder)}.items()
    added = {name: entry for name, path in others if name not in entries and (entry := file_entry(path))}
    try:
        files.write_atomically(folder / RECORD, record_text({**entries, **added}))
    except OSError:
        return False
    return True


def record_text(entries: Mapping[str, Entry]) -> bytes:
    return records.text_of({"files": entries}, _HEAD).encode()


def complete_files(folder: Path) -> Mapping[str, Entry]:
    """The record of complete files in a folder; empty if it is missing or damaged."""
    try:
        kept = records.read_file(folder / RECORD, dict[Literal["files"], Mapping[str, Entry]], _HEAD)["files"]
    except (OSError, records.RecordError, KeyError):
        return {}
    return {path: entry for path, entry in kept.items() if ".." not in PurePosixPath(path).parts and path[:1] != "/"}


def file_entry(path: Path) -> Entry | None:
    """The present size, SHA-256 and time of change of a file; None if it cannot be read."""
    try:
        with path.open("rb") as opened:
            stat = os.fstat(opened.fileno())
            return stat.st_size, hashlib.file_digest(opened, "sha256").hexdigest(), stat.st_mtime_ns
    except OSError:
        return None


def _files(folder: Path) -> Iterator[Path]:
    for place in _cache_folders(folder):
        for below, _, names in os.walk(place):
            paths = (Path(below, name) for name in names)
            yield from (path for path in paths if path.is_file() and not path.is_symlink())


# Removing compile caches whose key no image has any more.

INSIDE = "/run/builder/compiled"
_REMOVING = 600.0  # seconds
_MOST_PATHS = 250  # of one command: its arguments may have 2 MiB, and a path 4 KiB (execve(2))
_BLOCK = 512  # bytes, the unit of st_blocks


@dataclass(frozen=True)
class CompileCache:
    """The folder of one number, and the bytes on disk that serving wrote into it."""

    name: ImageName
    folder: Path
    size: int


def find_compile_caches(
    endpoint: Endpoint, environ: Mapping[str, str], names: Iterable[ImageName]
) -> tuple[CompileCache, ...]:
    """The existing compile caches of these numbers on this machine."""
    if not endpoint.host.startswith("unix://"):
        return ()
    folders = {name: Path(compile_cache(environ, name.repository, name.number)) for name in names}
    return tuple(
        CompileCache(name, folder, sum(map(disk_usage, _cache_folders(folder))))
        for name, folder in folders.items()
        if _is_folder(folder)
    )


def remove_compile_caches(endpoint: Endpoint, cache: CompileCache, image: str | None) -> str:
    """Removes what serving wrote into a folder, and the folder itself if nothing else is in it. Returns what could not
    be removed and why. Containers write as root: root's files are removed in a container of ``image``."""
    try:
        below_project(cache.folder.parents[len(PurePath(cache.name.repository).parts)], cache.folder)
    except UnsafePathError as error:
        return error.message
    for path in _cache_folders(cache.folder):
        shutil.rmtree(path, ignore_errors=True)
    if remaining := _cache_folders(cache.folder):
        reason = _remove_as_root(endpoint, image, cache.folder, remaining) if image else "it belongs to another user"
        if reason:
            removes = f"`sudo rm -r {shell_word(cache.folder)}` removes it"
            return f"{cache.folder} was not removed: {reason}; {removes}"
    try:
        cache.folder.rmdir()
    except FileNotFoundError:
        pass  # another prune removed it
    except OSError as error:
        return f"{cache.folder} was not removed: {error.strerror}"
    return ""


def disk_usage(path: Path) -> int:
    """The bytes on disk of ``path`` and everything below it. A file with several names counts once, links are not
    followed, and unreadable files count as 0."""
    below = (Path(folder, name) for folder, folders, files in os.walk(path) for name in (*folders, *files))
    sizes: dict[tuple[int, int], int] = {}
    for file in (path, *below):
        with suppress(OSError):
            stat = file.lstat()
            sizes[stat.st_dev, stat.st_ino] = stat.st_blocks * _BLOCK
    return sum(sizes.values())


def _cache_folders(folder: Path) -> list[Path]:
    """The subfolders that serving made, without links that the user put in their place."""
    return [path for path in (folder / name for name in COMPILE_CACHES) if _is_folder(path)]


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _remove_as_root(endpoint: Endpoint, image: str, folder: Path, remaining: Sequence[Path]) -> str:
    """Removes files and folders in a container of ``image``. Returns why something could not be removed."""
    paths = [f"{INSIDE}/{path.relative_to(folder)}" for path in remaining]
    mounts = {str(folder): INSIDE}
    output = ""
    try:
        with containers.running(endpoint, image, labels={"builder.prune": "compiled"}, mounts=mounts) as container:
            for first in range(0, len(paths), _MOST_PATHS):
                argv = ["rm", "-rf", "--", *paths[first : first + _MOST_PATHS]]
                output += container.run(argv, timeout=_REMOVING).output
    except BuilderError as error:
        return error.message
    return output.strip()
