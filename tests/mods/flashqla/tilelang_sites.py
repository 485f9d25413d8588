"""TileLang as it is installed, with the real CUDA runtime and FlashInfer's look-up of it beside it, and no torch."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from uv import find_uv_bin

if TYPE_CHECKING:
    from pathlib import Path

# TileLang and the tvm-ffi that goes with it: of vLLM 0.20 to 0.25, and of 0.27 to 0.33.
TVM_FFI = {"0.1.9": "0.1.9", "0.1.12": "0.1.11"}
_BESIDE = ("z3-solver==4.15.4.0", "nvidia-cuda-runtime==13.0.96", "flashinfer-python==0.6.13")


def install(folder: Path, *requirements: str) -> None:
    """Installs packages, and nothing that they need, into ``folder``."""
    uv = [
        find_uv_bin(),
        "pip",
        "install",
        "--quiet",
        "--reinstall",
        "--no-deps",
        "--python",
        sys.executable,
        "--target",
        str(folder),
    ]
    find = [word for link in os.environ.get("PIP_FIND_LINKS", "").split() for word in ("--find-links", link)]
    # TileLang's package of tvm-ffi is for Python 3.12; its library, which alone is loaded, is for any.
    subprocess.run([*uv, "--python-version", "3.12", *find, *requirements], check=True)


def install_tilelang(folder: Path, version: str) -> None:
    """TileLang of ``version`` with the libraries that its own need, as a mod that installs it does."""
    install(folder, f"tilelang=={version}", f"apache-tvm-ffi=={TVM_FFI[version]}")


def make(folder: Path, version: str) -> Path:
    install(folder, *_BESIDE)
    install_tilelang(folder, version)
    return folder
