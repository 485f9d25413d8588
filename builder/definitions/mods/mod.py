"""A mod: a change that is baked into an image."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.yaml import yaml_file

if TYPE_CHECKING:
    from builder.definitions.mods.mod_files import ModFile
    from builder.errors import Location


FETCHED = ".fetched"
"""The folder, in a mod's folder of a build directory, that holds the files fetched from addresses."""


def is_address(source: str) -> bool:
    """True if ``source`` is an address, and no path in the mod."""
    return source.startswith(("https://", "http://"))


def file_name(address: str) -> str:
    """The name of the file at ``address``, without a query; empty where the address has none."""
    from urllib.parse import unquote, urlsplit

    return unquote(urlsplit(address).path).rpartition("/")[2]


@dataclass(frozen=True)
class FileCopy:
    """A file or folder ``source`` of the mod that is copied to ``to``, an absolute path or one relative to the
    workspace. ``.``, or a slash at the end, means into that folder; otherwise ``to`` is the new path itself. A folder
    is merged into an existing one.

    A ``source`` that begins with http is the address of a file whose content has the digest ``sha256``.
    """

    source: str
    to: str
    sha256: str = ""

    @property
    def is_remote(self) -> bool:
        """True if the file is fetched from an address."""
        return is_address(self.source)

    @property
    def staged(self) -> str:
        """The path of the file in the mod's folder of a build directory."""
        return f"{FETCHED}/{self.sha256}/{file_name(self.source)}" if self.is_remote else self.source


@dataclass(frozen=True)
class ModPatch:
    """A unified diff ``file`` of the mod, applied in the folder that contains the importable ``package``, so that a
    diff from the package's repository fits with ``strip`` 1.

    There are three outcomes. It is applied if ``git apply`` accepts it with its full context; otherwise it counts as
    already applied if its reverse applies with full context; otherwise it is applied if ``git apply -C1`` accepts it,
    and the reduced context is reported. Anything else is an error.

    With a range ``version`` it is for these versions of the package alone, and is left out of images with others.
    """

    file: str
    package: str
    strip: int = 1
    version: str = ""

    def fits(self, version: str) -> bool:
        """True if it is for this version of its package. Development versions count as versions."""
        if not self.version:
            return True
        from packaging.specifiers import SpecifierSet

        return SpecifierSet(self.version).contains(version, prereleases=True)


@dataclass(frozen=True)
class ModCheck:
    """A check of the finished image: a file exists, a file contains a text, or a script of the mod exits with 0; with
    ``gpu`` it runs where the engine has an NVIDIA GPU."""

    file: str | None = None
    contains: str | None = None
    run: str | None = None
    gpu: bool = False


@dataclass(frozen=True)
class Mod:
    """A mod as read. ``described`` tells a mod with a mod.yaml from a bare run.sh, whose downloads cannot be pinned.

    Its steps, in this order: ``packages`` (exact requirements) are installed, ``copies`` made, ``patches`` applied, and
    the script ``run`` is run for at most ``seconds``; ``env`` is set in the image. ``requires`` maps the name of a
    pinned source or package to the versions it works with (PEP 440); ``conflicts`` and ``after`` name other mods.
    ``file`` is what errors point at: its mod.yaml, whose text is ``yaml``, or the mod itself where it has none.
    ``fetched`` are the files from addresses, once they are here.
    """

    name: str
    description: str
    described: bool
    run: str | None
    network: bool
    checks: tuple[ModCheck, ...]
    files: tuple[ModFile, ...]
    copies: tuple[FileCopy, ...]
    patches: tuple[ModPatch, ...]
    packages: tuple[str, ...]
    env: dict[str, str]
    requires: dict[str, str]
    conflicts: tuple[str, ...]
    after: tuple[str, ...]
    may_be_empty: bool
    seconds: int
    file: str
    yaml: str
    fetched: tuple[ModFile, ...] = ()

    @property
    def content_hash(self) -> str:
        """SHA-256 over everything that is baked or checked: the names, bytes and execute bits of its files, and the
        steps in mod.yaml; of a file from an address its digest. The same on every machine and checkout."""
        steps = {
            "run": [self.run, self.network, self.seconds, self.may_be_empty],
            "files": [[copy.staged, copy.to] for copy in self.copies],
            "patches": [
                [patch.file, patch.package, patch.strip, *([patch.version] if patch.version else [])]
                for patch in self.patches
            ],
            "packages": self.packages,
            "env": self.env,
            "check": [
                [check.file, check.contains, check.run, *(["gpu"] if check.gpu else [])] for check in self.checks
            ],
        }
        digest = hashlib.sha256(json.dumps(steps, sort_keys=True).encode())
        for file in self.files:
            head = f"{len(file.path)}:{file.path}:{int(file.executable)}:{len(file.content)}:"
            digest.update(head.encode() + file.content)
        return f"sha256:{digest.hexdigest()}"

    def location(self, *path: str | int) -> Location:
        """The location of the value at ``path`` in mod.yaml; that of the mod itself where it has no mod.yaml."""
        return yaml_file.location_of(path, yaml_file.locations(self.yaml, self.file), self.file)
