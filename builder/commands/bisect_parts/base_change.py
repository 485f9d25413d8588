"""The change of a base image: the packages of the distribution, in the candidates on either side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.building import work_folder
from builder.commands.bisect_parts import making
from builder.engine import system_packages
from builder.errors import BuildFailedError, ImageStateError, SourceError
from builder.events import Message

if TYPE_CHECKING:
    from builder.bisecting.search import Conclusion
    from builder.commands.bisect_parts.spans import NumberSpan
    from builder.workspace import Workspace


def packages(workspace: Workspace, span: NumberSpan, conclusion: Conclusion) -> str:
    """The packages in which they differ, as the lines of a diff; empty where an image cannot be asked any more."""
    workspace.report(Message("comparing the packages of the two images"))
    try:
        with work_folder.create(workspace, "bisect", {}) as work:
            good, bad = (
                system_packages.read(workspace.engine, making.tag_of(workspace, span, candidate), work.labels)
                for candidate in (conclusion.good, conclusion.bad)
            )
    except (BuildFailedError, ImageStateError, SourceError) as error:
        workspace.report(Message(error.message))
        return ""
    lines = (
        f"{sign}package {name} {side[name]}\n"
        for name in sorted({*good, *bad})
        for sign, side in (("-", good), ("+", bad))
        if good.get(name) != bad.get(name) and name in side
    )
    return "".join(lines)
