"""The files with Python packages beside the Dockerfiles; images.lock has their digests.

A definition has up to three of them on a platform: the packages in the image, the packages for building the sources,
and the packages of its base image. pip and uv can read them. A build installs the first two, and anybody can install
them without this program. The requests are in comments.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from builder.base.errors import LockError
from builder.base.words import sha256_of, shell_word
from builder.lock import checking
from builder.lock.model import LockedPackage, PythonPin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from builder.lock.model import Lock, Pins

    Load = Callable[[str, str], bytes | None]
    """Returns the content of the file with this path in the project and this digest; None if it is missing."""


_WHAT = {
    "packages": "in the image",
    "build-packages": "that it takes to build the sources of",
    "base-packages": "that the base image brings to",
}
_FILE = r"(?:base-|build-)?packages\.[a-z0-9_.-]+\.txt(?:\.new)?"
_LINE = r"([A-Za-z0-9][A-Za-z0-9._+-]*)==([A-Za-z0-9][A-Za-z0-9.!+_~-]*)((?: --hash=sha256:[0-9a-f]{64})*)"
_FACT = "# (asked|newest|as_of|undated): (.+)"
_FACTS = {"asked": "line", "undated": "line", "newest": "moment", "as_of": "moment"}
_OTHER = r"#.*|--extra-index-url \S+|"
_INDEX = r".+ from (https?://[^\s'\"\\]+)"


class PackagesFile:
    """A file with packages. It stands for a `PythonPin` in a lock; iterating over it yields the packages. The file is
    read on first use, because `list` and `rollback` need no packages.

    That use raises LockError if the file is missing or has another digest."""

    def __init__(self, path: str, digest: str, load: Load) -> None:
        self.path, self.digest, self.load = path, digest, load

    @property
    def content(self) -> bytes:
        """The bytes of the file. Raises LockError as above."""
        content = self.load(self.path, self.digest)
        if content is None or sha256_of(content) != self.digest:
            state = "is missing" if content is None else "is not the file that images.lock records"
            _, definition, name = self.path.split("/")
            entry = name.partition(".")[0].replace("base-packages", "base")
            takes_back = f"`git checkout HEAD -- {shell_word(self.path)}` restores the committed file"
            hint = f"{takes_back}; if none is committed, remove the entry `{entry}` of {definition} from images.lock,"
            raise LockError(f"{self.path} {state}", hint=f"{hint} then run `builder lock {definition}`")
        return content

    @cached_property
    def _pin(self) -> PythonPin:
        return parse_packages(self.content.decode(errors="replace"), self.path)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._pin, name)

    def __iter__(self) -> Iterator[LockedPackage]:
        return iter(self._pin.packages)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PackagesFile):
            return other.digest == self.digest
        return other in (self._pin, self._pin.packages)

    __hash__ = None  # type: ignore[assignment]


def parse_packages(text: str, file: str) -> PythonPin:
    """The closure in the text of a file. Raises LockError with the place of an invalid line."""
    packages: list[LockedPackage] = []
    facts: dict[str, list[str]] = {name: [] for name in _FACTS}
    for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
        if package := parse_requirement(line):
            packages.append(package)
        elif (fact := re.fullmatch(_FACT, line)) and checking.is_a(_FACTS[fact[1]], fact[2]):
            facts[fact[1]].append(fact[2])
        elif fact or not re.fullmatch(_OTHER, line):
            raise LockError(
                f"{file}:{number}: expected NAME==VERSION with --hash=sha256: digests, or a known comment, found"
                f" `{line[:60]}`",
                hint=f"`git checkout HEAD -- {shell_word(file)}` restores the committed file",
            )
    newest, as_of = ("".join(facts[name]) for name in ("newest", "as_of"))
    return PythonPin(tuple(facts["asked"]), newest, tuple(packages), as_of, tuple(facts["undated"]))


def parse_requirement(line: str) -> LockedPackage | None:
    """The package in a line of a requirements file; None for any other line."""
    match = re.fullmatch(_LINE, line)
    return LockedPackage(match[1], match[2], tuple(match[3].split(" --hash=sha256:")[1:])) if match else None


def requirement_line(package: LockedPackage) -> str:
    hashes = "".join(f" --hash=sha256:{digest}" for digest in package.hashes)
    return f"{package.name}=={package.version}{hashes}\n"


def path_of(definition: str, platform: str, part: str) -> str:
    return f"dockerfiles/{definition}/{part}.{platform.replace('/', '-')}.txt"


def is_packages(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return folder.count("/") == 1 and folder.startswith("dockerfiles/") and bool(re.fullmatch(_FILE, name))


def name_of_copy(digest: str) -> str:
    return f"locked-{digest.removeprefix('sha256:')[:16]}.txt"


def file_of(path: str, closure: PythonPin | PackagesFile | Sequence[LockedPackage]) -> PackagesFile:
    """The file at ``path`` for a closure. Raises ValueError for a closure that could not be read back (a bug)."""
    if isinstance(closure, PackagesFile):
        return closure
    pin = closure if isinstance(closure, PythonPin) else PythonPin((), "", closure)
    pin = replace(pin, packages=tuple(sorted(pin.packages, key=lambda package: package.name)))
    text = _text(path, pin)
    if parse_packages(text, path) != pin:
        raise ValueError(f"{path} would hold another closure")
    content = text.encode()
    return PackagesFile(path, sha256_of(content), lambda *_: content)


def of_lock(lock: Lock) -> Iterator[PackagesFile]:
    for definition, platforms in lock.pins.items():
        for platform, pins in platforms.items():
            yield from (file_of(path, closure) for _, path, closure in of_pins(definition, platform, pins))


def of_pins(definition: str, platform: str, pins: Pins) -> Iterator[tuple[str, str, Any]]:
    """The closures of pins, each with its key in images.lock and the path of its file."""
    of_base = pins.base.packages if pins.base else ()
    for part, closure in (("base-packages", of_base), ("packages", pins.python), ("build-packages", pins.build)):
        if closure:
            yield part, path_of(definition, platform, part), closure


def _text(path: str, pin: PythonPin) -> str:
    _, definition, name = path.split("/")
    part, _, platform = name.removesuffix(".txt").partition(".")
    lines = [
        f"# The Python packages {_WHAT[part]} {definition} on {platform}.",
        "# `builder lock` writes this file, and images.lock has its digest.",
    ]
    if part != "base-packages":
        lines += [
            "# Each has the SHA-256 of every file that suits. To install them without builder:",
            f"#   uv pip install --require-hashes --no-deps --index-strategy unsafe-best-match -r {name}",
        ]
    facts = {"asked": pin.requested, "newest": [pin.newest], "as_of": [pin.as_of], "undated": pin.undated}
    lines += [f"# {name}: {fact}" for name, values in facts.items() for fact in values if fact]
    indexes = (re.fullmatch(_INDEX, line) for line in pin.requested)
    lines += dict.fromkeys(f"--extra-index-url {match[1]}" for match in indexes if match)
    return "".join((*(f"{line}\n" for line in lines), *map(requirement_line, pin.packages)))
