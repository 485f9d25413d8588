"""The files with Python packages beside the Dockerfiles, of which images.lock has the digests.

A definition has up to three on a platform: the packages in the image, those that it takes to build the sources, and
those that its base image brings. Their format is that of pip and uv: the first two are what a build installs, and
anybody can install them without this program.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from builder.base.errors import LockError
from builder.base.words import sha256_of
from builder.lock.model import BasePin, LockedPackage, PythonPin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from builder.lock.model import Lock, Pins

    Load = Callable[[str, str], bytes | None]
    """Returns the content of the file for a path below the project and its digest, None where it is not there."""


_WHAT = {
    "packages": "in the image",
    "build-packages": "that it takes to build the sources of",
    "base-packages": "that the base image brings to",
}
_FILE = re.compile(r"(?:base-|build-)?packages\.[a-z0-9_.-]+\.txt(?:\.new)?")
_LINE = re.compile(r"([A-Za-z0-9][A-Za-z0-9._+-]*)==([A-Za-z0-9][A-Za-z0-9.!+_~-]*)((?: --hash=sha256:[0-9a-f]{64})*)")
_OTHER = re.compile(r"#.*|--extra-index-url \S+|")
_INDEX = re.compile(r".+ from (https?://[^\s'\"\\]+)")


class LockedPackages(Sequence[LockedPackage]):
    """The packages of a file, which is read when they are first asked for: `list` and `rollback` need none.

    Raises LockError then where the file is missing, or is not the one of this digest."""

    def __init__(self, path: str, digest: str, load: Load) -> None:
        self.path, self.digest, self.load = path, digest, load
        self._packages: tuple[LockedPackage, ...] | None = None

    @property
    def content(self) -> bytes:
        """The bytes of the file. Raises LockError as above."""
        content = self.load(self.path, self.digest)
        if content is None or sha256_of(content) != self.digest:
            state = "is missing" if content is None else "is not the file that images.lock records"
            _, definition, name = self.path.split("/")
            entry = name.partition(".")[0].replace("base-packages", "base")
            raise LockError(
                f"{self.path} {state}",
                hint=f"`git checkout -- {self.path}` takes the committed file back; without one, remove the entry"
                f" `{entry}` of {definition} from images.lock, and `builder lock {definition}` resolves it again",
            )
        return content

    def _read(self) -> tuple[LockedPackage, ...]:
        if self._packages is None:
            self._packages = parse_packages(self.content.decode(errors="replace"), self.path)
        return self._packages

    def __getitem__(self, index: Any) -> Any:
        return self._read()[index]

    def __iter__(self) -> Iterator[LockedPackage]:
        return iter(self._read())

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        return len(self._read())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, LockedPackages) and other.digest == self.digest:
            return True
        return isinstance(other, LockedPackages | tuple) and self._read() == tuple(other)

    def __hash__(self) -> int:
        return hash(self._read())


def parse_packages(text: str, file: str) -> tuple[LockedPackage, ...]:
    """The packages in the text of a file. Raises LockError with the place of any other
    line."""
    packages = []
    for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
        if match := _LINE.fullmatch(line):
            hashes = tuple(match[3].split(" --hash=sha256:")[1:])
            packages.append(LockedPackage(match[1], match[2], hashes))
        elif not _OTHER.fullmatch(line):
            raise LockError(
                f"{file}:{number}: expected NAME==VERSION with --hash=sha256: digests, found `{line[:60]}`",
                hint=f"`git checkout -- {file}` takes the committed file back",
            )
    return tuple(packages)


def path_of(definition: str, platform: str, part: str) -> str:
    """The path of a file below the project."""
    return f"dockerfiles/{definition}/{part}.{platform.replace('/', '-')}.txt"


def is_packages(path: str) -> bool:
    """True for the path of such a file."""
    folder, _, name = path.rpartition("/")
    return folder.count("/") == 1 and folder.startswith("dockerfiles/") and bool(_FILE.fullmatch(name))


def name_of_copy(digest: str) -> str:
    """The name of the copy that a build directory keeps of a file."""
    return f"locked-{digest.removeprefix('sha256:')[:16]}.txt"


def file_of(definition: str, platform: str, part: str, pin: BasePin | PythonPin) -> tuple[str, bytes]:
    """The digest and the content of the file with the packages of a pin. Where the packages came from a file, that one
    is read only if it is asked for: see `digest_of`."""
    if isinstance(pin.packages, LockedPackages):
        return pin.packages.digest, pin.packages.content
    content = _text(definition, platform, part, pin).encode()
    return sha256_of(content), content


def digest_of(definition: str, platform: str, part: str, pin: BasePin | PythonPin) -> str:
    """The digest of the file with the packages of a pin."""
    if isinstance(pin.packages, LockedPackages):
        return pin.packages.digest
    return file_of(definition, platform, part, pin)[0]


def of_lock(lock: Lock) -> Iterator[tuple[str, str, str, BasePin | PythonPin]]:
    """The definition, platform, part and pin of every file that belongs to a lock."""
    for definition, platforms in lock.pins.items():
        for platform, pins in platforms.items():
            for part, pin in of_pins(pins):
                yield definition, platform, part, pin


def of_pins(pins: Pins) -> Iterator[tuple[str, Any]]:
    """The parts of pins that have a file with packages."""
    if pins.base and pins.base.packages:
        yield "base-packages", pins.base
    if pins.python:
        yield "packages", pins.python
    if pins.build:
        yield "build-packages", pins.build


def copies(lock: Lock) -> dict[str, bytes]:
    """The files that belong to a lock, by the names that a build directory gives them."""
    return {name_of_copy(digest): content for digest, content in (file_of(*each) for each in of_lock(lock))}


def _text(definition: str, platform: str, part: str, pin: BasePin | PythonPin) -> str:
    name = path_of(definition, platform, part).rpartition("/")[2]
    lines = [
        f"# The Python packages {_WHAT[part]} {definition} on {platform}.",
        "# `builder lock` writes this file, and images.lock has its digest.",
    ]
    if isinstance(pin, PythonPin):
        lines += [
            "# Each has the SHA-256 of every file that suits. To install them without builder:",
            f"#   uv pip install --require-hashes --no-deps --index-strategy unsafe-best-match -r {name}",
        ]
        indexes = (_INDEX.fullmatch(line) for line in pin.requested)
        lines += dict.fromkeys(f"--extra-index-url {match[1]}" for match in indexes if match)
    for package in sorted(pin.packages, key=lambda package: package.name):
        hashes = "".join(f" --hash=sha256:{digest}" for digest in package.hashes)
        lines.append(f"{package.name}=={package.version}{hashes}")
    return "\n".join(lines) + "\n"
