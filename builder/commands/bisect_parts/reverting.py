"""A mod that takes the culprit back: the commit's changes of Python files, turned round, and tried on the bad
commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.errors import SourceError
from builder.plan.model import StagedFile
from builder.sources.git import commit_row, mirror_reading, patch_dry_run
from builder.sources.git.patch_dry_run import CandidatePatch, PackageFiles

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.commands.bisect_parts.report import BisectReport
    from builder.commands.bisect_parts.spans import NumberSpan
    from builder.workspace import Workspace

_YAML = """\
description: Takes back {commit} of {package}, which a bisection named
patches: [{{file: revert.patch, package: {package}}}]
"""


@dataclass(frozen=True)
class RevertingMod:
    """A mod, with its files, and a sentence on how far it can do its work."""

    name: str
    files: Mapping[str, StagedFile]
    told: str
    applies: bool


def mod_of(workspace: Workspace, report: BisectReport, span: NumberSpan) -> RevertingMod | None:
    """The mod for a single commit of a package; None for anything else, and for a commit that changes no Python file of
    it. It is tried on the commit of the bad image, where that comes after the culprit."""
    if len(report.culprits) != 1 or (named := report.culprits[0]).commit is None or named.culprit.between:
        return None
    package, commit = named.culprit.unit.rpartition(": ")[2], named.commit.commit
    mirrors = workspace.project.mirrors
    trees = [tree for part in (span.builds.parts if span.builds else ()) for tree in part.trees]
    pinned = next((tree.new.partition("#")[2] for tree in trees if tree.unit == named.culprit.unit), commit)
    try:
        patch, others = commit_row.reversal(mirrors, named.address, commit, package)
        if not patch:
            return None
        files = PackageFiles(package, lambda paths: mirror_reading.read_files(mirrors, named.address, pinned, paths))
        (outcome,) = patch_dry_run.dry_run(files, [CandidatePatch("revert.patch", patch)])
    except SourceError:
        return None
    short = commit[:12]
    fits = "applies" if outcome.state == "applies" else f"does not apply as it is ({outcome.problem or outcome.state})"
    rest = f"; it leaves {len(others)} files that are no Python of {package} as they are" if others else ""
    yaml = _YAML.format(commit=short, package=package)
    content = {"mod.yaml": StagedFile(yaml.encode()), "revert.patch": StagedFile(patch)}
    told = f"mods/revert-{short} {fits} on {pinned[:12]}{rest}"
    return RevertingMod(f"revert-{short}", content, told, applies=outcome.state == "applies")
