"""TileLang's stand-in for the CUDA runtime: what FlashInfer takes for it, by its own look-up, in real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mods import releases
from tests.mods.flashqla import tilelang_sites

pytestmark = pytest.mark.slow

STUB = releases.folder_of("flashqla") / "gdn_flashqla/stub.py"
# FlashInfer takes the first that is mapped. Which one that is, the kernel chooses anew each time: what holds must hold
# in both orders, every time.
ORDERS = (("runtime", "hide", "tilelang", "look"), ("hide", "tilelang", "runtime", "look"))


@pytest.fixture(scope="module", params=list(tilelang_sites.TVM_FFI))
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tilelang_sites.make(tmp_path_factory.mktemp("tilelang"), request.param)


def look_up(site: Path, *steps: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(Path(__file__).parent / "looking_up.py"), str(STUB), *steps]
    environ = {**os.environ, "PYTHONPATH": str(site)}
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)


@pytest.mark.long
def test_without_the_mod_flashinfer_dies_of_the_stand_in_of_0_1_9(site: Path) -> None:
    done = look_up(site, "tilelang", "look")
    wanted = "cudaDeviceReset" if named_like_the_runtime(site) else "libcudart is not loaded in the current process"
    assert wanted in done.stderr.splitlines()[-1]


def test_with_the_mod_the_real_one_is_taken(site: Path) -> None:
    for steps in ORDERS * 4:
        done = look_up(site, *steps)
        assert (done.returncode, done.stderr) == (0, ""), steps
        assert done.stdout.endswith("/libcudart.so.13\n"), steps


def test_the_stand_in_is_in_no_process_under_its_own_name(site: Path) -> None:
    done = look_up(site, "hide", "tilelang", "look")
    assert done.stderr.splitlines()[-1] == "AssertionError: libcudart is not loaded in the current process"


@pytest.mark.long
def test_it_holds_for_a_tilelang_that_a_later_mod_installs(site: Path) -> None:
    for version in tilelang_sites.TVM_FFI:
        tilelang_sites.install_tilelang(site, version)
        done = look_up(site, *ORDERS[0])
        assert (done.returncode, done.stderr) == (0, ""), version


@pytest.mark.long
def test_a_link_to_the_real_one_is_left_alone(site: Path) -> None:
    """A second CUDA runtime in the process would have a state of its own."""
    tilelang_sites.install_tilelang(site, "0.1.9")
    (runtime,) = site.glob("nvidia/*/lib/libcudart.so.*")
    (stand_in,) = site.glob("tilelang/lib/*libcudart*")
    stand_in.unlink()
    stand_in.symlink_to(runtime)
    done = look_up(site, *ORDERS[0])
    assert (done.returncode, done.stderr) == (0, "")


def named_like_the_runtime(site: Path) -> bool:
    return bool(list(site.glob("tilelang/lib/*libcudart*")))
