"""Files of /proc that tell a machine's memory and its GPUs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MEMORY = "meminfo"
GPUS = "driver/nvidia/gpus/*/information"
"""The file of each GPU, by its driver, with a line such as ``Model: NVIDIA GB10``."""

_SIZE = re.compile(r"^(\w+):\s+(\d+) kB$", re.MULTILINE)


def text(path: Path) -> str:
    """The text of a file; empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def sizes(meminfo: str) -> dict[str, int]:
    """The sizes in the text of /proc/meminfo (proc_meminfo(5)), in bytes, by their names."""
    return {name: int(number) * 1024 for name, number in _SIZE.findall(meminfo)}
