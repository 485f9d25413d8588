"""The mod with FlashQLA 0.1.2, for the releases of vLLM whose TileLang is 0.1.9."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mods import releases
from tests.mods.flashqla import tilelang_sites
from tests.mods.releases import VLLM, Releases

pytestmark = pytest.mark.slow

NAME = "flashqla"


@pytest.fixture(scope="module")
def tilelang(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tilelang_sites.make(tmp_path_factory.mktemp("tilelang"), "0.1.9")


def baked(released: Releases, tilelang: Path, folder: Path, version: str) -> Path:
    ((_, site),) = released.sites(folder, "vllm", [version])
    ((_, kernels),) = released.sites(folder / "kernels", "flash_qla", ["0.1.2"])
    (kernels / "flash_qla").rename(site / "flash_qla")
    for package in ("tilelang", "tvm_ffi", "z3"):
        (site / package).symlink_to(tilelang / package)
    for patch in ("hook.patch", "gb10-0.1.2.patch"):
        assert releases.apply(NAME, patch, site) == "applied"
    done = releases.run_script(NAME, "run.sh", site)
    assert done.returncode == 0, done.stderr
    return site


@pytest.mark.long
def test_it_is_baked_into_and_proven_in_every_release_that_it_is_for(
    released: Releases, tilelang: Path, tmp_path: Path
) -> None:
    for version in VLLM[VLLM.index("0.20.0") : VLLM.index("0.26.0")]:
        done = releases.run_script(NAME, "check.sh", baked(released, tilelang, tmp_path / version, version))
        assert (done.returncode, done.stderr) == (0, ""), version


@pytest.mark.long
def test_the_check_sees_a_stand_in_that_others_would_take_for_the_cuda_runtime(
    released: Releases, tilelang: Path, tmp_path: Path
) -> None:
    site = baked(released, tilelang, tmp_path, "0.25.0")
    stub = site / "tilelang_stub.py"
    stub.write_text(stub.read_text().replace("    for file in stand_ins():", "    for file in ():"))
    done = releases.run_script(NAME, "check.sh", site)
    assert done.returncode == 1
    assert "libcudart_stub.so of TileLang for the CUDA runtime" in done.stderr


@pytest.mark.long
def test_the_check_sees_that_python_reads_no_pth_file(released: Releases, tilelang: Path, tmp_path: Path) -> None:
    site = baked(released, tilelang, tmp_path, "0.25.0")
    (site / "tilelang_stub.pth").unlink()
    done = releases.run_script(NAME, "check.sh", site)
    assert (done.returncode, done.stderr) == (1, "Python does not read tilelang_stub.pth when it starts\n")
