"""Rendering a definition's Dockerfile template."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.definitions.mods.mod_problems import HOST_MOUNTS
from builder.definitions.package_name import canonical
from builder.errors import FileProblemsError, Location, Problem
from builder.plan.model import WORKSPACE

if TYPE_CHECKING:
    from collections.abc import Mapping

    import jinja2

    from builder.definitions.image import ImageDefinition
    from builder.definitions.mods.mod import FileCopy, Mod
    from builder.lock.model import Version
    from builder.plan.python import PackageGroup


@dataclass(frozen=True)
class TemplateSource:
    """A source as templates see it. ``kind`` is git, wheel or base; for git, ``context`` names the build context with
    its tree, ``patches`` the files in ``patches/`` to apply to it, ``epoch`` is the commit's date in seconds, and
    ``gib_per_job`` the memory that one compiler of it may take."""

    kind: str
    version: str
    commit: str | None
    context: str = ""
    patches: tuple[str, ...] = ()
    epoch: int = 0
    gib_per_job: int = 0


@dataclass(frozen=True)
class TemplatePatch:
    """A patch of a mod as templates see it; ``pinned`` tells the pinned version of its package if that is a source."""

    file: str
    package: str
    strip: int
    pinned: str


@dataclass(frozen=True)
class TemplateMod:
    """A mod as templates see it. ``has_files`` if the build directory has a folder of it, ``changes_files`` if there is
    more to do than to set ``env``; a serving image has folders of the host mounted over ``host_mounts``."""

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
class TemplateInputs:
    """Everything that the text of a Dockerfile depends on. ``name`` is the definition's, ``texts`` are the templates by
    the names under which they import each other."""

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
    packages: Mapping[str, str],
) -> TemplateInputs:
    """The inputs that ``definition`` is rendered from; ``pinned`` are the sources of the whole chain, ``packages`` the
    versions of all that is pinned for it, by canonical name."""
    return TemplateInputs(
        name=definition.name,
        description=definition.description,
        platform=definition.platform,
        base=base,
        args=definition.args,
        python_version=definition.python.version if definition.python else "",
        groups=groups,
        sources=sources,
        mods=tuple(_template_mod(mod, pinned, packages) for mod in mods),
        texts={**definition.parts, _template_name(definition.name): definition.template},
    )


def render(inputs: TemplateInputs) -> str:
    """Renders the Dockerfile. Raises FileProblemsError with the line of a template that uses something undefined, and
    for a template that leaves out a mod."""
    import jinja2

    own = _template_name(inputs.name)
    try:
        text = (
            _environment(inputs.texts)
            .get_template(own)
            .render(
                definition=inputs.name,
                description=inputs.description,
                platform=inputs.platform,
                arch=inputs.platform.removeprefix("linux/"),
                base=inputs.base,
                args=inputs.args,
                python={"version": inputs.python_version, "groups": inputs.groups},
                sources=inputs.sources,
                versions={name: source.version for name, source in inputs.sources.items()},
                mods=inputs.mods,
                workspace=WORKSPACE,
            )
        )
    except jinja2.TemplateSyntaxError as error:
        location = Location(_file(error.name or own), error.lineno)
        raise FileProblemsError((Problem(location, f"template: {error.message}"),)) from None
    except jinja2.TemplateNotFound as error:
        raise FileProblemsError((Problem(Location(own), f"template: there is no part {error.name}"),)) from None
    except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
        # An expression in a template may fail in any way that Python can.
        raise FileProblemsError((Problem(_location_of(error, own), f"template: {error}"),)) from None
    missing = [mod.name for mod in inputs.mods if f"\n# mod {mod.name}\n" not in text]
    if missing:
        message = f"template: it does not bake {', '.join(missing)}; `bake` of _parts/mods.j2 does"
        raise FileProblemsError((Problem(Location(own), message),))
    return re.sub(r"\n{3,}", "\n\n", text)


def require_parsed(definition: ImageDefinition) -> None:
    """Raises FileProblemsError for the first template of ``definition`` that Jinja cannot read, its parts included."""
    import jinja2

    texts = {**definition.parts, _template_name(definition.name): definition.template}
    environment = _environment(texts)
    for name in texts:
        if not name.endswith(".j2"):
            continue
        try:
            environment.get_template(name)
        except jinja2.TemplateSyntaxError as error:
            location = Location(_file(name), error.lineno)
            raise FileProblemsError((Problem(location, f"template: {error.message}"),)) from None


def _environment(texts: Mapping[str, str]) -> jinja2.Environment:
    """Templates by name. One comes with a clone, too: it makes text, and reaches nothing of this program or machine."""
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        # Not a DictLoader: it has no file names, which errors need.
        loader=jinja2.FunctionLoader(lambda name: (texts[name], name, None) if name in texts else None),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # a Dockerfile is not HTML; values are quoted by the `sh` filter
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,
    )
    environment.filters["sh"] = lambda value: shlex.quote(str(value))
    environment.filters["env"] = _env
    return environment


def _template_mod(mod: Mod, pinned: Mapping[str, Version], packages: Mapping[str, str]) -> TemplateMod:
    return TemplateMod(
        name=mod.name,
        run=mod.run,
        seconds=mod.seconds,
        may_be_empty=mod.may_be_empty,
        network=mod.network,
        has_files=bool(mod.files or mod.fetched),
        changes_files=bool(mod.run or mod.packages or mod.copies or mod.patches),
        packages=mod.packages,
        copies=tuple(replace(copy, source=copy.staged) for copy in mod.copies),
        patches=tuple(
            TemplatePatch(p.file, p.package, p.strip, _pinned(pinned.get(p.package)))
            for p in mod.patches
            if p.fits(packages.get(canonical(p.package), ""))
        ),
        env=tuple(mod.env.items()),
    )


def _pinned(version: Version | None) -> str:
    if version is None:
        return ""
    return f"pinned: {version.version}" + (f", commit {version.commit}" if version.commit else "")


def _env(value: str) -> str:
    """A value quoted for ENV, which expands variables and backslashes in double quotes."""
    return '"' + re.sub(r'([\\"$])', r"\\\1", value) + '"'


def _template_name(definition: str) -> str:
    return f"dockerfiles/{definition}/Dockerfile.j2"


def _location_of(error: Exception, own: str) -> Location:
    """The innermost line of a template in ``error``'s traceback."""
    location = Location(own)
    trace = error.__traceback__
    while trace:
        if trace.tb_frame.f_code.co_filename.endswith(".j2"):
            location = Location(_file(trace.tb_frame.f_code.co_filename), trace.tb_lineno)
        trace = trace.tb_next
    return location


def _file(name: str) -> str:
    """The path of a template: names of shared parts are relative to the folder of all templates."""
    return name if name.startswith("dockerfiles/") else f"dockerfiles/{name}"
