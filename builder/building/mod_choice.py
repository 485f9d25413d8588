"""The mods of each image, their files, and the checks that a build can use them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from builder.base.errors import FileProblemsError, SourceError, UsageError
from builder.base.events import Message
from builder.base.files import is_abandoned, read_plain_file, write_atomically
from builder.base.values import dataclass, replace
from builder.definitions import image, recipe
from builder.definitions.fields import canonical
from builder.definitions.image import PACKAGES_BUILT_FROM, ImageDefinition
from builder.definitions.mod import (
    FETCHED,
    LARGEST_FILE,
    PlainFile,
    load_all,
    load_mod,
    mod_names,
    name_of,
    read_script_facts,
    require_templates,
    unknown_mods,
)
from builder.lock.model import GitPin, LockedPackage, Pins
from builder.pins import agreement
from builder.plan import rules
from builder.sources import git, python

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.definitions.mod import FileCopy, Mod
    from builder.definitions.recipe import Recipe
    from builder.numbers.workspace import Workspace
    from builder.pins.agreement import Named


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
