"""Registries of recipes: git repositories with a name, by which `recipes add @REGISTRY/NAME` finds a recipe."""

from __future__ import annotations

import posixpath
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from builder.base import yaml_file
from builder.base.errors import FileProblemsError, SourceError, UsageError
from builder.base.words import did_you_mean
from builder.definitions import configuration
from builder.moving import copies

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.moving.copies import CopyAddress
    from builder.sources.git import Notify


_SHIPPED = Path(__file__).with_suffix(".yaml")
_FORM = "@REGISTRY/NAME[@REF], such as @official/NAME or @official/NAME@COMMIT"
_NAMED = re.compile(
    r"@(?P<registry>[A-Za-z0-9][A-Za-z0-9._-]*)/(?P<name>[A-Za-z0-9][A-Za-z0-9._+-]*(?:/[A-Za-z0-9][A-Za-z0-9._+-]*)*)"
    r"(?:@(?P<ref>[^@\s]+))?"
)


def read_registries(project: Project) -> dict[str, str]:
    """The addresses of registries by name; one in builder.yaml goes before one that comes with the program."""
    registries: dict[str, str] = yaml_file.load(_SHIPPED.read_text(encoding="utf-8"), _SHIPPED.name)
    with suppress(FileProblemsError):  # whatever needs builder.yaml reports what is wrong in it
        registries |= configuration.load_configuration(project).recipe_registries
    return registries


def registry_address(project: Project, name: str) -> CopyAddress:
    """The address of the registry ``name``. Raises UsageError where none has that name."""
    registries = read_registries(project)
    if name not in registries:
        hint = did_you_mean(name, registries) or f"known are {', '.join(registries)}"
        more = "`recipe_registries:` in builder.yaml adds one"
        raise UsageError(f"no registry of recipes is called `{name}`", hint=f"{hint}; {more}")
    return copies.parse_address(registries[name])


def find_in_registry(project: Project, text: str, notify: Notify) -> str:
    """The address, as `copies.parse_address` takes it, of the recipe ``@REGISTRY/NAME[@REF]``: NAME is that of its
    file, with or without the folders around it. Raises UsageError for another form or where several recipes have the
    name, SourceError where none has."""
    match = _NAMED.fullmatch(text)
    if not match:
        raise UsageError(f"`{text}` names no recipe of a registry", hint=_FORM)
    address = registry_address(project, match["registry"])
    address = replace(address, ref=match["ref"] or address.ref)
    upstream = copies.find_repository(project, address, notify)
    paths = copies.recipes_at(upstream)
    wanted = posixpath.splitext(match["name"])[0] if match["name"].endswith((".yaml", ".yml")) else match["name"]
    stems = {path: posixpath.splitext(path)[0] for path in paths}
    matching = [path for path, stem in stems.items() if stem == wanted or stem.endswith(f"/{wanted}")]
    if not matching:
        suggestion = did_you_mean(wanted, [posixpath.basename(stem) for stem in stems.values()])
        hint = suggestion or f"`builder recipes add {upstream.url}//{address.path}` shows what is there"
        raise SourceError(f"the registry {match['registry']} has no recipe {wanted}", hint=hint)
    if len(matching) > 1:
        listed = ", ".join(matching)
        hint = f"name one with its folder: @{match['registry']}/{stems[matching[0]]}"
        raise UsageError(f"the registry {match['registry']} has several recipes {wanted}: {listed}", hint=hint)
    ref = "" if address.ref == copies.DEFAULT_BRANCH else f"@{address.ref}"
    return f"{address.url}//{matching[0]}{ref}"
