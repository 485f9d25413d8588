"""Volumes: folders and files of the machine that a server sees, written ``SRC:DST`` or ``SRC:DST:ro``."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))", re.ASCII)


@dataclass(frozen=True)
class Mount:
    """A bind mount: a folder or file of the host, as an absolute path, and its path in the container. The folder is
    made where it is missing only if it is ``ours``: a missing volume is a mistake."""

    source: str
    target: str
    read_only: bool = False
    ours: bool = True

    def __str__(self) -> str:
        return f"{self.source}:{self.target}" + (":ro" if self.read_only else "")


def parse(text: str, environ: Mapping[str, str], folder: Path) -> Mount:
    """Parses ``SRC:DST``, ``SRC:DST:ro`` or ``SRC:DST:rw``. SRC may begin with ``~``, hold variables of ``environ``,
    and is relative to ``folder`` where it begins with a dot. Raises ValueError with the reason for anything else."""
    source, *rest = text.split(":")
    target, mode = (*rest, "", "")[:2]
    if len(rest) not in {1, 2} or not source or not target:
        raise ValueError("SRC:DST or SRC:DST:ro is wanted")
    if mode not in {"", "ro", "rw"} or (len(rest) == 2 and not mode):
        raise ValueError(f"`{mode}` is no mode of a volume: it is `ro` or nothing")
    path = PurePosixPath(target)
    if not path.is_absolute() or ".." in path.parts or len(path.parts) < 2:
        raise ValueError(f"`{target}` is no place in the container: it begins with / and is a folder or file there")
    return Mount(_source(source, environ, folder), str(path), read_only=mode == "ro", ours=False)


def _source(text: str, environ: Mapping[str, str], folder: Path) -> str:
    if text == "~" or text.startswith("~/"):
        text = f"${{HOME}}{text[1:]}"

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if not environ.get(name):
            raise ValueError(f"{name} is not set in the environment")
        return environ[name]

    expanded = _VARIABLE.sub(value, text)
    if "$" in expanded or ":" in expanded or "\0" in expanded:
        raise ValueError(f"`{expanded}` cannot be mounted: a path with `$` or `:` in it")
    if expanded.split("/")[0] in {".", ".."}:
        return os.path.normpath(folder / expanded)
    if not expanded.startswith("/"):
        raise ValueError(f"`{text}` is no path: it begins with /, ~/ or ./ (Docker's named volumes are not used)")
    return os.path.normpath(expanded)


def fault(text: str) -> str:
    """The reason why ``text`` is no volume for anybody, whatever the environment has; empty for one that may be."""
    everything = {match[1] or match[2]: "/value" for match in _VARIABLE.finditer(text)}
    try:
        parse(text, {"HOME": "/home", **everything}, Path("/"))
    except ValueError as error:
        return str(error)
    return ""


def merged(ours: Sequence[Mount], volumes: Sequence[Mount]) -> tuple[Mount, ...]:
    """``ours`` and then ``volumes``. A volume takes the place of what is mounted at its path before it, and of our own
    mounts below such a one: the folder of the models holds the hub's."""
    replaced = {mount.target for mount in ours} & {volume.target for volume in volumes}
    kept = [mount for mount in ours if not any(_is_within(mount.target, target) for target in replaced)]
    return (*kept, *{volume.target: volume for volume in volumes}.values())


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")
