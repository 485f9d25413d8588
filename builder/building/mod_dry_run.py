"""A dry run tries the patches of mods on the pinned packages, in the order of the mods, before a build starts.

The result for patches that a script applies is only a hint."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal

from builder.base.errors import FileProblemsError, Problem, SourceError
from builder.base.events import Message, Report
from builder.base.values import dataclass, replace
from builder.definitions.mod import ModPatch, load_all, mod_names, read_script_facts, readable_mods, require_templates
from builder.plan import rules
from builder.sources.patches import CandidatePatch, PatchOutcome, diff_hunks, dry_run

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.definitions.mod import FileCopy, Mod, ScriptFacts
    from builder.pins.packages import Package


ModState = Literal["applies", "in place", "no patches", "excluded", "fails", "not tried"]
FindPackage = Callable[[str], "Package | None"]
"""Returns the package that a patch names, or None if its content is unknown before the build."""


@dataclass(frozen=True)
class TriedPatch:
    """The dry run of one patch of a mod: its ``index`` in the mod, the package ``against`` which it was tried
    (``vllm 0.20.0``), and the outcome."""

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
    """The result for a mod on one ``target``: a definition, a recipe, or a version. ``excluded`` is what the mod
    requires instead; ``missing`` is why nothing could be tried. ``requested``: something uses the mod there.
    ``is_hint``: a script applies the patches, and may apply them elsewhere or not at all."""

    mod: Mod
    target: str
    tried: tuple[TriedPatch, ...] = ()
    excluded: str = ""
    missing: str = ""
    requested: bool = True
    is_hint: bool = False

    @property
    def script(self) -> ScriptFacts | None:
        return read_script_facts(self.mod)

    @property
    def state(self) -> ModState:
        """The state of the mod: the worst state of its patches, unless its ``requires`` excludes this version."""
        if self.excluded:
            return "excluded"
        if self.missing:
            return "not tried"
        states = {patch.outcome.state for patch in self.tried}
        worst: tuple[ModState, ...] = ("fails", "not tried", "applies", "in place")
        return next((state for state in worst if state in states), "no patches")

    @property
    def holds(self) -> bool:
        """True if no known problem prevents using the mod here. A mod that nothing requests may exclude this
        version."""
        fails = self.state == "fails" and not self.is_hint
        return not fails and not (self.state == "excluded" and self.requested)


def load(project: Project, names: Sequence[str]) -> tuple[Mod, ...]:
    """Loads the mods ``names``, or without names all readable mods. Raises the errors of `load_all`, and
    FileProblemsError if ``after`` names a mod that does not exist, or forms a cycle."""
    mods = load_all(project, names) if names else readable_mods(project)[0]
    if names:
        require_templates(mods)
    alone = tuple(replace(mod, requires={}, conflicts=()) for mod in mods)
    rules.arrange_steps([rules.ImageMods("", alone, {})], mod_names(project))
    return mods


def try_all(mods: Sequence[Mod], find: FindPackage) -> tuple[TriedPatch, ...]:
    packages = dict.fromkeys(patch.package for mod in mods for patch in mod.patches)
    patches = [_in_doubt(mods, tried) for package in packages for tried in _on_package(mods, package, find(package))]
    return tuple(sorted(patches, key=lambda tried: (mods.index(tried.mod), tried.index)))


def candidates(mods: Sequence[Mod], package: str, version: str = "") -> tuple[CandidatePatch, ...]:
    """Returns the patches of ``mods`` for ``package``, in order, each with the files that were copied since the
    previous patch. With ``version``, only the patches for that version."""
    collected = []
    copied: dict[str, bytes] = {}
    for mod in mods:
        # Files with an address are included after they are fetched.
        contents = {file.path: file.content for file in (*mod.files, *mod.fetched)}
        copied |= {path: contents[source] for copy in mod.copies for source, path in _copied(copy, contents)}
        for patch in mod.patches:
            if patch.package == package and (not version or patch.fits(version)):
                before = tuple(copied.items())
                collected.append(CandidatePatch(patch.file, contents[patch.file], patch.strip, before))
                copied = {}
    return tuple(collected)


def require_applicable(mods: Sequence[Mod], find: FindPackage, report: Report) -> None:
    """Raises FileProblemsError with every patch of ``mods`` that does not apply. Patches that apply with reduced
    context, that are already applied, or that cannot be tried here are only reported: the build step decides."""
    patches = try_all(mods, find)
    for patch in patches:
        name = f"mod {patch.mod.name}: {patch.file}"
        if patch.outcome.state == "in place":
            report(Message(f"{name} is already in {patch.against}"))
        elif patch.outcome.state == "not tried":
            reason = f"{patch.outcome.problem}; its step in the build decides"
            report(Message(f"{name} was not tried before the build: {reason}"))
        elif patch.outcome.reduced:
            report(Message(f"{name} applies to {patch.against} with less context: {'; '.join(patch.outcome.reduced)}"))
    failed = [patch for patch in patches if patch.outcome.state == "fails"]
    if failed:
        problems = (
            Problem(
                patch.mod.location("patches", patch.index, "file"),
                f"{patch.file} does not apply to {patch.against}: {patch.outcome.problem}",
            )
            for patch in failed
        )
        hint = f"`builder mods check {failed[0].mod.name} --against VERSION…` shows which versions it applies to"
        raise FileProblemsError(tuple(problems), hint=hint)


def _on_package(mods: Sequence[Mod], name: str, package: Package | None) -> list[TriedPatch]:
    patches = [
        (mod, index)
        for mod in mods
        for index, patch in enumerate(mod.patches)
        if patch.package == name and (package is None or patch.fits(package.version))
    ]
    if package is None:
        untried = PatchOutcome("not tried", problem=f"no version of {name} is pinned")
        return [TriedPatch(mod, index, name, untried) for mod, index in patches]
    try:
        outcomes = dry_run(package.tree, candidates(mods, name, package.version))
    except SourceError as error:
        outcomes = (PatchOutcome("not tried", problem=" ".join(error.message.split())),) * len(patches)
    return [
        TriedPatch(mod, index, package.label, outcome) for (mod, index), outcome in zip(patches, outcomes, strict=True)
    ]


def _in_doubt(mods: Sequence[Mod], tried: TriedPatch) -> TriedPatch:
    """Turns a failure into "not tried" if a script or an unfetched file may change the target of the patch."""
    if tried.outcome.state != "fails":
        return tried
    patch = tried.mod.patches[tried.index]
    (candidate,) = candidates([replace(tried.mod, patches=(patch,))], patch.package)
    before = [mod for mod in mods[: mods.index(tried.mod)] if _may_change(mod, patch, candidate.touched_files)]
    own = replace(tried.mod, run=None)  # its script runs after its patches
    before += [own] if _may_change(own, patch, candidate.touched_files) else []
    if not before:
        return tried
    names = " and ".join(mod.name for mod in before)
    problem = f"{tried.outcome.problem}; but {names} may change the file first"
    return replace(tried, outcome=PatchOutcome("not tried", problem=problem))


_INSTALLED = ("site-packages", "dist-packages")
# A script that names the package and one of these commands may change any file of the package.
_SWEEPS = re.compile(
    r"\*|\bfind\b|\bgrep\s+-\w*r|\bwalk\(|\bpip3?\b|\buv\b|\bcurl\b|\bwget\b|\bgit\s+(?:clone|am|apply)\b"
)


def _may_change(mod: Mod, patch: ModPatch, touched: Collection[str]) -> bool:
    """True if ``mod`` may change a file in ``touched``, the files of ``patch``, in a way that only the build shows:
    with a file that is not fetched yet, or with a script that names the file."""
    contents = {file.path for file in (*mod.files, *mod.fetched)}
    unfetched = (path for copy in mod.copies if copy.is_remote for source, path in _copied(copy, {copy.staged: b""}))
    if any(copy.is_remote and copy.staged not in contents for copy in mod.copies) and set(touched) & set(unfetched):
        return True
    facts = read_script_facts(mod)
    if facts is None:
        return False
    stems = "|".join(sorted({re.escape(PurePosixPath(path).stem) for path in touched} or {r"(?!)"}))
    names_file, names_package = re.compile(rf"\b(?:{stems})\b"), re.compile(rf"\b{re.escape(patch.package)}\b")
    tried = {each.file for each in mod.patches}
    for file in mod.files:
        text = file.content.decode("utf-8", "replace")
        is_read = file.path not in tried and not file.path.endswith((".md", ".txt", ".rst"))
        if is_read and (names_file.search(text) or (names_package.search(text) and _SWEEPS.search(text))):
            return True
    return False


def _copied(copy: FileCopy, contents: Collection[str]) -> Iterator[tuple[str, str]]:
    into = copy.to.endswith("/") or copy.to == "." or copy.to.endswith("/.")
    name = copy.staged.rpartition("/")[2]
    target = f"{copy.to.removesuffix('.').rstrip('/')}/{name}" if into else copy.to
    for source in contents:
        if source == copy.staged:
            path = target
        elif source.startswith(f"{copy.staged}/"):
            path = f"{target}/{source.removeprefix(f'{copy.staged}/')}"
        else:
            continue
        for folder in _INSTALLED:
            if f"/{folder}/" in path:
                yield source, path.rpartition(f"/{folder}/")[2]


# Patches that the script of a mod applies, read from the diffs beside the script. Where a script applies a patch, and
# whether it continues without it, is unknown.

_IN_REPOSITORY = ("src", "python", "lib")  # the folders of a repository that contain its packages
_SIDES = ("a", "b", "c", "i", "o", "w")  # git's prefixes


def as_declared(mod: Mod) -> Mod:
    """Returns ``mod`` with the patches that its script names, as if mod.yaml declared them. Returns ``mod`` unchanged
    if it declares patches, or if the package of no patch is known."""
    facts = read_script_facts(mod)
    if mod.patches or facts is None or not facts.patches:
        return mod
    contents = {file.path: file.content for file in mod.files}
    patches = {}
    for name in facts.patches:  # the patch for the package of most files in the diff
        changed = sorted({hunk.file for hunk in diff_hunks(contents[name], 0) if hunk.file != "/dev/null"})
        roots = Counter(filter(None, map(_root, changed)))
        patches[name] = ModPatch(name, *roots.most_common(1)[0][0]) if roots else None
    files = tuple(
        replace(file, content=_within(file.content, patch)) if (patch := patches.get(file.path)) else file
        for file in mod.files
    )
    return replace(mod, patches=tuple(patch for patch in patches.values() if patch), files=files)


def _within(diff: bytes, patch: ModPatch) -> bytes:
    """The part of ``diff`` that changes the package. The diff of a pull request also changes tests and documentation,
    which site-packages does not contain, so scripts leave them out."""

    def touches(part: bytes) -> bool:
        names = part.partition(b"\n")[0].decode("utf-8", "replace").split(" ")[2:]
        return any(name.split("/")[patch.strip : patch.strip + 1] == [patch.package] for name in names)

    first, *rest = re.split(rb"^(?=diff --git )", diff, flags=re.MULTILINE)
    inside = list(filter(touches, rest))
    return first + b"".join(inside) if inside else diff


def _root(name: str) -> tuple[str, int] | None:
    """The importable package of a file in a diff, and the number of folders before the package."""
    folders = name.split("/")[:-1]
    strip = 0
    installed = [index for index, folder in enumerate(folders) if folder in _INSTALLED]
    if installed:
        strip = installed[-1] + 1
    elif folders and folders[0] in _SIDES:
        strip = 1
    strip += not installed and folders[strip : strip + 1] != [] and folders[strip] in _IN_REPOSITORY
    package = folders[strip] if strip < len(folders) else ""
    return (package, strip) if package.isidentifier() else None
