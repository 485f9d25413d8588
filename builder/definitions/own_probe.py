"""Probes of a project: ``probes/NAME/probe.yaml``, a command that checks a served model."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from builder.definitions.reading import read_checked
from builder.errors import FileProblemsError, Location, Problem, UsageError
from builder.project import below
from builder.storage import regular_file
from builder.suggestions import did_you_mean

if TYPE_CHECKING:
    from builder.project import Project

FOLDER = "probes"
FILE = "probe.yaml"
DEFAULT_SECONDS = 600
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LARGEST = 64 << 20


@dataclass(frozen=True)
class ProbedFigure:
    """A figure that a probe prints: its unit, and which is better."""

    unit: str
    better: Literal["higher", "lower", ""]


@dataclass(frozen=True)
class OwnProbe:
    """A probe as read. ``folder`` is where its command runs, for so many ``seconds`` at most; ``digest`` is that of all
    files in it."""

    name: str
    folder: Path
    command: tuple[str, ...]
    seconds: int
    figures: Mapping[str, ProbedFigure]
    digest: str


def names(project: Project) -> tuple[str, ...]:
    """The names of the project's probes, sorted."""
    paths = sorted((project.root / FOLDER).glob(f"*/{FILE}"))
    return tuple(path.parent.name for path in paths if NAME.fullmatch(path.parent.name))


def load(project: Project, name: str) -> OwnProbe:
    """Reads the probe called ``name``. Raises UsageError where there is none, FileProblemsError for a bad one."""
    if name not in names(project):
        suggestion = did_you_mean(name, names(project), code=True)
        raise UsageError(
            f"no probe is called `{name}`" + (f"; {suggestion}" if suggestion else ""),
            hint=f"`{FOLDER}/{name}/{FILE}` makes one; `builder schema probe` tells what it holds",
        )
    folder = below(project.root, project.root / FOLDER / name)
    file = f"{FOLDER}/{name}/{FILE}"
    data = read_checked(folder / FILE, file, "probe", project.root)
    figures = {
        figure: ProbedFigure(settings["unit"], "" if settings["better"] == "neither" else settings["better"])
        for figure, settings in (data.get("figures") or {}).items()
    }
    return OwnProbe(
        name=name,
        folder=folder,
        command=tuple(data["command"]),
        seconds=data.get("seconds", DEFAULT_SECONDS),
        figures=figures,
        digest=_digest(folder, file),
    )


def _digest(folder: Path, file: str) -> str:
    """The digest over the names and contents of the files in a probe's folder. What Python caches there is left out."""
    whole = hashlib.sha256()
    paths = [path for path in sorted(folder.rglob("*")) if "__pycache__" not in path.parts and not path.is_dir()]
    for path in paths:
        try:
            content = regular_file.read(path.resolve(), _LARGEST)
        except OSError as error:
            message = f"{path.relative_to(folder)} cannot be read: {error.strerror or error}"
            raise FileProblemsError((Problem(Location(file), message),)) from None
        whole.update(f"{path.relative_to(folder)}\0{hashlib.sha256(content).hexdigest()}\n".encode(errors="replace"))
    return f"sha256:{whole.hexdigest()}"
