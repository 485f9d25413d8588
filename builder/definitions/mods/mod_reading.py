"""Reading mods: ``mods/NAME/`` or ``mods/NAME.zip``.

A mod may consist of a ``run.sh`` alone; a ``mod.yaml`` describes it further.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from builder.definitions.mods import known_sources, mod_files, mod_problems
from builder.definitions.mods.mod import FileCopy, Mod, ModCheck, ModPatch, is_address
from builder.definitions.reading import checked
from builder.errors import FileProblemsError, Location, Problem, UsageError
from builder.suggestions import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from builder.definitions.mods.mod_files import ModContents
    from builder.project import Project

# The time limit of a script in seconds, unless mod.yaml sets one: compiling kernels takes a while.
SCRIPT_SECONDS = 3600
# A name is part of a path in the Dockerfile and of a step's name.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


def names(project: Project) -> tuple[str, ...]:
    """The names of all mods in the project, sorted."""
    if not project.mods.is_dir():
        return ()
    folders = {path.parent.name for kind in ("run.sh", "mod.yaml") for path in project.mods.glob(f"*/{kind}")}
    names_there = folders | {path.stem for path in project.mods.glob("*.zip")}
    return tuple(sorted(name for name in names_there if not name.startswith(".")))  # others are on their way in or out


def name_of(text: str) -> str:
    """The name in ``mods/NAME``, ``./mods/NAME/`` or ``mods/NAME.zip``, as recipes write it, or in a plain ``NAME``."""
    return text.removeprefix("./").removeprefix("mods/").rstrip("/").removesuffix(".zip")


def load(project: Project, text: str) -> Mod:
    """Reads the mod ``NAME`` or ``mods/NAME``. Raises UsageError where there is none, FileProblemsError where it is
    invalid."""
    name = name_of(text)
    existing = names(project)
    if name not in existing:
        hint = known_sources.remedy(project, name) or did_you_mean(name, existing)
        raise UsageError(
            f"no mod `{name}` in {project.mods} (a mod is a folder with a run.sh or a mod.yaml, or a zip of one)",
            hint=hint or f"there are: {', '.join(existing) or 'none'}",
        )
    contents = _contents(project, name)
    if not NAME.fullmatch(name):
        message = "a mod's name has letters, digits and . _ + - in it, and no others"
        raise FileProblemsError((Problem(Location(contents.shown), message),))
    described = contents.yaml is not None
    data: dict[str, Any] = (
        checked(contents.yaml, contents.yaml_file, "mod") if contents.yaml is not None else {"run": "run.sh"}
    )
    mod = Mod(
        name=name,
        description=data.get("description", ""),
        described=described,
        run=data.get("run"),
        network=data.get("network", not described or bool(data.get("packages"))),
        checks=tuple(ModCheck(**check) for check in data.get("check", ())),
        files=contents.files,
        copies=tuple(map(_copy, data.get("files", ()))),
        patches=tuple(ModPatch(**patch) for patch in data.get("patches", ())),
        packages=tuple(data.get("packages", ())),
        env={key: str(value) for key, value in data.get("env", {}).items()},
        requires=dict(data.get("requires", {})),
        conflicts=tuple(map(name_of, data.get("conflicts", ()))),
        after=tuple(map(name_of, data.get("after", ()))),
        may_be_empty=data.get("may_be_empty", False),
        seconds=data.get("timeout", SCRIPT_SECONDS),
        file=contents.yaml_file if described else contents.shown,
        yaml=contents.yaml or "",
    )
    wrong = tuple(mod_problems.problems(mod))
    if wrong:
        raise FileProblemsError(wrong)
    return mod


def _copy(entry: dict[str, str]) -> FileCopy:
    source = entry["from"] if is_address(entry["from"]) else entry["from"].rstrip("/")
    return FileCopy(source, entry["to"], entry.get("sha256", ""))


def load_all(project: Project, texts: Iterable[str]) -> tuple[Mod, ...]:
    """Reads each mod once, in the order given. Raises UsageError with all that do not exist, or else FileProblemsError
    with the problems of all that are invalid."""
    mods: list[Mod] = []
    unknown: list[UsageError] = []
    wrong: list[Problem] = []
    for name in dict.fromkeys(map(name_of, texts)):
        try:
            mods.append(load(project, name))
        except UsageError as error:
            unknown.append(error)
        except FileProblemsError as error:
            wrong.extend(error.problems)
    if unknown:
        hints = dict.fromkeys(error.hint for error in unknown)
        raise UsageError("\n".join(error.message for error in unknown), hint="\n".join(hints))
    if wrong:
        raise FileProblemsError(tuple(wrong))
    return tuple(mods)


def readable(project: Project) -> tuple[Mod, ...]:
    """Reads all mods of the project but those that are invalid, which ``problems`` tells."""
    mods: list[Mod] = []
    for name in names(project):
        with suppress(FileProblemsError):
            mods.append(load(project, name))
    return tuple(mods)


def problems(project: Project) -> tuple[Problem, ...]:
    """The problems of all mods of the project that are invalid."""
    collected: list[Problem] = []
    for name in names(project):
        try:
            load(project, name)
        except FileProblemsError as error:
            collected.extend(error.problems)
    return tuple(collected)


def _contents(project: Project, name: str) -> ModContents:
    folder, archive = project.mods / name, project.mods / f"{name}.zip"
    if not archive.is_file():
        return mod_files.read_folder(folder, f"mods/{name}")
    if folder.is_dir():
        message = f"mods/{name} is there as a folder, too; remove one of them"
        raise FileProblemsError((Problem(Location(f"mods/{name}.zip"), message),))
    return mod_files.read_zip(archive, f"mods/{name}.zip")


def unknown(project: Project, texts: Iterable[str], location: Callable[[int], Location]) -> Iterator[Problem]:
    """A problem for each of ``texts`` (``mods/NAME`` or ``NAME``) that names no mod of the project; ``location``
    returns the location of the text with that index."""
    existing = names(project)
    for index, name in enumerate(map(name_of, texts)):
        if name not in existing:
            yield Problem(location(index), no_mod(name, existing, known_sources.remedy(project, name)))


def no_mod(name: str, existing: Collection[str], remedy: str = "") -> str:
    """The message for a file that names the mod ``name``, which is not among the ``existing`` ones; ``remedy`` says
    how to get it, where that is known."""
    there = f"there are: {', '.join(existing) or 'none'}"
    return f"no mod `{name}` in mods/; {remedy or did_you_mean(name, existing) or there}"
