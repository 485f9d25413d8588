"""The machine that a model is served on, as a figure records it."""

from __future__ import annotations

import platform
import re
from typing import TYPE_CHECKING

from builder import proc_files
from builder.errors import BuilderError
from builder.evidence.record import Machine
from builder.serving import machine_memory

if TYPE_CHECKING:
    from pathlib import Path

    from builder.engine.client.endpoint import Endpoint

_DRIVER = "driver/nvidia/version"
_CPU = "cpuinfo"
_LONGEST = 200  # characters of a name in evidence


def look(endpoint: Endpoint, image: str, proc: Path = machine_memory.PROC) -> Machine:
    """The engine's machine; of another one only what a container of ``image`` sees of it. ``proc`` is this machine's
    /proc."""
    if endpoint.host.startswith("unix://"):
        texts = [proc_files.text(path) for path in (proc / proc_files.MEMORY, *sorted(proc.glob(proc_files.GPUS)))]
        driver, cpu = proc_files.text(proc / _DRIVER), proc_files.text(proc / _CPU)
        return parse("".join(texts), driver, cpu, f"linux/{_ARCHITECTURES.get(platform.machine(), platform.machine())}")
    try:
        return parse(machine_memory.read_in_container(endpoint, image))
    except BuilderError:
        return Machine()


_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def parse(files: str, driver: str = "", cpu: str = "", of_platform: str = "") -> Machine:
    """The machine that the texts of these files tell."""
    gpus = re.findall(r"^Model:\s*(\S.*?)\s*$", files, re.MULTILINE)
    version = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)", driver)
    return Machine(
        gpu=gpus[0][:_LONGEST] if gpus else "",
        gpus=len(gpus),
        driver=version[1][:_LONGEST] if version else "",
        platform=of_platform,
        cpu=_processor(cpu)[:_LONGEST],
        memory=proc_files.sizes(files).get("MemTotal", 0),
    )


def _processor(cpu: str) -> str:
    """The name of the processor in /proc/cpuinfo. On arm64 the kernel writes none, but the number of each core's
    implementer and part (https://docs.kernel.org/arch/arm64/cpu-feature-registers.html, MIDR_EL1)."""
    if model := re.search(r"^model name\s*:\s*(\S.*)$", cpu, re.MULTILINE):
        return model[1].strip()
    cores = re.findall(r"^CPU (?:implementer|part)\s*:\s*(0x[0-9a-f]+)$", cpu, re.MULTILINE)
    kinds = dict.fromkeys(f"{implementer}/{part}" for implementer, part in zip(cores[::2], cores[1::2], strict=False))
    return " ".join(["arm64", *kinds]) if kinds else ""
