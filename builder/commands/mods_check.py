"""The ``mods check --against`` command: tries patches of mods on versions that the user names, without a build."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.building import loose_patches, mod_dry_run, mod_usage
from builder.building.mod_dry_run import ModVerdict
from builder.definitions.mods import mod_problems, mod_reading
from builder.definitions.package_name import canonical
from builder.errors import FileProblemsError, SourceError, UsageError
from builder.events import Message
from builder.pinning import packages
from builder.plan import mod_rules
from builder.sources.git import patch_dry_run, remote_refs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builder.definitions.image import ImageDefinition
    from builder.definitions.mods.mod import Mod
    from builder.events import Report
    from builder.pinning.packages import Access
    from builder.project import Project

DEFAULT_PACKAGE = "vllm"
_AT_ONCE = 8


@dataclass(frozen=True)
class _PackageRef:
    """A version of a ``package`` as the user names it: that of a wheel (``0.20.0``), or else a name in a repository."""

    package: str
    name: str

    @property
    def is_version(self) -> bool:
        """True if it is written like the version of a wheel: without the ``v`` that a repository's tags have."""
        from packaging.version import InvalidVersion, Version

        if remote_refs.is_commit(self.name) or not self.name[:1].isdigit():
            return False
        try:
            Version(self.name)
        except InvalidVersion:
            return False
        return True


def run(
    project: Project, names: Sequence[str], refs: Sequence[str], environ: Mapping[str, str], report: Report
) -> tuple[ModVerdict, ...]:
    """Checks the mods ``names`` (all where there are none), each alone, against each of ``refs``: ``0.20.0`` is a wheel
    of vLLM, ``v0.20.0``, ``main`` or a commit means its repository, ``transformers=5.1.0`` another package.

    Raises UsageError or SourceError for refs that do not exist, all in one, and FileProblemsError for bad mods.
    """
    from concurrent.futures import ThreadPoolExecutor

    parsed = tuple(_parse(project, ref) for ref in dict.fromkeys(refs))
    mods = mod_dry_run.load(project, names)
    access = packages.access(project, environ, lambda text: report(Message(text)))
    definitions = tuple(mod_usage.definitions(project).values())
    columns: list[list[ModVerdict]] = []
    faults: list[SourceError | UsageError] = []
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for future in [pool.submit(_column, access, definitions, mods, ref) for ref in parsed]:
            try:
                columns.append(future.result())
            except (SourceError, UsageError) as error:
                faults.append(error)
    if faults:
        hints = dict.fromkeys(error.hint for error in faults if error.hint)
        kind = SourceError if any(isinstance(error, SourceError) for error in faults) else UsageError
        raise kind("\n".join(dict.fromkeys(error.message for error in faults)), hint="; ".join(hints))
    return tuple(verdict for row in zip(*columns, strict=True) for verdict in row)


def require_valid(project: Project) -> None:
    """Raises FileProblemsError with the problems of all mods that could not be tried, since they are invalid, and of
    the chat templates of the others."""
    templates = (problem for mod in mod_reading.readable(project) for problem in mod_problems.template_problems(mod))
    if problems := (*mod_reading.problems(project), *templates):
        raise FileProblemsError(problems, hint="the other mods were checked")


def _parse(project: Project, text: str) -> _PackageRef:
    if mod_reading.name_of(text) in mod_reading.names(project):
        raise UsageError(f"`{text}` is a mod, not a version", hint="name the mods first, then --against")
    package, equals, name = text.partition("=")
    return _PackageRef(package, name.lstrip("=")) if equals else _PackageRef(DEFAULT_PACKAGE, text)


def _column(
    access: Access, definitions: Sequence[ImageDefinition], mods: Sequence[Mod], ref: _PackageRef
) -> list[ModVerdict]:
    """Checks every mod against one version."""
    find = packages.released if ref.is_version else packages.committed
    package = find(access, definitions, ref.package, ref.name)
    tried_mods = tuple(map(loose_patches.as_declared, mods))
    candidates = mod_dry_run.candidates(tried_mods, ref.package)
    package = replace(package, tree=patch_dry_run.prefetched(package.tree, candidates))
    verdicts = []
    for mod, with_patches in zip(mods, tried_mods, strict=True):
        tried = mod_dry_run.try_all([with_patches], {ref.package: package}.get)
        own = tuple(attempt for attempt in tried if attempt.package == ref.package)
        unfit = mod_rules.excluded(mod, {canonical(ref.package): package.version})
        excluded = ", ".join(f"it requires {name} {mod.requires[name]}" for name in unfit)
        verdicts.append(ModVerdict(mod, package.label, own, excluded, is_hint=with_patches != mod))
    return verdicts
