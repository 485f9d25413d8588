"""Packages of mods that the image has in another version than they name, told with their place before a build."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.base.errors import SourceError
from builder.base.project import Project
from builder.building import mod_choice
from builder.definitions import image
from builder.lock.model import BasePin, GitPin, LockedPackage, Pins, PythonPin
from tests import projects

if TYPE_CHECKING:
    from pathlib import Path


FLASHINFER = GitPin("https://example.org/f.git", "main", "a" * 40, "0.7.0", "2026-01-01T00:00:00Z")


def check(folder: Path, packages: str) -> None:
    project: Project = projects.make(folder)
    projects.write(folder / "mods/kernels/mod.yaml", f"description: Kernels\npackages: {packages}\n")
    projects.write(
        project.dockerfiles / "gpu/image.yaml", f"{projects.IMAGE.format(repository='gpu')}mods: [kernels]\n"
    )
    projects.write(project.dockerfiles / "gpu/Dockerfile.j2", projects.DOCKERFILE)
    chain = (image.load_image(project, "gpu", "linux/arm64"),)
    held = tuple(
        LockedPackage(name, version, ("b" * 64,)) for name, version in (("torch", "2.10.0"), ("tilelang", "1"))
    )
    pins = Pins(sources={"flashinfer": FLASHINFER}, python=PythonPin((), "2026-01-01T00:00:00Z", held))
    mod_choice.check_mod_versions(chain, mod_choice.load_mods(project, chain, None), [pins])


def test_each_that_disagrees_is_told_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(SourceError) as caught:
        check(tmp_path, "[Torch==2.11.0, tilelang==1, flash-qla==0.1.3, flashinfer_cubin==0.6.9]")
    assert caught.value.message.splitlines() == [
        "mods/kernels/mod.yaml:2:12: Torch==2.11.0, and the image of gpu has torch==2.10.0",
        "mods/kernels/mod.yaml:2:58: flashinfer_cubin==0.6.9, and the image of gpu has flashinfer-cubin==0.7.0",
    ]
    assert caught.value.hint


@pytest.mark.parametrize("version", ["2.11.0a0~nv", "nightly", "0.7.2-dev_abc!x"])
def test_a_base_of_others_may_have_versions_that_nobody_can_compare(tmp_path: Path, version: str) -> None:
    project = projects.make(tmp_path)
    projects.write(
        tmp_path / "mods/template/mod.yaml", "description: x\nrun: run.sh\npackages: [torch==2.11.0, six==1]\n"
    )
    projects.write(
        project.dockerfiles / "small/image.yaml", f"{projects.IMAGE.format(repository='small')}mods: [template]\n"
    )
    chain = (image.load_image(project, "small", "linux/arm64"),)
    base = BasePin("others/vllm:latest", "sha256:" + "1" * 64, packages=(LockedPackage("torch", version, ()),))
    with pytest.raises(SourceError, match=r"torch==2.11.0, and the image of small has torch===") as caught:
        mod_choice.check_mod_versions(chain, mod_choice.load_mods(project, chain, None), [Pins(base)])
    assert caught.value.message.endswith(version)


def test_what_the_image_has_or_vllm_does_not_name_is_fine(tmp_path: Path) -> None:
    check(tmp_path, "[torch==2.10.0, tilelang==1.0, triton==3.6, transformers==5.0]")
