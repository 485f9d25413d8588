"""Do the patches of mods apply? Tried in the order of the mods, on the files of the packages that they change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from builder.definitions.mods import mod_reading
from builder.errors import FileProblemsError, Problem, SourceError
from builder.events import Message
from builder.plan import mod_rules
from builder.sources.git import patch_dry_run
from builder.sources.git.patch_dry_run import PatchOutcome

if TYPE_CHECKING:
    from builder.definitions.mods.mod import Mod
    from builder.events import Report
    from builder.pinning.packages import Package
    from builder.project import Project

State = Literal["applies", "in place", "no patches", "excluded", "fails", "not tried"]
Find = Callable[[str], "Package | None"]
"""Gives the package that a patch names, or None where nothing is known of it before the build."""


@dataclass(frozen=True)
class Tried:
    """A patch of a mod, its ``index`` among them, what it was tried on (``vllm 0.20.0``), and what became of it."""

    mod: Mod
    index: int
    against: str
    outcome: PatchOutcome

    @property
    def file(self) -> str:
        return self.mod.patches[self.index].file

    @property
    def package(self) -> str:
        return self.mod.patches[self.index].package


@dataclass(frozen=True)
class Verdict:
    """A mod against one ``target``: a definition, a recipe, or a version. ``excluded`` says what the mod requires
    instead, ``missing`` why nothing could be tried. ``asked`` where something counts on the mod there."""

    mod: Mod
    target: str
    tried: tuple[Tried, ...] = ()
    excluded: str = ""
    missing: str = ""
    asked: bool = True

    @property
    def state(self) -> State:
        """The mod as a whole: the worst of its patches, unless its ``requires`` leaves this version out."""
        if self.excluded:
            return "excluded"
        if self.missing:
            return "not tried"
        states = {one.outcome.state for one in self.tried}
        worst: tuple[State, ...] = ("fails", "not tried", "applies", "in place")
        return next((state for state in worst if state in states), "no patches")

    @property
    def holds(self) -> bool:
        """Whether nothing speaks against the mod here. One that nobody asks for here may well exclude this version."""
        return self.state != "fails" and not (self.state == "excluded" and self.asked)


def load(project: Project, names: Sequence[str]) -> tuple[Mod, ...]:
    """The mods ``names`` (all where there are none). Raises what ``mod_reading.load_all`` does, and
    FileProblemsError where they name mods in `after` that there are not, or wait for each other."""
    mods = mod_reading.load_all(project, names or mod_reading.names(project))
    alone = tuple(replace(one, requires={}, conflicts=()) for one in mods)
    mod_rules.arrange([mod_rules.ImageMods("", alone, {})], mod_reading.names(project))
    return mods


def in_order(mods: Sequence[Mod], find: Find) -> tuple[Tried, ...]:
    """What becomes of every patch of ``mods``, each after those before it."""
    wanted = dict.fromkeys(patch.package for mod in mods for patch in mod.patches)
    found = [_foreseen(mods, tried) for package in wanted for tried in _on_package(mods, package, find(package))]
    return tuple(sorted(found, key=lambda tried: (mods.index(tried.mod), tried.index)))


def patches(mods: Sequence[Mod], package: str) -> tuple[patch_dry_run.CandidatePatch, ...]:
    """The patches of ``mods`` to ``package``, in order."""
    return tuple(
        patch_dry_run.CandidatePatch(patch.file, _content(mod, patch.file), patch.strip)
        for mod in mods
        for patch in mod.patches
        if patch.package == package
    )


def require(mods: Sequence[Mod], find: Find, report: Report) -> None:
    """Raises FileProblemsError with every patch of ``mods`` that does not apply. Those that apply with part of their
    context, are in place already or cannot be tried here are reported: the step in the image has the last word."""
    tried = in_order(mods, find)
    for one in tried:
        reduced = [str(shift) for shift in one.outcome.shifts if shift.context]
        if one.outcome.state == "in place":
            report(Message(f"mod {one.mod.name}: {one.file} is in {one.against} already"))
        elif one.outcome.state == "not tried":
            said = f"{one.outcome.problem}; its step in the image decides"
            report(Message(f"mod {one.mod.name}: {one.file} was not tried before the build: {said}"))
        elif reduced:
            report(Message(f"mod {one.mod.name}: {one.file} fits {one.against} in part: {'; '.join(reduced)}"))
    failed = [one for one in tried if one.outcome.state == "fails"]
    if failed:
        hint = f"`builder mods check {failed[0].mod.name} --against VERSION…` tells what it applies to"
        raise FileProblemsError(tuple(_problem(one) for one in failed), hint=hint)


def _problem(tried: Tried) -> Problem:
    said = f"{tried.file} does not apply to {tried.against}: {tried.outcome.problem}"
    return Problem(tried.mod.location("patches", tried.index, "file"), said)


def _on_package(mods: Sequence[Mod], name: str, package: Package | None) -> list[Tried]:
    listed = [(mod, index) for mod in mods for index, patch in enumerate(mod.patches) if patch.package == name]
    if package is None:
        untried = PatchOutcome("not tried", problem=f"no pin says which {name} it will be")
        return [Tried(mod, index, name, untried) for mod, index in listed]
    try:
        outcomes = patch_dry_run.dry_run(package.tree, patches(mods, name))
    except SourceError as error:
        outcomes = (PatchOutcome("not tried", problem=" ".join(error.message.split())),) * len(listed)
    return [Tried(mod, index, package.label, one) for (mod, index), one in zip(listed, outcomes, strict=True)]


def _foreseen(mods: Sequence[Mod], tried: Tried) -> Tried:
    """A patch that fails may still be right where a script, or a file that is put somewhere, changes the package before
    it: nobody can tell without running that."""
    before = mods[: mods.index(tried.mod)]
    others = [mod.name for mod in before if mod.run or _puts_elsewhere(mod)]
    others += [tried.mod.name] if _puts_elsewhere(tried.mod) else []
    if tried.outcome.state != "fails" or not others:
        return tried
    problem = f"{tried.outcome.problem}; but {' and '.join(others)} may have changed that by then"
    return replace(tried, outcome=PatchOutcome("not tried", problem=problem))


def _puts_elsewhere(mod: Mod) -> bool:
    """Whether it puts files outside the workspace, which holds no packages."""
    return any(copy.to.startswith("/") for copy in mod.copies)


def _content(mod: Mod, path: str) -> bytes:
    return next(file.content for file in mod.files if file.path == path)
