"""tf5-wheel, from vLLM's CUDA wheels as PyPI has them, and FlashQLA on it: 10 GB, on a Debian base, without a GPU."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
import yaml

from builder.base.project import Project
from builder.definitions import image
from builder.engine.client import Endpoint
from builder.lock import lock_file
from tests import projects, shared, shipped_files
from tests.conftest import BASE, remove_all
from tests.cpu_image import builder
from tests.end_to_end.running import answer, layers

if TYPE_CHECKING:
    from collections.abc import Iterator


pytestmark = [pytest.mark.engine, pytest.mark.image, pytest.mark.full, pytest.mark.timeout(5400)]

HERE = {"version": "3.11", "glibc": "2.36"}
# The shipped one, on tf5-wheel in place of dflash.
FLASHQLA = {"from": "tf5-wheel", "mods": [], "python": {**HERE, "packages": ["flash-qla==0.1.3"]}}
IMPORTS = """\
import importlib.metadata as metadata, json
import flashinfer, transformers, vllm
names = ("vllm", "flashinfer-python", "transformers", "torch")
print(json.dumps({name: metadata.version(name) for name in names}))
"""
# The kernels look for a GPU when they are imported; told which one to compile for, they get as far as its driver.
KERNELS = """\
import json
from tilelang import tvm
try:
    with tvm.target.Target({"kind": "cuda", "arch": "sm_121"}):
        import flash_qla
except RuntimeError as error:
    print(json.dumps(str(error)))
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, endpoint: Endpoint) -> Iterator[Project]:
    made = Project(tmp_path_factory.mktemp("cuda"))
    shutil.copytree(shipped_files.project().root / "dockerfiles", made.dockerfiles)
    prefix = shared.unique_name()
    for name in ("tf5-wheel", "flashqla"):
        file = made.dockerfiles / name / "image.yaml"
        shipped = yaml.safe_load(file.read_text(encoding="utf-8"))
        changes = FLASHQLA if name == "flashqla" else {"base": BASE, "python": {**shipped["python"], **HERE}}
        changes = {"repository": f"{prefix}-{name}", "platform": "host", **changes}
        projects.write(file, yaml.safe_dump({**shipped, **changes}))
    with pytest.MonkeyPatch.context() as patch:
        # A torch without CUDA among the person's wheels would count as newer than PyPI's of the same version.
        for variable in ("PIP_FIND_LINKS", "UV_FIND_LINKS"):
            patch.delenv(variable, raising=False)
        yield made
    for name in ("tf5-wheel", "flashqla"):
        remove_all(endpoint, f"{prefix}-{name}")


def test_what_was_locked_can_be_imported(project: Project, endpoint: Endpoint) -> None:
    builder(project, "build", "tf5-wheel", "flashqla")
    tf5, flashqla = (f"{image.repository_of(project, name)}:1" for name in ("tf5-wheel", "flashqla"))
    (pins,) = lock_file.read_lock(project.lock).pins["tf5-wheel"].values()
    assert pins.python is not None
    locked = {package.name: package.version for package in pins.python.packages}
    found = answer(endpoint, tf5, IMPORTS)
    assert found == {name: locked[name] for name in found}
    assert {name: pin.version for name, pin in pins.sources.items()} == {
        "vllm": found["vllm"],
        "flashinfer": found["flashinfer-python"],
    }
    below, above = layers(endpoint, tf5), layers(endpoint, flashqla)
    assert above[: len(below)] == below
    assert answer(endpoint, flashqla, KERNELS).startswith("Found no NVIDIA driver on your system.")
