"""The record of a machine: what may differ although the image, the recipe and the weights are the same.

It holds versions and limits alone. Serial numbers, addresses and the machine's name stay out of it: evidence with such
records is committed. Everything is read from plain files, without root (`PLACES`); some of it comes from programs
(`PROGRAMS`), where these answer at once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from builder.base import processes, words
from builder.base.values import dataclass, field

# Each place may be several files. /etc/dgx-release also has the serial number, and /proc/cmdline names the disk:
# `parse_machine` takes single values out of them.
PLACES = (
    *("proc/sys/kernel/osrelease", "proc/cmdline", "proc/meminfo", "proc/cpuinfo"),
    *("proc/driver/nvidia/version", f"proc/{processes.GPUS}"),
    *("etc/os-release", "etc/dgx-release"),
    *("sys/class/dmi/id/bios_version", "sys/class/dmi/id/ec_firmware_release", "sys/class/dmi/id/product_name"),
    *("sys/class/infiniband/*/fw_ver", "sys/class/infiniband/*/ports/*/rate"),
    *("sys/devices/system/cpu/cpufreq/policy*/scaling_governor", "sys/class/nvme/*/firmware_rev"),
)
# fwupd asks its own service, and no network; `nvidia-smi` hangs where the driver is wedged.
PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "fwupd": ("fwupdmgr", "get-devices", "--json"),
    "toolkit": ("nvidia-ctk", "--version"),
    "power": ("nvidia-smi", "--query-gpu=power.limit", "--format=csv,noheader,nounits"),
}

_LONGEST = 200  # characters of a value
_MOST_FIRMWARE = 40
# NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build  …
_DRIVER = re.compile(r"^NVRM version:.*?\s(\d+(?:\.\d+)+)\s", re.MULTILINE)
_GPU = re.compile(r"^Model:\s*(\S.*?)\s*$", re.MULTILINE)
_GPU_FIRMWARE = re.compile(r"^(GPU Firmware|Video BIOS):\s*(\S+)\s*$", re.MULTILINE)
_SETTING = re.compile(r"^(\w+)=[\"']?(.*?)[\"']?\s*$", re.MULTILINE)
# The kernel's parameters that decide about memory, links and power. `kho=off` gives back the memory that kernels 7.0
# keep for another kernel: https://github.com/MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark/issues/259
_PARAMETER = re.compile(
    r"(?:kho|cma|iommu[.\w]*|arm-smmu[.\w]*|pcie_aspm[.\w]*|pci|hugepages\w*|transparent_hugepage|init_on_alloc"
    r"|crashkernel|swapaccount|cgroup_\w+|mitigations|numa_balancing|nvidia[.\w-]*)(?:=[\w,.:+-]*)?"
)
# What a value may consist of: a name of a device may be anything.
_PLAIN = re.compile(r"[\w .,:+~()/@-]*", re.ASCII)


@dataclass(frozen=True)
class Machine:
    """A machine; every value is empty, 0 or None if it is not known.

    ``memory``, ``cma`` (CmaTotal), ``cma_free`` and ``available`` (MemAvailable when this was read) are in bytes.
    ``distribution`` is the release of the system, with that of DGX OS. ``firmware`` maps parts, RoCE devices among
    them, to their versions; ``links`` maps RoCE devices to the rates of their ports. ``toolkit`` is NVIDIA's container
    toolkit, ``power`` the GPU's limit in watts.
    """

    gpu: str = ""
    gpus: int = 0
    driver: str = ""
    platform: str = ""
    cpu: str = ""
    memory: int = 0
    kernel: str = ""
    parameters: str = ""
    distribution: str = ""
    product: str = ""
    firmware: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    toolkit: str = ""
    engine: str = ""
    governor: str = ""
    power: str = ""
    cma: int | None = None
    cma_free: int | None = None
    available: int = 0

    @property
    def gpus_text(self) -> str:
        """The GPUs in words: ``2 x NVIDIA H100``."""
        return f"{self.gpus} x {self.gpu}" if self.gpus > 1 else self.gpu


def read_files(folders: Mapping[str, Path], places: Iterable[str] = PLACES) -> dict[str, str]:
    """The texts of a machine's files, by path. Unreadable files are left out. ``folders`` has the folders for the names
    proc, sys and etc."""
    texts = {}
    for place in places:
        name, _, below = place.partition("/")
        if (folder := folders.get(name)) is None:
            continue
        for path in sorted(folder.glob(below)) if "*" in below else [folder / below]:
            if text := processes.text(path):
                texts[f"{name}/{path.relative_to(folder).as_posix()}"] = text
    return texts


def parse_machine(
    files: Mapping[str, str], outputs: Mapping[str, str], platform: str = "", engine: str = ""
) -> Machine:
    """The record that these files and the outputs of `PROGRAMS` give."""
    sizes = processes.sizes(files.get("proc/meminfo", ""))
    gpus = [(path, text) for path, text in files.items() if path.startswith("proc/driver/nvidia/gpus/")]
    models = [match[1] for _, text in gpus if (match := _GPU.search(text))]
    driver = _DRIVER.search(files.get("proc/driver/nvidia/version", ""))
    parameters = [each for each in files.get("proc/cmdline", "").split() if _PARAMETER.fullmatch(each)]
    governors = {text.strip() for path, text in files.items() if path.endswith("/scaling_governor")}
    return Machine(
        gpu=_plain(models[0]) if models else "",
        gpus=len(models),
        driver=_plain(driver[1]) if driver else "",
        platform=platform,
        cpu=_plain(_processor(files.get("proc/cpuinfo", ""))),
        memory=sizes.get("MemTotal", 0),
        kernel=_plain(files.get("proc/sys/kernel/osrelease", "")),
        parameters=" ".join(sorted(parameters))[:_LONGEST],
        distribution=_distribution(files),
        product=_plain(files.get("sys/class/dmi/id/product_name", "")),
        firmware=dict(sorted({**_fwupd(outputs.get("fwupd", "")), **_firmware(files)}.items())[:_MOST_FIRMWARE]),
        links=_links(files),
        toolkit=_number(outputs.get("toolkit", "")),
        engine=_plain(engine),
        governor=_plain(", ".join(sorted(governors))),
        power=_number(outputs.get("power", "")),
        cma=sizes.get("CmaTotal"),
        cma_free=sizes.get("CmaFree"),
        available=sizes.get("MemAvailable", 0),
    )


def _plain(text: str) -> str:
    """A value in one line; empty if it has characters that no version has."""
    line = " ".join(text.split())[:_LONGEST]
    return line if _PLAIN.fullmatch(line) else ""


def _number(text: str) -> str:
    match = re.search(r"\d+(?:\.\d+)+(?:[-+~][\w.]+)?", text)
    return match[0] if match else ""


def _distribution(files: Mapping[str, str]) -> str:
    """``Ubuntu 24.04.4 LTS, DGX OS 7.5.0``. A new machine records only its build. Each update adds a line with its
    version; the last line counts."""
    system, dgx = (dict(_SETTING.findall(files.get(f"etc/{name}", ""))) for name in ("os-release", "dgx-release"))
    version = dgx.get("DGX_OTA_VERSION") or dgx.get("DGX_SWBUILD_VERSION", "")
    parts = [system.get("PRETTY_NAME", ""), f"DGX OS {version}" if version else ""]
    return ", ".join(filter(None, map(_plain, parts)))


def _firmware(files: Mapping[str, str]) -> dict[str, str]:
    """The firmware versions that the kernel reports."""
    versions = {"BIOS": files.get("sys/class/dmi/id/bios_version", "")}
    versions["embedded controller"] = files.get("sys/class/dmi/id/ec_firmware_release", "")
    for path, text in files.items():
        *_, device, name = path.split("/")
        if path.startswith("proc/driver/nvidia/gpus/"):
            versions |= {part: version for part, version in _GPU_FIRMWARE.findall(text) if "?" not in version}
        elif kind := {"firmware_rev": "NVMe", "fw_ver": "RoCE"}.get(name):
            versions[f"{kind} {device}"] = text
    return _plain_pairs(versions)


def _fwupd(output: str) -> dict[str, str]:
    """The versions in the output of `fwupdmgr get-devices --json`, by the names of the devices, without serial numbers
    and ids. Not every device has a name or a version."""
    try:
        devices: Any = json.loads(output or "{}").get("Devices", [])
        named = {str(each.get("Name") or ""): str(each.get("Version") or "") for each in devices}
    except (ValueError, AttributeError, TypeError):
        return {}
    return {f"fwupd {name}": version for name, version in _plain_pairs(named).items()}


def _links(files: Mapping[str, str]) -> dict[str, str]:
    rates: dict[str, list[str]] = {}
    for path, text in files.items():
        if path.endswith("/rate"):
            rates.setdefault(path.split("/")[3], []).append(text)
    return _plain_pairs({device: ", ".join(each) for device, each in rates.items()})


def _plain_pairs(values: Mapping[str, str]) -> dict[str, str]:
    pairs = {_plain(name): _plain(value) for name, value in values.items()}
    return {name: value for name, value in pairs.items() if name and value}


def _processor(cpu: str) -> str:
    """The name of the processor in /proc/cpuinfo. On arm64 the kernel writes none, but the number of each core's
    implementer and part (https://docs.kernel.org/arch/arm64/cpu-feature-registers.html, MIDR_EL1)."""
    if model := re.search(r"^model name\s*:\s*(\S.*)$", cpu, re.MULTILINE):
        return model[1].strip()
    cores = re.findall(r"^CPU (?:implementer|part)\s*:\s*(0x[0-9a-f]+)$", cpu, re.MULTILINE)
    kinds = dict.fromkeys(f"{implementer}/{part}" for implementer, part in zip(cores[::2], cores[1::2], strict=False))
    return " ".join(["arm64", *kinds]) if kinds else ""


# The differences between two records, by part (``kernel``, ``firmware`` …) and the name of a device. A value that only
# one record has is not a difference: fwupd may fail, and earlier versions of this program recorded less.

_LESS_FREE = 0.1  # a start with this share of the memory less free is a difference
# The names of the parts that a single word does not explain.
_PART_NAMES = {
    "toolkit": "NVIDIA container toolkit",
    "governor": "CPU frequency governor",
    "power": "power limit of the GPU, in watts",
    "parameters": "kernel parameters",
    "links": "rate of the link",
    "CMA": "memory for devices (CmaTotal)",
}


@dataclass(frozen=True)
class MachineChange:
    """One difference: the ``part``, the ``name`` of a device if it is one of several, and both values."""

    part: str
    name: str
    before: str
    after: str

    def __str__(self) -> str:
        what = _PART_NAMES.get(self.part, self.part) + (f" of {self.name}" if self.name else "")
        return f"{what}: {self.before} → {self.after}"


def known_parts(machine: Machine) -> dict[tuple[str, str], str]:
    """The known values of a machine, by the part and the name of the device, which is empty for a single one."""
    values = {
        ("kernel", ""): machine.kernel,
        ("driver", ""): machine.driver,
        ("distribution", ""): machine.distribution,
        ("toolkit", ""): machine.toolkit,
        ("engine", ""): machine.engine,
        ("governor", ""): machine.governor,
        ("power", ""): machine.power,
        ("GPU", ""): machine.gpus_text,
        ("processor", ""): machine.cpu,
        ("parameters", ""): (machine.parameters or "none") if machine.kernel else "",
        **{("firmware", name): version for name, version in machine.firmware.items()},
        **{("links", device): rate for device, rate in machine.links.items()},
        ("CMA", ""): "" if machine.cma is None else f"{machine.cma // 1024} kB",
        ("memory", ""): words.size_text(machine.memory) if machine.memory else "",
    }
    return {part: value for part, value in values.items() if value}


def machine_changes(before: Machine, after: Machine) -> tuple[MachineChange, ...]:
    olds, news = known_parts(before), known_parts(after)
    both = (part for part in olds if part in news and news[part] != olds[part])
    changes = [MachineChange(*part, olds[part], news[part]) for part in both]
    if before.available and after.available and before.available - after.available > _LESS_FREE * before.memory:
        free = (words.size_text(each.available) for each in (before, after))
        changes.append(MachineChange("free memory", "", *free))
    return tuple(changes)
