"""Reading mods: ``mods/NAME/`` or ``mods/NAME.zip``.

A mod with only a ``run.sh`` is a valid one; ``mod.yaml`` describes one further.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from builder.definitions.mods import mod_files, mod_problems
from builder.definitions.mods.mod import FileCopy, Mod, ModCheck, ModPatch
from builder.definitions.reading import checked
from builder.errors import FileProblemsError, Location, Problem, UsageError
from builder.suggestions import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from builder.definitions.mods.mod_files import ModContents
    from builder.project import Project

# How long a script may take, in seconds, where mod.yaml says nothing: kernels that are compiled take a while.
SCRIPT_SECONDS = 3600
# A name is part of a path in the Dockerfile and of a step's name.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


def names(project: Project) -> tuple[str, ...]:
    """The names of all mods in the project, sorted."""
    if not project.mods.is_dir():
        return ()
    folders = {path.parent.name for kind in ("run.sh", "mod.yaml") for path in project.mods.glob(f"*/{kind}")}
    return tuple(sorted(folders | {path.stem for path in project.mods.glob("*.zip")}))


def name_of(asked: str) -> str:
    """The name in ``mods/NAME`` or ``mods/NAME.zip``, as recipes write it, or ``NAME``."""
    return asked.removeprefix("mods/").rstrip("/").removesuffix(".zip")


def load(project: Project, asked: str) -> Mod:
    """The mod ``NAME`` or ``mods/NAME``. Raises UsageError for an unknown one, FileProblemsError for a bad one."""
    name = name_of(asked)
    known = names(project)
    if name not in known:
        raise UsageError(
            f"no mod `{name}` in {project.mods} (a mod is a folder with a run.sh or a mod.yaml, or a zip of one)",
            hint=did_you_mean(name, known) or f"there are: {', '.join(known) or 'none'}",
        )
    contents = _contents(project, name)
    if not NAME.fullmatch(name):
        said = "a mod's name has letters, digits and . _ + - in it, and no others"
        raise FileProblemsError((Problem(Location(contents.place), said),))
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
        drops=tuple(FileCopy(drop["from"].rstrip("/"), drop["to"]) for drop in data.get("files", ())),
        patches=tuple(ModPatch(**patch) for patch in data.get("patches", ())),
        packages=tuple(data.get("packages", ())),
        env={key: str(value) for key, value in data.get("env", {}).items()},
        requires=dict(data.get("requires", {})),
        conflicts=tuple(map(name_of, data.get("conflicts", ()))),
        after=tuple(map(name_of, data.get("after", ()))),
        may_be_empty=data.get("may_be_empty", False),
        seconds=data.get("timeout", SCRIPT_SECONDS),
        file=contents.yaml_file if described else contents.place,
        yaml=contents.yaml or "",
    )
    wrong = tuple(mod_problems.problems(mod))
    if wrong:
        raise FileProblemsError(wrong)
    return mod


def load_all(project: Project, asked: Iterable[str]) -> tuple[Mod, ...]:
    """Each mod once, in the order asked for. Raises UsageError for all unknown ones, or FileProblemsError with the
    problems of all bad ones."""
    found: list[Mod] = []
    unknown: list[UsageError] = []
    wrong: list[Problem] = []
    for name in dict.fromkeys(map(name_of, asked)):
        try:
            found.append(load(project, name))
        except UsageError as error:
            unknown.append(error)
        except FileProblemsError as error:
            wrong.extend(error.problems)
    if unknown:
        hints = dict.fromkeys(error.hint for error in unknown)
        raise UsageError("\n".join(error.message for error in unknown), hint="\n".join(hints))
    if wrong:
        raise FileProblemsError(tuple(wrong))
    return tuple(found)


def _contents(project: Project, name: str) -> ModContents:
    folder, archive = project.mods / name, project.mods / f"{name}.zip"
    if not archive.is_file():
        return mod_files.read_folder(folder, f"mods/{name}")
    if folder.is_dir():
        said = f"mods/{name} is there as a folder, too; remove one of them"
        raise FileProblemsError((Problem(Location(f"mods/{name}.zip"), said),))
    return mod_files.read_zip(archive, f"mods/{name}.zip")


def unknown(known: Collection[str], asked: Iterable[str], place: Callable[[int], Location]) -> Iterator[Problem]:
    """A problem for each of ``asked`` (``mods/NAME`` or ``NAME``) that is none of the mods ``known``; ``place`` gives
    where the one of that index is written."""
    for index, name in enumerate(map(name_of, asked)):
        if name not in known:
            yield Problem(place(index), no_mod(name, known))


def no_mod(name: str, known: Collection[str]) -> str:
    """What to say of a file that names the mod ``name``, which is none of those ``known``."""
    there = f"there are: {', '.join(known) or 'none'}"
    return f"no mod `{name}` in mods/; {did_you_mean(name, known) or there}"
