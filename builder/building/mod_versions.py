"""The packages of mods, held against the versions that the pinned vLLM is compiled against: FlashInfer, torch, Triton,
TileLang and TVM FFI. A mod that names another version of one would end the build in its last step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.definitions.image import PACKAGES_BUILT_FROM
from builder.definitions.package_name import canonical
from builder.errors import SourceError
from builder.lock.pins import GitPin, LockedPackage
from builder.pinning import named_versions, version_ranges

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from builder.definitions.image import ImageDefinition
    from builder.definitions.mods.mod import Mod
    from builder.lock.pins import Pins
    from builder.pinning.named_versions import Named


def check(chain: Sequence[ImageDefinition], mods: Sequence[tuple[Mod, ...]], pins: Sequence[Pins]) -> None:
    """Raises SourceError with the place of every package of ``mods`` that disagrees with what the image has which they
    go into; mods and ``pins`` are those of each definition of ``chain``."""
    named: dict[str, Named] = {}
    problems: list[str] = []
    for definition, own, own_pins in zip(chain, mods, pins, strict=True):
        image = f"the image of {definition.name}"
        named |= named_versions.installed(_packages(own_pins), image)
        for mod in own:
            problems += _problems(definition, mod, named)
    if problems:
        raise SourceError(
            "\n".join(problems),
            hint="a mod cannot replace these: write the version that the image has, or leave it out",
        )


def _problems(definition: ImageDefinition, mod: Mod, named: dict[str, Named]) -> Iterator[str]:
    python = definition.python.version if definition.python else "3.12"
    for number, text in enumerate(mod.packages):
        name = canonical(text.partition("==")[0].partition("[")[0])
        there = named.get(name)
        requirement = version_ranges.parse(text, definition.platform, python) if there else None
        if there and requirement and not version_ranges.agree(requirement.specifier, there.specifiers):
            yield f"{mod.location('packages', number)}: {text}, and {there.by} has {name}{there.specifiers}"


def _packages(pins: Pins) -> Iterator[LockedPackage]:
    """All that an image holds: packages of its base and of its own, and what is built from git."""
    yield from pins.base.packages if pins.base else ()
    yield from pins.python.packages if pins.python else ()
    for name, pin in pins.sources.items():
        if isinstance(pin, GitPin):
            yield from (LockedPackage(package, pin.version, ()) for package in PACKAGES_BUILT_FROM.get(name, ()))
