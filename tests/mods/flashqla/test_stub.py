"""TileLang's stand-in for the CUDA runtime: what FlashInfer takes for it, by its own look-up, in real processes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.mods import releases
from tests.mods.flashqla import tilelang_sites

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

# FlashInfer takes the first that is mapped. Which one that is, the kernel chooses anew each time: what holds must hold
# in both orders, every time.
ORDERS = (("runtime", "tilelang", "look"), ("tilelang", "runtime", "look"))


@pytest.fixture(scope="module", params=list(tilelang_sites.TVM_FFI))
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tilelang_sites.make(tmp_path_factory.mktemp("tilelang"), request.param)


@pytest.fixture
def modded(site: Path) -> Iterator[Path]:
    files = [site / name for name in ("tilelang_stub.py", "tilelang_stub.pth")]
    for file in files:
        shutil.copy(releases.folder_of("flashqla") / file.name, file)
    yield site
    for file in files:
        file.unlink()


def look_up(site: Path, *steps: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(Path(__file__).parent / "looking_up.py"), *steps]
    return subprocess.run(command, env=releases.site_packages(site), capture_output=True, text=True, timeout=120)


@pytest.mark.long
def test_without_the_mod_flashinfer_dies_of_the_stand_in_of_0_1_9(site: Path) -> None:
    done = look_up(site, "tilelang", "look")
    wanted = "cudaDeviceReset" if named_like_the_runtime(site) else "libcudart is not loaded in the current process"
    assert wanted in done.stderr.splitlines()[-1]


def test_with_the_mod_the_real_one_is_taken_whoever_imports_tilelang_first(modded: Path) -> None:
    for steps in ORDERS * 4:
        done = look_up(modded, *steps)
        assert (done.returncode, done.stderr) == (0, ""), steps
        assert done.stdout.endswith("/libcudart.so.13\n"), steps


def test_the_stand_in_is_in_no_process_under_its_own_name(modded: Path) -> None:
    done = look_up(modded, "tilelang", "look")
    assert done.stderr.splitlines()[-1] == "AssertionError: libcudart is not loaded in the current process"


def test_a_process_without_tilelang_pays_for_nothing(modded: Path) -> None:
    code = "import sys; print('tilelang_stub' in sys.modules, sorted({'ctypes', 'inspect'} & {*sys.modules}))"
    command = [sys.executable, "-c", code]
    with_it = subprocess.check_output(command, env=releases.site_packages(modded), text=True)
    without = subprocess.check_output(command, text=True)
    assert (with_it.split(" ", 1)[0], without.split(" ", 1)[0]) == ("True", "False")
    assert with_it.split(" ", 1)[1] == without.split(" ", 1)[1]


@pytest.mark.long
def test_it_holds_for_a_tilelang_that_a_later_mod_installs(modded: Path) -> None:
    for version in tilelang_sites.TVM_FFI:
        tilelang_sites.install_tilelang(modded, version)
        done = look_up(modded, *ORDERS[0])
        assert (done.returncode, done.stderr) == (0, ""), version


@pytest.mark.long
def test_a_link_to_the_real_one_is_left_alone(modded: Path) -> None:
    """A second CUDA runtime in the process would have a state of its own."""
    tilelang_sites.install_tilelang(modded, "0.1.9")
    (runtime,) = modded.glob("nvidia/*/lib/libcudart.so.*")
    (stand_in,) = modded.glob("tilelang/lib/*libcudart*")
    stand_in.unlink()
    stand_in.symlink_to(runtime)
    done = look_up(modded, *ORDERS[0])
    assert (done.returncode, done.stderr) == (0, "")


def named_like_the_runtime(site: Path) -> bool:
    return bool(list(site.glob("tilelang/lib/*libcudart*")))
