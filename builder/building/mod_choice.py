"""The mods of each image, their files, and the checks that a build can use them."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal

from builder.base.errors import FileProblemsError, Problem, SourceError, UsageError
from builder.base.events import Message, Report
from builder.base.files import is_abandoned, read_plain_file, write_atomically
from builder.base.values import dataclass, replace
from builder.definitions import image, recipe
from builder.definitions.fields import canonical
from builder.definitions.image import PACKAGES_BUILT_FROM, ImageDefinition
from builder.definitions.mod import (
    FETCHED,
    LARGEST_FILE,
    ModPatch,
    PlainFile,
    load_all,
    load_mod,
    mod_names,
    name_of,
    read_script_facts,
    readable_mods,
    require_templates,
    unknown_mods,
)
from builder.lock.model import GitPin, LockedPackage, Pins
from builder.pins import agreement
from builder.plan import rules
from builder.sources import git, python
from builder.sources.patches import CandidatePatch, PatchOutcome, diff_hunks, dry_run

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.definitions.mod import FileCopy, Mod, ScriptFacts
    from builder.definitions.recipe import Recipe
    from builder.numbers.workspace import Workspace
    from builder.pins.agreement import Named
    from builder.pins.packages import Package


def load_mods(
    project: Project, chain: Sequence[ImageDefinition], recipe: Recipe | None, further: Sequence[str] = ()
) -> tuple[tuple[Mod, ...], ...]:
    """Loads the mods of each definition of ``chain``, as listed. The last definition also gets the mods of ``recipe``
    and the ``further`` mods. A mod that a parent image already has is not baked again. `left_out` describes the mods of
    a recipe that change nothing in an image. Raises the errors of `require_known` and `load_all`."""
    require_known(project, chain, recipe)
    on_top = (*(recipe.mods if recipe else ()), *further)
    own_names: list[list[str]] = []
    for definition in chain:
        requested = (*definition.mods, *(on_top if definition is chain[-1] else ()))
        inherited = {name for names in own_names for name in names}
        own_names.append([name for name in dict.fromkeys(map(name_of, requested)) if name not in inherited])
    mods = {mod.name: mod for mod in load_all(project, (name for names in own_names for name in names))}
    of_recipe = set(map(name_of, recipe.mods)) if recipe else set()
    of_recipe -= set(map(name_of, (*chain[-1].mods, *further)))

    def changes_nothing(mod: Mod) -> bool:
        facts = read_script_facts(mod)
        return facts is not None and facts.changes_nothing and not mod.described

    return tuple(
        tuple(mods[name] for name in names if not (name in of_recipe and changes_nothing(mods[name])))
        for names in own_names
    )


def left_out(project: Project, recipe: Recipe, mods: Sequence[tuple[Mod, ...]]) -> Iterator[str]:
    """A message for each mod of ``recipe`` that is not in ``mods``, because it would not change the image: it works on
    the machine while a model is served, or does nothing."""
    baked = {mod.name for own in mods for mod in own}
    for name in dict.fromkeys(map(name_of, recipe.mods)):
        if name not in baked and (facts := read_script_facts(load_mod(project, name))):
            yield f"mod {name} is left out: {facts.instead}"


def require_known(project: Project, chain: Sequence[ImageDefinition], recipe: Recipe | None) -> None:
    """Raises FileProblemsError with the location of every name in the files that is not the name of a mod."""
    problems = [
        problem
        for definition in chain
        for problem in unknown_mods(project, definition.mods, partial(image.location, project, definition.name, "mods"))
    ]
    problems += unknown_mods(project, recipe.mods, partial(recipe.location, "mods")) if recipe else ()
    if problems:
        raise FileProblemsError(tuple(problems))


def arrange_mods(
    project: Project, chain: Sequence[ImageDefinition], mods: Sequence[tuple[Mod, ...]], pins: Sequence[Pins]
) -> tuple[tuple[Mod, ...], ...]:
    """Returns ``mods`` in the order in which they are baked. Raises the errors of `rules.arrange_steps`."""
    if not any(mods):
        return tuple(mods)
    pinned: dict[str, str] = {}
    images: list[rules.ImageMods] = []
    for definition, own, own_pins in zip(chain, mods, pins, strict=True):
        pinned = {**pinned, **rules.pinned_versions(definition, own_pins)}
        images.append(rules.ImageMods(definition.name, own, pinned))
    return rules.arrange_steps(images, mod_names(project))


# Replaces `platform: host`: a definition has the same mods on all platforms.
_ANY_PLATFORM = "linux/arm64"


@dataclass(frozen=True)
class ModUse:
    """The ``mods`` that the definition or ``recipe`` with this ``name`` adds to the image of ``definition``."""

    name: str
    definition: str
    mods: tuple[str, ...]
    recipe: Recipe | None = None


def definitions(project: Project) -> dict[str, ImageDefinition]:
    """The readable definitions of the project, by name. `doctor` reports problems in the others."""
    loaded = {}
    for name in image.definition_names(project):
        with suppress(FileProblemsError, UsageError):
            loaded[name] = image.load_image(project, name, _ANY_PLATFORM)
    return loaded


def mod_uses(project: Project, definitions: Mapping[str, ImageDefinition]) -> tuple[ModUse, ...]:
    """The uses by ``definitions``, then by the readable recipes whose image one of them builds."""
    by_repository = {definition.repository: name for name, definition in definitions.items()}
    all_uses = [ModUse(name, name, tuple(map(name_of, each.mods))) for name, each in definitions.items()]
    for name, loaded in recipe.readable_recipes(project):
        if loaded.repository in by_repository and not loaded.number:  # a numbered image exists already
            mods = tuple(map(name_of, loaded.mods))
            all_uses.append(ModUse(name, by_repository[loaded.repository], mods, loaded))
    return tuple(all_uses)


# Mod files with an address are fetched before a build, and stored under their digest in the state folder. The build
# itself reads them from its build directory, never from the network.

_SHA256 = re.compile("[0-9a-f]{64}")


def fetch_mod_files(workspace: Workspace, mods: Sequence[tuple[Mod, ...]]) -> tuple[tuple[Mod, ...], ...]:
    """Returns the ``mods`` of each definition of a chain with their fetched files. Files that were fetched before need
    no network. Raises SourceError if an address does not answer or has other content than mod.yaml requires, and
    FileProblemsError if a fetched chat template cannot be compiled."""
    return tuple(tuple(_with_files(workspace, mod) for mod in own) for own in mods)


def stale(project: Project) -> tuple[Path, ...]:
    """The downloads that no mod of the project names, and unfinished downloads of killed processes. Empty if a mod
    cannot be read, because its files are unknown. Other files in the folder are ignored."""
    try:
        mods = load_all(project, mod_names(project))
    except FileProblemsError:
        return ()
    named = {copy.sha256 for mod in mods for copy in mod.copies if copy.is_remote}
    files = sorted(path for path in project.downloads.glob("*") if path.is_file() and not path.is_symlink())
    return tuple(
        path for path in files if is_abandoned(path) or (_SHA256.fullmatch(path.name) and path.name not in named)
    )


def _with_files(workspace: Workspace, mod: Mod) -> Mod:
    remote = {copy.staged: (index, copy) for index, copy in enumerate(mod.copies) if copy.is_remote}
    if not remote:
        return mod
    files = (PlainFile(staged, False, _content(workspace, mod, *each)) for staged, each in remote.items())
    complete = replace(mod, fetched=tuple(files))
    require_templates([complete])
    return complete


def _content(workspace: Workspace, mod: Mod, index: int, copy: FileCopy) -> bytes:
    kept = workspace.project.downloads / copy.sha256
    content = _if_intact(kept, copy.sha256)
    if content is not None:
        return content
    ca_file = git.read_index_settings(workspace.environment).ca_file

    def notify(text: str) -> None:
        workspace.report(Message(text))

    address = git.split(copy.source).url
    notify(f"fetching {address} for mod {mod.name}")
    try:
        content = python.download_web_file(copy.source, LARGEST_FILE, ca_file, notify)
    except SourceError:
        built = workspace.project.builds.glob(f"**/{FETCHED}/{copy.sha256}/*")
        content = next((each for path in sorted(built) if (each := _if_intact(path, copy.sha256)) is not None), None)
        if content is None:
            raise
        notify(f"{address} cannot be fetched, so the build uses the content from an earlier build")
    digest = hashlib.sha256(content).hexdigest()
    if digest != copy.sha256:
        raise SourceError(
            f"{mod.location('files', index, 'from')}: {address} has different content:\n"
            f"  sha256 {digest} was downloaded,\n  sha256 {copy.sha256} is in mod.yaml",
            hint=f"check what changed there; to accept the new content: `builder mods pin {mod.name}`",
        )
    kept.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(kept, content)
    return content


def _if_intact(path: Path, sha256: str) -> bytes | None:
    try:
        content = read_plain_file(path, LARGEST_FILE)
    except OSError:
        return None
    return content if hashlib.sha256(content).hexdigest() == sha256 else None


# The packages of mods are compared with the versions that the pinned vLLM is compiled against: FlashInfer, torch,
# Triton, TileLang and TVM FFI. A mod with another version of one would fail the last step of the build.


def check_mod_versions(chain: Sequence[ImageDefinition], mods: Sequence[tuple[Mod, ...]], pins: Sequence[Pins]) -> None:
    """Raises SourceError with the location of every package of ``mods`` that disagrees with its image. ``mods`` and
    ``pins`` are for each definition of ``chain``."""
    named: dict[str, Named] = {}
    problems: list[str] = []
    for definition, own, own_pins in zip(chain, mods, pins, strict=True):
        named |= agreement.installed(_packages(own_pins), f"the image of {definition.name}")
        for mod, (number, text) in ((each, text) for each in own for text in enumerate(each.packages)):
            name = canonical(text.partition("==")[0].partition("[")[0])
            there = named.get(name)
            requirement = agreement.parse(text, definition) if there else None
            if there and requirement and not agreement.agree(requirement.specifier, there.specifiers):
                place = mod.location("packages", number)
                problems.append(f"{place}: {text}, but {there.by} has {name}{there.specifiers}")
    if problems:
        message = "\n".join(problems)
        hint = "a mod cannot replace these packages: use the image's version, or remove the package from the mod"
        raise SourceError(message, hint=hint)


def _packages(pins: Pins) -> Iterator[LockedPackage]:
    yield from pins.base.packages if pins.base else ()
    yield from pins.python.packages if pins.python else ()
    for name, pin in pins.sources.items():
        if isinstance(pin, GitPin):
            yield from (LockedPackage(package, pin.version, ()) for package in PACKAGES_BUILT_FROM.get(name, ()))


# A dry run tries the patches of mods on the pinned packages, in the order of the mods, before a build starts. The
# result for patches that a script applies is only a hint.

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


def load_alone(project: Project, names: Sequence[str]) -> tuple[Mod, ...]:
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
