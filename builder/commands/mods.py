"""The mods commands add, check, list, create, pin and update mods. The update also updates copied recipes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from builder import definitions
from builder.base import files, processes, words
from builder.base.errors import ConflictError, FileProblemsError, NothingToDoError, SourceError, UsageError
from builder.base.events import Message, Report, as_messages
from builder.base.values import dataclass, replace
from builder.building import mod_choice
from builder.building.mod_choice import ModVerdict
from builder.definitions import image, recipe
from builder.definitions import mod as mod_files
from builder.definitions.fields import canonical, checked, decoded, read_text
from builder.lock import lock_file
from builder.lock.model import Lock, Pins
from builder.moving import copies, recipe_registries
from builder.pins import packages, vendored
from builder.pins.packages import PinnedDefinition
from builder.plan import rules
from builder.sources import git, mirror, patches, python

if TYPE_CHECKING:
    from builder.base.errors import BuilderError
    from builder.base.project import Project
    from builder.definitions.image import ImageDefinition
    from builder.definitions.mod import Mod
    from builder.definitions.recipe import Recipe
    from builder.moving.copies import Kind, Origin, PlannedCopy, Upstream


def plan_copies(
    project: Project, text: str, name: str | None, report: Report, *, everything: bool
) -> tuple[PlannedCopy, ...]:
    """Plans the copy of the mod ``text``: an address, or a mod name with a known address. The copy keeps its name or is
    called ``name``. With ``everything``, plans copies of all mods at the address. Raises UsageError if ``text`` is not
    an address, or is the address of several mods. Raises SourceError if the repository, the ref or the mod does not
    exist, or contains files that cannot be copied."""
    if mod_files.NAME.fullmatch(text) and not Path(text).exists():
        sources = mod_files.read_known_sources(project)
        if text not in sources:
            hint = words.did_you_mean(text, sources) or "give the address of its repository: URL//mods/NAME@REF"
            raise UsageError(f"no repository is known for the mod `{text}`", hint=hint)
        text, name = sources[text], name or (None if everything else text)
    return copies_at(project, "mod", text, name, as_messages(report), everything=everything)[1]


def copies_at(
    project: Project, kind: Kind, text: str, name: str | None, notify: git.Notify, *, everything: bool
) -> tuple[Upstream, tuple[PlannedCopy, ...]]:
    """Plans copies from the address ``text``: of its only mod or recipe, or of all. Returns them with their repository.
    Raises the errors of `plan_copies`."""
    if name and everything:
        raise UsageError(f"`--as` renames one {kind}, but `--all` copies several: use only one of the two")
    upstream = copies.find_repository(project, copies.parse_address(text), notify)
    paths = _paths_at(upstream, kind)
    chosen = paths if everything else (copies.require_one(upstream, kind, paths),)
    planned = (
        copies.plan_copy(project, upstream, kind, path, name or copies.name_of(upstream, kind, path), notify)
        for path in chosen
    )
    return upstream, tuple(planned)


def _paths_at(upstream: Upstream, kind: Kind) -> tuple[str, ...]:
    return copies.mods_at(upstream) if kind == "mod" else copies.recipes_at(upstream)


def known_addresses(project: Project, names: Iterable[str]) -> Mapping[str, str]:
    """The known addresses for mods of these names, in the form that `plan_copies` accepts."""
    sources = mod_files.read_known_sources(project)
    return {name: sources[name] for name in names if name in sources}


def make_copies(project: Project, planned: Sequence[PlannedCopy]) -> tuple[str, ...]:
    """Makes the copies of mods and recipes. Returns notes on them: problems, the reasons why mods cannot be baked, and
    the folders of this machine that changed recipes mount. Raises ConflictError if anything has changed since the
    plan."""
    for each in planned:
        copies.put_in_place(project, each)
    mods = (note for each in planned if each.kind == "mod" for note in _notes_on_mod(project, each.name))
    recipes = (note for each in planned if each.kind == "recipe" and each.changes for note in _notes_on_recipe(each))
    return (*mods, *recipes)


def _notes_on_mod(project: Project, name: str) -> Iterator[str]:
    try:
        facts = mod_files.read_script_facts(mod_files.load_mod(project, name))
    except FileProblemsError as error:
        yield error.message
    else:
        if facts and facts.instead:
            yield f"mod {name}: {facts.instead}"


def _notes_on_recipe(copy: PlannedCopy) -> Iterator[str]:
    name, content = f"recipes/{copy.name}", copy.files[0].content
    if volumes := copies.entries_of_recipe(content, "volumes"):
        yield f"{name} mounts {', '.join(volumes)} of this machine: its server has root access there"
    try:
        problems = recipe.parse_recipe(decoded(content, f"{name}.yaml"), f"{name}.yaml").problems
    except FileProblemsError as error:
        problems = error.problems
    if problems:
        yield f"{name} cannot be served: {problems[0]}"


def require_lossless(planned: Sequence[PlannedCopy]) -> None:
    """Raises ConflictError if a copy would replace something that is not stored elsewhere."""
    for each in planned:
        if each.edited and each.replaces:
            message = f"{each.kind} {each.name} was edited since it was copied: {', '.join(each.edited)}"
        elif each.loses:
            message = f"{each.kind}s/{each.name} already exists, and is not a copy"
        else:
            continue
        hint = "to replace it anyway: `--force`; `add` also takes `--as NAME`, to copy under another name"
        raise ConflictError(message, hint=hint)


# ``mods check --against`` tries the patches of mods on other versions, without a build.

_AT_ONCE = 8  # versions


def check_mods(
    project: Project, names: Sequence[str], refs: Sequence[str], environ: Mapping[str, str], report: Report
) -> tuple[ModVerdict, ...]:
    """Checks each of the mods ``names`` (all if empty) alone against each of ``refs``. ``0.20.0`` means a wheel of
    vLLM; ``v0.20.0``, ``main`` or a commit means its repository; ``transformers=5.1.0`` means another package. Raises
    one UsageError or SourceError for all refs that do not exist, and FileProblemsError for invalid mods."""
    parsed = []
    for ref in dict.fromkeys(refs):
        package, equals, name = ref.partition("=")
        parsed.append((package, name.lstrip("=")) if equals else ("vllm", ref))
    mods = mod_choice.load_alone(project, names)
    access = packages.Access(project, environ, as_messages(report))
    definitions = tuple(mod_choice.definitions(project).values())

    def column(ref: tuple[str, str]) -> tuple[list[ModVerdict], list[BuilderError]]:
        try:
            return _column(access, definitions, mods, *ref), []
        except (SourceError, UsageError) as error:
            return [], [error]

    columns = list(processes.in_parallel(column, parsed, _AT_ONCE))
    raise_all([fault for _, faults in columns for fault in faults])
    return tuple(verdict for row in zip(*(verdicts for verdicts, _ in columns), strict=True) for verdict in row)


def raise_all(faults: Sequence[BuilderError]) -> None:
    """Raises one error with all ``faults``, if there are any."""
    if faults:
        kind = UsageError if all(isinstance(fault, UsageError) for fault in faults) else SourceError
        hints = dict.fromkeys(fault.hint for fault in faults if fault.hint)
        raise kind("\n".join(dict.fromkeys(fault.message for fault in faults)), hint="\n".join(hints))


def require_valid(project: Project) -> None:
    """Raises FileProblemsError with the problems of all invalid mods, which cannot be tried, and of the valid mods'
    chat templates."""
    readable, problems = mod_files.readable_mods(project)
    if problems := (*problems, *(problem for mod in readable for problem in mod_files.template_problems(mod))):
        raise FileProblemsError(problems)


def _column(
    access: packages.Access, definitions: Sequence[ImageDefinition], mods: Sequence[Mod], package_name: str, name: str
) -> list[ModVerdict]:
    # Versions of wheels have no `v`, unlike the tags of a repository.
    is_version = not mirror.is_commit(name) and name[:1].isdigit() and words.parse_version(name) is not None
    find = packages.released if is_version else packages.committed
    package = find(access, definitions, package_name, name)
    tried_mods = tuple(map(mod_choice.as_declared, mods))
    candidates = mod_choice.candidates(tried_mods, package_name)
    package = replace(package, tree=patches.prefetched(package.tree, candidates))
    verdicts = []
    for mod, with_patches in zip(mods, tried_mods, strict=True):
        tried = mod_choice.try_all([with_patches], {package_name: package}.get)
        own = tuple(attempt for attempt in tried if attempt.package == package_name)
        unfit = rules.excluded_versions(mod, {canonical(package_name): package.version})
        excluded = ", ".join(f"it requires {name} {mod.requires[name]}" for name in unfit)
        verdicts.append(ModVerdict(mod, package.label, own, excluded, is_hint=with_patches != mod))
    return verdicts


# ``mods check`` tries the patches of mods on the pinned versions in images.lock.


@dataclass(frozen=True)
class _PinnedChain:
    """The pinned chain of a definition, each parent before its child. The user sees ``label``."""

    project: Project
    access: packages.Access
    label: str
    chain: tuple[PinnedDefinition, ...]

    def find(self, package: str) -> packages.Package | None:
        return packages.pinned(self.access, self.chain, package)

    def verdict(self, mod: Mod, target: str, mods: Sequence[tuple[Mod, ...]], *, requested: bool) -> ModVerdict:
        """Checks ``mod`` on top of the preceding mods. ``mods`` has the mods of each definition of the chain."""
        definitions = [part.definition for part in self.chain]
        excluded = ""
        try:
            mods = mod_choice.arrange_mods(self.project, definitions, mods, [part.pins for part in self.chain])
        except FileProblemsError as error:
            excluded = "; ".join(problem.message for problem in error.problems if problem.location.file == mod.file)
        order = [mod_choice.as_declared(each) for own in mods for each in own]
        with_patches = mod_choice.as_declared(mod)
        tried = mod_choice.try_all(order[: order.index(with_patches) + 1], self.find)
        own_tries = tuple(attempt for attempt in tried if attempt.mod == with_patches)
        return ModVerdict(mod, target, own_tries, excluded, requested=requested, is_hint=with_patches != mod)


def check_pinned_mods(
    project: Project, names: Sequence[str], environ: Mapping[str, str], report: Report
) -> tuple[ModVerdict, ...]:
    """Checks the mods ``names`` (all if empty). A mod is checked on top of the preceding mods in every recipe and
    definition that uses it. An unused mod is checked alone on every definition with the packages that it patches.
    Nothing is resolved: the verdicts name missing pins. Raises FileProblemsError for invalid mods, UsageError for
    unknown mods, LockError for a damaged lock."""
    mods = mod_choice.load_alone(project, names)
    access = packages.Access(project, environ, as_messages(report))
    lock = lock_file.read_project_lock(project)
    definitions = mod_choice.definitions(project)
    pinned = {name: _pinned(project, access, lock, name) for name in definitions}
    uses = mod_choice.mod_uses(project, definitions)
    verdicts: list[ModVerdict] = []
    for mod in mods:
        own_uses = [use for use in uses if mod.name in use.mods]
        own = [verdict for use in own_uses for verdict in _in_use(mod, use, pinned[use.definition])]
        lacking = {use.definition for use in own_uses if not pinned[use.definition]}
        if not own_uses and (mod.requires or mod_choice.as_declared(mod).patches):
            own = [verdict for name in definitions for verdict in _alone(mod, pinned[name])]
            own = [verdict for verdict in own if verdict.is_hint] or own
            lacking = {name for name in definitions if not pinned[name]}
        for name in sorted(lacking):
            missing = f"it is not pinned yet; to pin it: `builder lock {name}`"
            own.append(ModVerdict(mod, name, missing=missing, requested=bool(own_uses)))
        patched = dict.fromkeys(patch.package for patch in mod_choice.as_declared(mod).patches)
        missing = f"no pinned definition contains {' and '.join(patched)}" if patched else ""
        verdicts += own or [ModVerdict(mod, "", missing=missing)]
    return tuple(verdicts)


def _in_use(mod: Mod, use: mod_choice.ModUse, pinned: Sequence[_PinnedChain]) -> Iterator[ModVerdict]:
    for chain in pinned:
        definitions = [part.definition for part in chain.chain]
        recipe, missing = _without_missing(chain.project, use.recipe)
        target = f"{chain.label}, recipe {use.name}" if use.recipe else chain.label
        target += f" without {', '.join(missing)}" if missing else ""
        try:
            mods = mod_choice.load_mods(chain.project, definitions, recipe)
        except FileProblemsError as error:
            yield ModVerdict(mod, target, missing=str(error.problems[0]))
            continue
        is_baked = any(mod in own for own in mods)
        yield chain.verdict(mod, target, mods, requested=True) if is_baked else ModVerdict(mod, target)


def _without_missing(project: Project, recipe: Recipe | None) -> tuple[Recipe | None, tuple[str, ...]]:
    """Returns ``recipe`` with only the mods that the project has, and the names of the missing mods. A shared recipe
    may name mods of its own repository."""
    if recipe is None:
        return None, ()
    existing = mod_files.mod_names(project)
    missing = tuple(name for name in map(mod_files.name_of, recipe.mods) if name not in existing)
    present = tuple(text for text in recipe.mods if mod_files.name_of(text) in existing)
    return (replace(recipe, mods=present) if missing else recipe), missing


def _alone(mod: Mod, pinned: Sequence[_PinnedChain]) -> Iterator[ModVerdict]:
    """Checks an unused mod alone on the chains that contain the packages that it patches."""
    named = {patch.package for patch in mod_choice.as_declared(mod).patches}
    for chain in pinned:
        has_all = all(chain.find(patch.package) for patch in mod.patches)
        if has_all and (not named or any(map(chain.find, named))):
            of_parents: list[tuple[Mod, ...]] = [() for _ in chain.chain[1:]]
            yield chain.verdict(mod, chain.label, [*of_parents, (mod,)], requested=False)


def _pinned(project: Project, access: packages.Access, lock: Lock, name: str) -> tuple[_PinnedChain, ...]:
    """The chains of a definition, one for each platform for which images.lock has all pins."""
    by_platform: dict[str, tuple[PinnedDefinition, ...]] = {}
    for platform in lock.pins.get(name, {}):
        chain = image.load_chain(project, name, platform, image.Overrides(platform))
        pins = {part.name: lock.pins_of(part.name, platform) for part in chain}
        if Pins() not in pins.values():
            diffs = {part: vendored.load_vendored(project, part, pins[part], {}) for part in pins}
            by_platform[platform] = tuple(PinnedDefinition(part, pins[part.name], diffs[part.name]) for part in chain)
    several = len(by_platform) > 1
    return tuple(
        _PinnedChain(project, access, f"{name} on {platform}" if several else name, chain)
        for platform, chain in by_platform.items()
    )


@dataclass(frozen=True)
class ListedMod:
    """A mod, and the definitions, recipes and numbered images that use it. ``mod`` is None if its files are invalid;
    ``problem`` explains the error. A copy has an ``origin``; ``edited`` names the files that were changed since."""

    name: str
    mod: Mod | None
    problem: str
    definitions: tuple[str, ...]
    recipes: tuple[str, ...]
    images: tuple[str, ...]
    origin: Origin | None = None
    edited: tuple[str, ...] = ()


def list_mods(project: Project) -> tuple[ListedMod, ...]:
    """Lists every mod of the project, by name. No engine is contacted: images come from images.lock."""
    uses = mod_choice.mod_uses(project, mod_choice.definitions(project))
    images = sorted(lock_file.read_project_lock(project).numbered(), key=lambda pair: pair[0])
    mods = []
    for name in mod_files.mod_names(project):
        try:
            loaded, problem = mod_files.load_mod(project, name), ""
        except FileProblemsError as error:
            loaded, problem = None, error.message
        copied, edited, wrong = _origin(project, name)
        mods.append(
            ListedMod(
                name=name,
                mod=loaded,
                problem="\n".join(filter(None, (problem, wrong))),
                definitions=tuple(use.name for use in uses if not use.recipe and name in use.mods),
                recipes=tuple(use.name for use in uses if use.recipe and name in use.mods),
                images=tuple(str(numbered) for numbered, image in images if name in image.mods),
                origin=copied,
                edited=edited,
            )
        )
    return tuple(mods)


def _origin(project: Project, name: str) -> tuple[Origin | None, tuple[str, ...], str]:
    """The origin of a copy, the files that were changed since the copy, and the error if these are unknown."""
    try:
        copied = copies.read_origin(project, "mod", name)
        files = copies.read_copy_files(project, "mod", name) if copied else None
    except (ConflictError, FileProblemsError) as error:
        return None, (), error.message
    return copied, copies.copy_edits(files, copied) if copied and files else (), ""


def changes(mod: Mod) -> tuple[str, ...]:
    """The changes that a mod makes, as short texts: ``2 patches to vllm``, ``run.sh with the network``."""
    hosts = dict.fromkeys(copy.source.split("/")[2].rpartition("@")[2] for copy in mod.copies if copy.is_remote)
    remote = f" (from {', '.join(hosts)}, pinned)" if hosts else ""
    patched = ", ".join(dict.fromkeys(patch.package for patch in mod.patches))
    patch_count = f"{len(mod.patches)} {'patch' if len(mod.patches) == 1 else 'patches'}"
    texts = (
        mod.packages and f"packages {', '.join(mod.packages)}",
        mod.copies and words.counted(len(mod.copies), "file") + remote,
        mod.patches and f"{patch_count} to {patched}",
        mod.run and f"{mod.run} {'with' if mod.network else 'without'} the network",
        mod.env and f"environment {', '.join(mod.env)}",
    )
    return tuple(str(text) for text in texts if text)


_SKELETON = Path(definitions.__file__).parent / "skeleton"
_FOR_EDITORS = "# yaml-language-server: $schema="


def new_mod(project: Project, text: str) -> tuple[Path, ...]:
    """Makes ``mods/NAME`` whole or not at all; returns its files. Raises UsageError if the name is invalid or
    exists."""
    name = mod_files.name_of(text)
    if not mod_files.NAME.fullmatch(name):
        hint = "use letters, digits and . _ + -, with a letter or digit first"
        raise UsageError(f"`{name}` is not a valid mod name", hint=hint)
    folder = project.mods / name
    if folder.exists() or name in mod_files.mod_names(project):
        raise UsageError(f"{project.relative(folder)} already exists", hint="choose another name, or change that mod")
    with files.fresh_folder(folder) as unfinished:
        for source in sorted(_SKELETON.iterdir()):
            text = source.read_text(encoding="utf-8").replace("@NAME@", name)
            first, _, rest = text.partition("\n")
            if first.startswith(_FOR_EDITORS) and not (unfinished / first.removeprefix(_FOR_EDITORS)).is_file():
                text = rest  # the project lacks the schema that the line names
            (unfinished / source.name).write_text(text, encoding="utf-8")
        files.put_folder_in_place(unfinished, folder)
    return tuple(sorted(folder.iterdir()))


def pin_mod_files(
    project: Project, text: str, environ: Mapping[str, str], report: Report
) -> list[tuple[str, str, str]]:
    """Fetches every file that the mod gets from an address, and keeps the files for the next build. When all are
    fetched, writes their digests into mod.yaml. Returns each address with its SHA-256 and the previous SHA-256 in
    mod.yaml. Raises UsageError for an unknown mod, NothingToDoError if the mod fetches no files, SourceError if a file
    cannot be fetched, and FileProblemsError for an invalid mod.yaml."""
    name = mod_files.name_of(text)
    path = project.mods / name / mod_files.DESCRIPTION
    if not path.is_file():
        existing = mod_files.mod_names(project)
        hint = "only the files that a mod.yaml names can be pinned"
        hint = hint if name in existing else words.did_you_mean(name, existing)
        raise UsageError(f"there is no {project.relative(path)}", hint=hint)
    file = project.relative(path)
    entries = checked(read_text(path, file, path.parent), file, "mod").get("files", ())
    yaml = path.read_bytes().decode("utf-8-sig")  # keeps the file's line ends
    remote = {index: entry for index, entry in enumerate(entries) if mod_files.is_address(entry["from"])}
    if not remote:
        raise NothingToDoError(f"mod {name} fetches no files")
    ca_file = git.read_index_settings(environ).ca_file
    pinned: list[tuple[str, str, str]] = []
    for index, entry in remote.items():
        report(Message(f"fetching {entry['from']}"))
        content = python.download_web_file(entry["from"], mod_files.LARGEST_FILE, ca_file, as_messages(report))
        digest = hashlib.sha256(content).hexdigest()
        project.downloads.mkdir(parents=True, exist_ok=True)
        files.write_atomically(project.downloads / digest, content)
        pinned.append((entry["from"], digest, entry.get("sha256", "")))
        yaml = mod_files.with_digest(yaml, file, index, digest)
    if any(digest != before for _, digest, before in pinned):
        files.write_atomically(path, yaml.encode())
    return pinned


# ``mods update`` and ``recipes update``


def plan_copies_update(
    project: Project, kind: Kind, names: Sequence[str], ref: str | None, report: Report
) -> tuple[list[PlannedCopy], list[BuilderError]]:
    """Plans the update of the copies ``names`` (all if empty) to ``ref``, or to the recorded ref of each copy. Also
    returns the errors of copies that cannot be updated. Raises UsageError if a name is not a copy."""
    notify = as_messages(report)
    existing = copies.copy_names(project, kind)
    if not names and not existing:
        hint = f"`builder {kind}s add ADDRESS` copies one"
        raise NothingToDoError(f"no {kind} was copied from another repository", hint=hint)
    upstreams: dict[tuple[str, str], copies.Upstream] = {}  # each repository is looked up once
    planned: list[PlannedCopy] = []
    faults: list[BuilderError] = []
    for text in names or existing:
        name = mod_files.name_of(text) if kind == "mod" else recipe.name_of(text).removeprefix("recipes/")
        try:
            copied = copies.read_origin(project, kind, name)
            if copied is None:
                hint = words.did_you_mean(name, existing) or f"copied {kind}s: {', '.join(existing) or 'none'}"
                raise UsageError(f"{kind} {name} was not copied from another repository", hint=hint)
            key = copied.url, ref or copied.ref
            if kind == "recipe" and (
                made := recipe_registries.plan_vllm_recipe_again(project, copied, key[1], name, notify)
            ):
                planned.append(made)
                continue
            if key not in upstreams:
                upstreams[key] = copies.find_repository(project, copies.CopyAddress(copied.url, "", key[1]), notify)
            upstream = replace(upstreams[key], address=copies.CopyAddress(copied.url, copied.path, key[1]))
            path = copies.require_one(upstream, kind, _paths_at(upstream, kind))
            planned.append(copies.plan_copy(project, upstream, kind, path, name, notify))
        except (SourceError, ConflictError, FileProblemsError) as error:
            faults.append(error)
    return planned, faults
