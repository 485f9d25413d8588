"""What FlashInfer takes for the CUDA runtime in a process that has TileLang: `python looking_up.py STEP…`.

PYTHONPATH leads to TileLang, the CUDA runtime and FlashInfer. Each STEP is one of: ``runtime`` (the real one is loaded,
as torch does it), ``tilelang`` (it is found, and what importing it loads is loaded), ``look`` (the module of FlashInfer
that looks it up is imported, and prints what it found). torch is a stand-in: only a type is taken from it.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


def module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    made = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = made
    spec.loader.exec_module(made)
    return made


def runtime() -> None:
    (library,) = folder("nvidia").glob("*/lib/libcudart.so.*")
    ctypes.CDLL(str(library))


def tilelang() -> None:
    ctypes.CDLL(str(folder("tilelang") / "lib/libtilelang.so"), os.RTLD_LAZY)


def look() -> None:
    torch, distributed = ModuleType("torch"), ModuleType("torch.distributed")
    distributed.ProcessGroup = torch.distributed = distributed  # type: ignore[attr-defined]
    sys.modules |= {"torch": torch, "torch.distributed": distributed}
    found = module(folder("flashinfer") / "comm/cuda_ipc.py").cudart.lib
    sys.stdout.write(f"{found._name}\n")


def main(*steps: str) -> int:
    doing: dict[str, Callable[[], Any]] = {"runtime": runtime, "tilelang": tilelang, "look": look}
    for step in steps:
        doing[step]()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
