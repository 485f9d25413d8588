"""The places where mods are known to be that a recipe names and a project lacks: known_sources.yaml, and the project's
own in builder.yaml."""

from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from builder.definitions import configuration
from builder.errors import FileProblemsError
from builder.yaml import yaml_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.project import Project

FILE = Path(__file__).with_name("known_sources.yaml")


def shipped() -> Mapping[str, str]:
    """The addresses of mods by name, as `builder mods add` takes them, each at a fixed commit."""
    return {
        name: f"{source['repository']}//mods/{name}@{source['commit']}"
        for source in yaml_file.load(FILE.read_text(encoding="utf-8"), FILE.name)
        for name in source["mods"]
    }


def read(project: Project) -> Mapping[str, str]:
    """The addresses of mods by name; one in builder.yaml goes before a shipped one."""
    own: Mapping[str, str] = {}
    with suppress(FileProblemsError):  # whatever needs builder.yaml reports what is wrong in it
        own = configuration.load(project).mod_sources
    return {**shipped(), **own}


def remedy(project: Project, name: str) -> str:
    """The sentence that gives the command for the mod ``name``; empty where no place of it is known."""
    address = read(project).get(name)
    if address is None:
        return ""
    has_its_name = address.endswith(f"/{name}") or f"/{name}@" in address
    command = f"builder mods add {shlex.quote(address)}{'' if has_its_name else f' --as {name}'}"
    return f"`{command}` brings it from where it is known to be"
