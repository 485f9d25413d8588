"""Rendering a definition's Dockerfile template."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.definitions.mods.mod_problems import HOST_MOUNTS
from builder.errors import FileProblemsError, Location, Problem
from builder.plan.model import WORKSPACE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.definitions.image import ImageDefinition
    from builder.definitions.mods.mod import FileCopy, Mod
    from builder.lock.model import Version
    from builder.plan.python import PackageGroup


@dataclass(frozen=True)
class TemplateSource:
    """A source as templates see it. ``kind`` is git or wheel; for git, ``context`` names the build context with its
    tree, ``patches`` the files in ``patches/`` to apply to it, and ``epoch`` is the commit's date in seconds."""

    kind: str
    version: str
    commit: str | None
    context: str = ""
    patches: tuple[str, ...] = ()
    epoch: int = 0


@dataclass(frozen=True)
class TemplatePatch:
    """A patch of a mod; ``pinned`` says what its package is pinned to, where it is a source."""

    file: str
    package: str
    strip: int
    pinned: str


@dataclass(frozen=True)
class TemplateMod:
    """A mod as templates see it. ``has_files`` tells whether the build directory holds a folder of it,
    ``changes_files`` whether there is anything to do but to set ``env``; over the
    ``host_mounts`` a serving image has folders of the host."""

    name: str
    run: str | None
    seconds: int
    may_be_empty: bool
    network: bool
    has_files: bool
    changes_files: bool
    packages: tuple[str, ...]
    copies: tuple[FileCopy, ...]
    patches: tuple[TemplatePatch, ...]
    env: tuple[tuple[str, str], ...]
    host_mounts: tuple[str, ...] = HOST_MOUNTS


@dataclass(frozen=True)
class Inputs:
    """Everything that a Dockerfile's text depends on. ``name`` is the definition's, ``texts`` are the templates by the
    name that they import each other under."""

    name: str
    description: str
    platform: str
    base: str
    args: Mapping[str, str | int | float | bool]
    python_version: str
    groups: tuple[PackageGroup, ...]
    sources: Mapping[str, TemplateSource]
    mods: tuple[TemplateMod, ...]
    texts: Mapping[str, str]


def inputs(
    definition: ImageDefinition,
    base: str,
    mods: tuple[Mod, ...],
    groups: tuple[PackageGroup, ...],
    sources: Mapping[str, TemplateSource],
    pinned: Mapping[str, Version],
) -> Inputs:
    """What ``definition`` renders from; ``pinned`` are the sources of the whole chain."""
    return Inputs(
        name=definition.name,
        description=definition.description,
        platform=definition.platform,
        base=base,
        args=definition.args,
        python_version=definition.python.version if definition.python else "",
        groups=groups,
        sources=sources,
        mods=tuple(_template_mod(mod, pinned) for mod in mods),
        texts={**definition.parts, _template_name(definition.name): definition.template},
    )


def render(wanted: Inputs) -> str:
    """The Dockerfile's text. Raises FileProblemsError with the template's line where it asks for what is not there, and
    for a template that passes over a mod."""
    import jinja2

    own, texts = _template_name(wanted.name), wanted.texts
    # Not a DictLoader: it has no file names, which errors need.
    load = jinja2.FunctionLoader(lambda name: (texts[name], name, None) if name in texts else None)
    environment = jinja2.Environment(
        loader=load,
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701  # a Dockerfile is not HTML; values are quoted by the `sh` filter
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,
    )
    environment.filters["sh"] = lambda value: shlex.quote(str(value))
    environment.filters["env"] = _env
    try:
        text = environment.get_template(own).render(
            definition=wanted.name,
            description=wanted.description,
            platform=wanted.platform,
            arch=wanted.platform.removeprefix("linux/"),
            base=wanted.base,
            args=wanted.args,
            python={"version": wanted.python_version, "groups": wanted.groups},
            sources=wanted.sources,
            versions={name: source.version for name, source in wanted.sources.items()},
            mods=wanted.mods,
            workspace=WORKSPACE,
        )
    except jinja2.TemplateSyntaxError as error:
        place = Location(_file(error.name or own), error.lineno)
        raise FileProblemsError((Problem(place, f"template: {error.message}"),)) from None
    except jinja2.TemplateNotFound as error:
        raise FileProblemsError((Problem(Location(own), f"template: there is no part {error.name}"),)) from None
    except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
        # What a template does with the values that it gets may fail as any Python does.
        raise FileProblemsError((Problem(_place(error, own), f"template: {error}"),)) from None
    forgotten = [mod.name for mod in wanted.mods if f"\n# mod {mod.name}\n" not in text]
    if forgotten:
        said = f"template: it does not bake {', '.join(forgotten)}; `bake` of _parts/mods.j2 does"
        raise FileProblemsError((Problem(Location(own), said),))
    return re.sub(r"\n{3,}", "\n\n", text)


def _template_mod(mod: Mod, pinned: Mapping[str, Version]) -> TemplateMod:
    return TemplateMod(
        name=mod.name,
        run=mod.run,
        seconds=mod.seconds,
        may_be_empty=mod.may_be_empty,
        network=mod.network,
        has_files=bool(mod.files),
        changes_files=bool(mod.run or mod.packages or mod.copies or mod.patches),
        packages=mod.packages,
        copies=mod.copies,
        patches=tuple(TemplatePatch(p.file, p.package, p.strip, _pinned(pinned.get(p.package))) for p in mod.patches),
        env=tuple(mod.env.items()),
    )


def _pinned(version: Version | None) -> str:
    if version is None:
        return ""
    return f"pinned: {version.version}" + (f", commit {version.commit}" if version.commit else "")


def _env(value: str) -> str:
    """A value as ENV takes it, which replaces variables and reads backslashes in double quotes."""
    return '"' + re.sub(r'([\\"$])', r"\\\1", value) + '"'


def _template_name(definition: str) -> str:
    return f"dockerfiles/{definition}/Dockerfile.j2"


def _place(error: Exception, own: str) -> Location:
    """The innermost line of a template in ``error``'s traceback."""
    place = Location(own)
    trace = error.__traceback__
    while trace:
        if trace.tb_frame.f_code.co_filename.endswith(".j2"):
            place = Location(_file(trace.tb_frame.f_code.co_filename), trace.tb_lineno)
        trace = trace.tb_next
    return place


def _file(name: str) -> str:
    """A template's file: the shared parts are called from the folder that all templates lie in."""
    return name if name.startswith("dockerfiles/") else f"dockerfiles/{name}"
