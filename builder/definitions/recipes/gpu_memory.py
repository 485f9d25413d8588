"""The GPU memory that a serve command asks for, as far as its words tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.definitions.recipes import arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

GIB = 1 << 30
# vLLM's own (vllm/config/cache.py); 0.9 in older releases.
DEFAULT_SHARE = 0.92
_SHARE = ("--gpu-memory-utilization", "--gpu_memory_utilization")
# Of the community's mod gpu-mem-util-gb.
_GIBIBYTES = ("--gpu-memory-utilization-gb", "--gpu_memory_utilization_gb")
_CACHE = ("--kv-cache-memory-bytes", "--kv_cache_memory_bytes", "--kv-cache-memory")


@dataclass(frozen=True)
class GpuMemory:
    """A share of the GPU's memory, or an amount in GiB. ``is_default`` is true if the command leaves it to vLLM,
    ``is_minimum`` if the size of the KV cache is given, so that the share is only what has to be free."""

    share: float = 0.0
    gibibytes: float = 0.0
    is_default: bool = False
    is_minimum: bool = False

    def of(self, total: int) -> int:
        """The bytes of a GPU with ``total`` bytes."""
        return int(self.gibibytes * GIB) if self.gibibytes else int(self.share * total)

    def __str__(self) -> str:
        """As labels have it: ``0.9``, or ``96g``."""
        return f"{self.gibibytes:g}g" if self.gibibytes else f"{self.share:g}"


def read(words: Sequence[str]) -> GpuMemory | None:
    """The memory that the words of a command ask for; None where only the shell can tell, or no model is served."""
    cache = arguments.option(words, *_CACHE) is not None
    amount = arguments.option(words, *_GIBIBYTES)
    share = arguments.option(words, *_SHARE)
    if amount is not None:
        number = _number(amount)
        return GpuMemory(gibibytes=number, is_minimum=cache) if number else None
    if share is not None:
        number = _number(share)
        return GpuMemory(share=number, is_minimum=cache) if number else None
    if arguments.model(words) is None:
        return None
    return GpuMemory(share=DEFAULT_SHARE, is_default=True, is_minimum=cache)


def of_label(text: str) -> GpuMemory:
    """The memory that a label tells; vLLM's default for anything else."""
    number = _number(text.removesuffix("g"))
    if not number:
        return GpuMemory(share=DEFAULT_SHARE, is_default=True)
    return GpuMemory(gibibytes=number) if text.endswith("g") else GpuMemory(share=number)


def _number(text: str) -> float:
    """The positive number that the text is, or 0."""
    try:
        number = float(text)
    except ValueError:
        return 0.0
    return number if 0 < number < float("inf") else 0.0
