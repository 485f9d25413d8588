"""The dry run of mods' patches before a build, in the order of the mods, on the files of the packages they change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from builder.building import earlier_changes, loose_patches
from builder.definitions.mods import mod_problems, mod_reading, script_facts
from builder.errors import FileProblemsError, Problem, SourceError
from builder.events import Message
from builder.plan import mod_rules
from builder.sources.git import patch_dry_run
from builder.sources.git.patch_dry_run import PatchOutcome

if TYPE_CHECKING:
    from builder.definitions.mods.mod import Mod
    from builder.definitions.mods.script_facts import ScriptFacts
    from builder.events import Report
    from builder.pinning.packages import Package
    from builder.project import Project

ModState = Literal["applies", "in place", "no patches", "excluded", "fails", "not tried"]
FindPackage = Callable[[str], "Package | None"]
"""Returns the package that a patch names, or None where nothing is known of it before the build."""


@dataclass(frozen=True)
class TriedPatch:
    """The dry run of one patch of a mod: its ``index`` among the mod's patches, the package that it was tried
    ``against`` (``vllm 0.20.0``), and the outcome."""

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
class ModVerdict:
    """The result for a mod on one ``target``: a definition, a recipe, or a version. ``excluded`` says what the mod
    requires instead, ``missing`` why nothing could be tried. ``requested`` if something relies on the mod there;
    ``is_hint`` if the patches are those of a script, which may apply them elsewhere or do without."""

    mod: Mod
    target: str
    tried: tuple[TriedPatch, ...] = ()
    excluded: str = ""
    missing: str = ""
    requested: bool = True
    is_hint: bool = False

    @property
    def script(self) -> ScriptFacts | None:
        """The facts about the mod's script."""
        return script_facts.of(self.mod)

    @property
    def state(self) -> ModState:
        """The state of the mod as a whole: the worst of its patches, unless its ``requires`` excludes this version."""
        if self.excluded:
            return "excluded"
        if self.missing:
            return "not tried"
        states = {patch.outcome.state for patch in self.tried}
        worst: tuple[ModState, ...] = ("fails", "not tried", "applies", "in place")
        return next((state for state in worst if state in states), "no patches")

    @property
    def holds(self) -> bool:
        """True if the mod can be used here, as far as that is certain. One that nothing requests here may exclude this
        version."""
        fails = self.state == "fails" and not self.is_hint
        return not fails and not (self.state == "excluded" and self.requested)


def load(project: Project, names: Sequence[str]) -> tuple[Mod, ...]:
    """Loads the mods ``names``; if there are none all that can be read. Raises what ``mod_reading.load_all`` does, and
    FileProblemsError where their ``after`` names a mod that does not exist, or forms a cycle."""
    mods = mod_reading.load_all(project, names) if names else mod_reading.readable(project)
    if names:
        mod_problems.require_templates(mods)
    alone = tuple(replace(mod, requires={}, conflicts=()) for mod in mods)
    mod_rules.arrange([mod_rules.ImageMods("", alone, {})], mod_reading.names(project))
    return mods


def try_all(mods: Sequence[Mod], find: FindPackage) -> tuple[TriedPatch, ...]:
    """Tries every patch of ``mods``, each after those before it."""
    packages = dict.fromkeys(patch.package for mod in mods for patch in mod.patches)
    patches = [_in_doubt(mods, tried) for package in packages for tried in _on_package(mods, package, find(package))]
    return tuple(sorted(patches, key=lambda tried: (mods.index(tried.mod), tried.index)))


def candidates(mods: Sequence[Mod], package: str, version: str = "") -> tuple[patch_dry_run.CandidatePatch, ...]:
    """Returns the patches of ``mods`` to ``package``, in order, each with the files that were copied since the one
    before it; with ``version`` those to that one alone."""
    collected = []
    copied: dict[str, bytes] = {}
    for mod in mods:
        copied |= earlier_changes.copied_files(mod)
        for patch in mod.patches:
            if patch.package == package and (not version or patch.fits(version)):
                before = tuple(copied.items())
                collected.append(
                    patch_dry_run.CandidatePatch(patch.file, _content(mod, patch.file), patch.strip, before)
                )
                copied = {}
    return tuple(collected)


def require_applicable(mods: Sequence[Mod], find: FindPackage, report: Report) -> None:
    """Raises FileProblemsError with every patch of ``mods`` that does not apply. Those that apply with part of their
    context, are in place already or cannot be tried here are reported: the step in the image decides."""
    patches = _with_scripts(mods, try_all(mods, find), find)
    for patch in patches:
        name = f"mod {patch.mod.name}: {patch.file}"
        reduced = [str(shift) for shift in patch.outcome.shifts if shift.context]
        if patch.outcome.state == "in place":
            report(Message(f"{name} is in {patch.against} already"))
        elif patch.outcome.state == "not tried":
            reason = f"{patch.outcome.problem}; its step in the image decides"
            report(Message(f"{name} was not tried before the build: {reason}"))
        elif reduced:
            report(Message(f"{name} fits {patch.against} in part: {'; '.join(reduced)}"))
    failed = [patch for patch in patches if patch.outcome.state == "fails"]
    if failed:
        hint = f"`builder mods check {failed[0].mod.name} --against VERSION…` tells what it applies to"
        raise FileProblemsError(tuple(map(_problem, failed)), hint=hint)


def _problem(tried: TriedPatch) -> Problem:
    message = f"{tried.file} does not apply to {tried.against}: {tried.outcome.problem}"
    return Problem(tried.mod.location("patches", tried.index, "file"), message)


def _on_package(mods: Sequence[Mod], name: str, package: Package | None) -> list[TriedPatch]:
    patches = [
        (mod, index)
        for mod in mods
        for index, patch in enumerate(mod.patches)
        if patch.package == name and (package is None or patch.fits(package.version))
    ]
    if package is None:
        untried = PatchOutcome("not tried", problem=f"no pin says which {name} it will be")
        return [TriedPatch(mod, index, name, untried) for mod, index in patches]
    try:
        outcomes = patch_dry_run.dry_run(package.tree, candidates(mods, name, package.version))
    except SourceError as error:
        outcomes = (PatchOutcome("not tried", problem=" ".join(error.message.split())),) * len(patches)
    return [
        TriedPatch(mod, index, package.label, outcome) for (mod, index), outcome in zip(patches, outcomes, strict=True)
    ]


def _in_doubt(mods: Sequence[Mod], tried: TriedPatch) -> TriedPatch:
    """Turns a failure into "not tried" where a script or a file that is not fetched yet may change what the patch is
    applied to: that shows only in the build."""
    if tried.outcome.state != "fails":
        return tried
    patch = tried.mod.patches[tried.index]
    (candidate,) = candidates([replace(tried.mod, patches=(patch,))], patch.package)
    before = [
        mod for mod in mods[: mods.index(tried.mod)] if earlier_changes.may_change(mod, patch, candidate.touched_files)
    ]
    own = replace(tried.mod, run=None)  # its script comes after its patches
    before += [own] if earlier_changes.may_change(own, patch, candidate.touched_files) else []
    if not before:
        return tried
    names = " and ".join(mod.name for mod in before)
    problem = f"{tried.outcome.problem}; but {names} may have changed that by then"
    return replace(tried, outcome=PatchOutcome("not tried", problem=problem))


def _with_scripts(mods: Sequence[Mod], tried: Sequence[TriedPatch], find: FindPackage) -> tuple[TriedPatch, ...]:
    """``tried``, where those that do not apply are tried once more after the patches that scripts apply themselves."""
    if all(patch.outcome.state not in ("fails", "not tried") for patch in tried):
        return tuple(tried)
    declared = [loose_patches.as_declared(mod) for mod in mods]
    again = {(each.mod.name, each.file): each.outcome for each in try_all(declared, find)}
    return tuple(
        replace(patch, outcome=outcome)
        if patch.outcome.state in ("fails", "not tried")
        and (outcome := again[patch.mod.name, patch.file]).state in ("applies", "in place")
        else patch
        for patch in tried
    )


def _content(mod: Mod, path: str) -> bytes:
    return next(file.content for file in mod.files if file.path == path)
