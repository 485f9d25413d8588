"""The shipped definitions of the GPU images as a machine without a GPU can build them: on a Debian base, for the target
device `empty`, which has no kernels to compile, and without FlashInfer, which is nothing but kernels."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import yaml

from builder.base.project import Project
from tests import projects, shipped_files
from tests.end_to_end.upstream import Upstream

if TYPE_CHECKING:
    from pathlib import Path


NAMES = ("tf5", "dflash", "flashqla")
PULL = "refs/pull/40898/head"
DRAFTER = "vllm/v1/spec_decode/dflash.py"
CHANGED = ("logger = init_logger(__name__)\n", "logger = init_logger(__name__)\n\nSLIDING_WINDOW = 4096\n")
PYTHON = {
    "version": "3.11",
    "glibc": "2.36",
    # The commits here are of a day long before the releases that they hold.
    "as_of": "today",
    # Triton, 1 GB, is of no use without a GPU.
    "without": ["torchaudio", "torchcodec", "torchvision", "triton"],
    "indexes": [{"url": "https://download.pytorch.org/whl/cpu", "packages": ["torch"]}],
}
# vLLM limits setuptools on later Pythons only.
PACKAGES = ["torch==2.13.0+cpu", "transformers>=5", "setuptools>=78.1.1,<81"]
# What vLLM 0.28.0 wants for CUDA, and so has flashqla.
PACKAGES_OF = {"tf5": [], "dflash": ["apache-tvm-ffi==0.1.11", "tilelang==0.1.12"]}

PULLS_OF = {"dflash": {"pulls": [40898]}}
_ORIGIN = {"requirements": ["requirements/common.txt"]}


def make(root: Path, prefix: str, url: str, base: str) -> Project:
    """A project at ``root`` with these definitions and the shipped mods; the images are called ``PREFIX-tf5`` and so
    on, vLLM comes from the repository at ``url``."""
    made = Project(root)
    shutil.copytree(shipped_files.project().root / "mods", made.mods)
    shutil.copytree(shipped_files.project().root / "dockerfiles/_parts", made.dockerfiles / "_parts")
    for name in NAMES:
        shutil.copytree(shipped_files.project().root / "dockerfiles" / name, made.dockerfiles / name)
        file = made.dockerfiles / name / "image.yaml"
        shipped = yaml.safe_load(file.read_text(encoding="utf-8"))
        projects.write(file, yaml.safe_dump(_without_kernels(name, shipped, f"{prefix}-{name}", url, base)))
    return made


def open_pull(vllm: Upstream) -> str:
    """Opens a pull request for what dflash is built from, as small as one can be; returns the file that it changes."""
    before = vllm.text("0.28.0", DRAFTER)
    after = before.replace(*CHANGED)
    assert after != before
    vllm.repository.commit(PULL, "[Spec Decode] Sliding windows", {DRAFTER: after}, vllm.releases["0.28.0"])
    return after


def _without_kernels(name: str, shipped: dict[str, Any], repository: str, url: str, base: str) -> dict[str, Any]:
    # Hours and many gigabytes are for the kernels.
    here = {key: value for key, value in shipped.items() if key != "first_build"}
    here |= {"repository": repository, "platform": "host", "python": {**shipped["python"], **PYTHON}}
    if "from" in shipped:
        return here
    return {
        **here,
        "base": base,
        "sources": {"vllm": {**shipped["sources"]["vllm"], **PULLS_OF.get(name, {}), **_ORIGIN, "git": url}},
        "python": {**here["python"], "packages": [*PACKAGES, *PACKAGES_OF[name]]},
        "args": {"build_jobs": 16, "target_device": "empty"},
    }
