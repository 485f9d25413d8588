"""Transfers of image layers in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder import humanize

if TYPE_CHECKING:
    from builder.engine.registry.transfer import LayerProgress, PulledLayers


def layers(pulled: PulledLayers) -> str:
    """The layers that were transferred, with their bytes where the engine reported them."""
    count = humanize.counted(pulled.layers, "layer")
    return f"{count}, {humanize.size(pulled.bytes)}" if pulled.bytes else count


def amount(progress: LayerProgress) -> str:
    """The progress of a transfer: 1.2 GB of 5.3 GB."""
    if progress.unpacking:
        return "unpacking"
    return f"{humanize.size(progress.current)} of {humanize.size(progress.total)}"
