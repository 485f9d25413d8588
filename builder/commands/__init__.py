"""The commands, without printing: a function for each command, with its variants in the same module (`preview_build`).
The command line imports this package; each module is imported at its first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from builder.commands import about as about
    from builder.commands import advising as advising
    from builder.commands import bases as bases
    from builder.commands import bisecting as bisecting
    from builder.commands import build as build
    from builder.commands import checkpoints as checkpoints
    from builder.commands import comparing as comparing
    from builder.commands import crash_report as crash_report
    from builder.commands import diff as diff
    from builder.commands import explaining as explaining
    from builder.commands import image_files as image_files
    from builder.commands import init as init
    from builder.commands import keeping as keeping
    from builder.commands import listing as listing
    from builder.commands import lock as lock
    from builder.commands import measuring as measuring
    from builder.commands import mods as mods
    from builder.commands import nodes as nodes
    from builder.commands import pointing as pointing
    from builder.commands import rebuild as rebuild
    from builder.commands import recipes as recipes
    from builder.commands import rollback as rollback
    from builder.commands import servers as servers
    from builder.commands import transfers as transfers
    from builder.commands import up as up
    from builder.commands import upgrade as upgrade
    from builder.commands import watching as watching
    from builder.commands import why as why
else:

    def __getattr__(name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(name)
        return import_module(f"{__name__}.{name}")
