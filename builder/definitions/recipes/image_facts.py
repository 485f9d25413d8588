"""Facts about the image that a recipe names, as far as the project's own files tell them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.definitions import image
from builder.definitions.image import GitSource, WheelSource
from builder.definitions.mods import mod_reading, script_facts
from builder.errors import BuilderError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.definitions.image import ImageDefinition, Source
    from builder.definitions.mods.mod import Mod
    from builder.definitions.recipes.recipe import Recipe
    from builder.project import Project

# Stands in for `platform: host`: what is asked here is the same on all platforms.
_ANY_PLATFORM = "linux/arm64"
_RELEASE = re.compile(r"(?:v|[\w.-]+==)(?P<version>\d+(?:\.\d+)+)$")


@dataclass(frozen=True)
class ImageFacts:
    """The definitions that the image is made of (the base first; none where another program made it), and its mods.
    ``opaque`` names those with a script that nobody can look into, ``missing`` those that the project does not have."""

    definitions: tuple[ImageDefinition, ...]
    mods: tuple[Mod, ...]
    opaque: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def is_known(self) -> bool:
        """True if nothing can be in the image that is not known here."""
        of_others = any(definition.base_sources for definition in self.definitions)
        return bool(self.definitions) and not of_others and not self.opaque and not self.missing

    @property
    def vllm(self) -> Source | None:
        """The source that its vLLM is built or installed from, None where that is not known."""
        sources = [definition.sources.get("vllm") for definition in reversed(self.definitions)]
        return next((source for source in sources if source), None)

    @property
    def vllm_release(self) -> tuple[int, ...] | None:
        """The release of its vLLM where the definition names one, as numbers: (0, 21, 0)."""
        source = self.vllm
        written = source.ref if isinstance(source, GitSource) else ""
        written = source.requirement if isinstance(source, WheelSource) else written
        match = _RELEASE.match(written)
        return tuple(map(int, match["version"].split("."))) if match else None

    def brings(self, name: str) -> bool:
        """True if a Dockerfile or a mod of the image has, or names, the file ``name``."""
        before = "" if name.startswith("/") else r"(?<![\w.-])"
        whole = re.compile(rf"{before}{re.escape(name)}(?![\w.-])")
        if any(whole.search(definition.template) for definition in self.definitions):
            return True
        return any(whole.search(text) for mod in self.mods for text in _texts(mod))


def of(project: Project, recipe: Recipe) -> ImageFacts:
    """The facts about the image of ``recipe``. What cannot be read of it is left out."""
    definitions = _chain(project, recipe)
    names = dict.fromkeys(
        mod_reading.name_of(text) for text in (*(m for d in definitions for m in d.mods), *recipe.mods)
    )
    mods: list[Mod] = []
    opaque: list[str] = []
    missing: list[str] = []
    for name in names:
        try:
            mod = mod_reading.load(project, name)
        except BuilderError:
            missing.append(name)
            continue
        mods.append(mod)
        script = script_facts.of(mod)
        if script and not script.only_copies:
            opaque.append(name)
    return ImageFacts(definitions, tuple(mods), tuple(opaque), tuple(missing))


def _chain(project: Project, recipe: Recipe) -> tuple[ImageDefinition, ...]:
    try:
        name = image.of_repository(project, recipe.repository)
        chain: list[ImageDefinition] = []
        while name and name not in {definition.name for definition in chain}:
            chain.insert(0, image.load(project, name, _ANY_PLATFORM))
            name = chain[0].parent
    except BuilderError:
        return ()
    return tuple(chain)


def _texts(mod: Mod) -> Iterator[str]:
    yield from (text for copy in mod.copies for text in (copy.to, copy.staged))
    for file in mod.files:
        yield file.path
        if file.path == mod.run:
            yield file.content.decode("utf-8", "replace")
