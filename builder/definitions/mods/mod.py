"""A mod, a change baked into an image, as data."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.yaml import yaml_file

if TYPE_CHECKING:
    from builder.definitions.mods.mod_files import ModFile
    from builder.errors import Location


@dataclass(frozen=True)
class FileCopy:
    """A file or folder ``source`` of the mod that is put at ``to``: absolute, or from the workspace. ``.``, or a slash
    at the end, means into that folder; otherwise ``to`` is its own new path. A folder is merged into one already there.
    """

    source: str
    to: str


@dataclass(frozen=True)
class ModPatch:
    """A unified diff ``file`` of the mod, applied in the folder that holds ``package``, an importable one: so a diff of
    the package's repository fits with ``strip`` 1.

    It has three outcomes. It is applied where ``git apply`` takes it with all its context; else it is already in place
    where the reverse applies with all its context; else it is applied where ``git apply -C1`` takes it, and the reduced
    context is reported. Anything else is an error.
    """

    file: str
    package: str
    strip: int = 1


@dataclass(frozen=True)
class ModCheck:
    """What must hold in the finished image: a file is there, contains a text, or a script of the mod ends with 0."""

    file: str | None = None
    contains: str | None = None
    run: str | None = None


@dataclass(frozen=True)
class Mod:
    """A mod as read. ``described`` tells one with a mod.yaml from a bare run.sh, whose downloads nobody can pin.

    What it does, in this order: ``packages`` (exact requirements) are installed, ``drops`` copied, ``patches`` applied,
    the script ``run`` is run for at most ``seconds``; ``env`` is set in the image. ``requires`` maps the name of a
    pinned source or package to the versions that will do (PEP 440), ``conflicts`` and ``after`` name other mods.
    ``file`` is what errors point at: its mod.yaml, of which ``yaml`` is the text, or the mod where it has none.
    """

    name: str
    description: str
    described: bool
    run: str | None
    network: bool
    checks: tuple[ModCheck, ...]
    files: tuple[ModFile, ...]
    drops: tuple[FileCopy, ...]
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

    @property
    def content_hash(self) -> str:
        """SHA-256 over all that is baked or checked: the names, bytes and execute bits of its files, and what mod.yaml
        says to do with them. The same on every machine and checkout."""
        does = {
            "run": [self.run, self.network, self.seconds, self.may_be_empty],
            "files": [[drop.source, drop.to] for drop in self.drops],
            "patches": [[patch.file, patch.package, patch.strip] for patch in self.patches],
            "packages": self.packages,
            "env": self.env,
            "check": [[check.file, check.contains, check.run] for check in self.checks],
        }
        digest = hashlib.sha256(json.dumps(does, sort_keys=True).encode())
        for file in self.files:
            head = f"{len(file.path)}:{file.path}:{int(file.executable)}:{len(file.content)}:"
            digest.update(head.encode() + file.content)
        return f"sha256:{digest.hexdigest()}"

    def location(self, *path: str | int) -> Location:
        """The location of the value at ``path`` in mod.yaml; that of the mod itself where it has no mod.yaml."""
        return yaml_file.location_of(path, yaml_file.locations(self.yaml, self.file), self.file)
