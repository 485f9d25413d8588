"""The check of mods against versions that the person names: where does a patch stop applying? Without a build."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.building import mod_dry_run, mod_usage
from builder.building.mod_dry_run import ModVerdict
from builder.definitions.mods import mod_reading
from builder.definitions.package_name import canonical
from builder.errors import SourceError, UsageError
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
    """``0.20.0`` and the like of a ``package``: the ``version`` of a wheel, or else a name in a repository."""

    package: str
    name: str

    @property
    def is_version(self) -> bool:
        """Whether it is written as a wheel's version is: without the ``v`` that a repository's tags have."""
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
    """The mods ``names`` (all where there are none), each alone, against each of ``refs``: ``0.20.0`` is a wheel of
    vLLM, ``v0.20.0``, ``main`` or a commit means its repository, ``transformers=5.1.0`` another package.

    Raises UsageError or SourceError with all that is no version and no ref, FileProblemsError for bad mods.
    """
    from concurrent.futures import ThreadPoolExecutor

    wanted = tuple(_parse(project, ref) for ref in dict.fromkeys(refs))
    mods = mod_dry_run.load(project, names)
    reach = packages.access(project, environ, lambda text: report(Message(text)))
    definitions = tuple(mod_usage.definitions(project).values())
    columns: list[list[ModVerdict]] = []
    faults: list[SourceError | UsageError] = []
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for under_way in [pool.submit(_column, reach, definitions, mods, ref) for ref in wanted]:
            try:
                columns.append(under_way.result())
            except (SourceError, UsageError) as error:
                faults.append(error)
    if faults:
        hints = dict.fromkeys(error.hint for error in faults if error.hint)
        kind = SourceError if any(isinstance(error, SourceError) for error in faults) else UsageError
        raise kind("\n".join(dict.fromkeys(error.message for error in faults)), hint="; ".join(hints))
    return tuple(verdict for row in zip(*columns, strict=True) for verdict in row)


def _parse(project: Project, text: str) -> _PackageRef:
    if mod_reading.name_of(text) in mod_reading.names(project):
        raise UsageError(f"`{text}` is a mod, not a version", hint="name the mods first, then --against")
    package, equals, name = text.partition("=")
    return _PackageRef(package, name.lstrip("=")) if equals else _PackageRef(DEFAULT_PACKAGE, text)


def _column(
    reach: Access, definitions: Sequence[ImageDefinition], mods: Sequence[Mod], ref: _PackageRef
) -> list[ModVerdict]:
    """Every mod against one version."""
    found = (packages.released if ref.is_version else packages.committed)(reach, definitions, ref.package, ref.name)
    found = replace(found, tree=patch_dry_run.prefetched(found.tree, mod_dry_run.candidates(mods, ref.package)))
    verdicts = []
    for one in mods:
        tried = mod_dry_run.try_all([one], {ref.package: found}.get)
        own = tuple(attempt for attempt in tried if attempt.package == ref.package)
        unfit = mod_rules.excluded(one, {canonical(ref.package): found.version})
        excluded = ", ".join(f"it holds for {name} {one.requires[name]}" for name in unfit)
        verdicts.append(ModVerdict(one, found.label, own, excluded))
    return verdicts
