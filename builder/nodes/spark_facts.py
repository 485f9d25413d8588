"""Facts about this machine where it is a DGX Spark, from its /proc and from `nvidia-smi`; nothing is changed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder import proc_files
from builder.errors import NodeError
from builder.nodes import machine_shell

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_MODEL = re.compile(r"^Model:.*\bGB10\b", re.MULTILINE)
# NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build  …
_DRIVER = re.compile(r"^NVRM version:.*?\s(\d+(?:\.\d+)+)\s", re.MULTILINE)
# One line a GPU, such as `12.1`. It hangs where the driver is wedged.
_COMPUTE_CAPABILITY = "nvidia-smi --query-gpu=compute_cap --format=csv,noheader\n"
_SECONDS = 20.0


@dataclass(frozen=True)
class SparkFacts:
    """The facts: the driver's version, empty where the kernel has not loaded it; the ``kernel``'s release; the
    GPU's compute capability, empty where ``silence`` says why `nvidia-smi` does not tell; sizes in bytes by their names
    in /proc/meminfo; and if earlyoom is running."""

    driver: str
    kernel: str
    compute_capability: str
    silence: str
    sizes: Mapping[str, int]
    earlyoom: bool


def read(environ: Mapping[str, str], proc: Path) -> SparkFacts | None:
    """Reads the facts of this machine, whose /proc is ``proc``; None where it is no Spark."""
    if not is_spark(proc):
        return None
    capability, silence = _compute_capability(environ)
    return SparkFacts(
        driver=driver_version(proc_files.text(proc / "driver/nvidia/version")),
        kernel=proc_files.text(proc / "sys/kernel/osrelease").strip(),
        compute_capability=capability,
        silence=silence,
        sizes=proc_files.sizes(proc_files.text(proc / proc_files.MEMORY)),
        earlyoom=any(proc_files.text(path).strip() == "earlyoom" for path in proc.glob("[0-9]*/comm")),
    )


def driver_version(text: str) -> str:
    """The driver's version in the text of /proc/driver/nvidia/version; empty where there is none."""
    match = _DRIVER.search(text)
    return match[1] if match else ""


def is_spark(proc: Path) -> bool:
    """True if the machine whose /proc is ``proc`` is a DGX Spark."""
    return any(_MODEL.search(proc_files.text(path)) for path in sorted(proc.glob(proc_files.GPUS)))


def _compute_capability(environ: Mapping[str, str]) -> tuple[str, str]:
    """The GPU's compute capability, and why it is not known."""
    try:
        output = machine_shell.run(environ, machine_shell.HERE, _COMPUTE_CAPABILITY, timeout=_SECONDS)
    except NodeError as error:
        return "", error.message
    line = (output.strip().splitlines() or [""])[0].strip()
    return (line, "") if re.fullmatch(r"\d+\.\d+", line) else ("", f"it says {line or 'nothing'}")
