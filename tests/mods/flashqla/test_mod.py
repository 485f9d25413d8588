"""The mod against the releases that it is for, and who serves vLLM's GDN prefill with it."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

import pytest

from builder.engine.client import Endpoint
from tests import cpu_image
from tests.mods import releases
from tests.mods.conftest import CpuImages
from tests.mods.flashqla import tilelang_sites
from tests.mods.releases import VLLM, Releases

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
NAME = "flashqla"
KERNELS = "0.1.3"
PATCHES = ("hook.patch", "gb10.patch")
CHUNK = "flash_qla/ops/gated_delta_rule/chunk/__init__.py"
# What FlashQLA calls the card of a compute version, and whether it was measured there. TileLang is a stand-in.
CARDS = """\
import json, sys, types
version = sys.argv[2]
nvcc = types.SimpleNamespace(get_target_compute_version=lambda: version)
sys.modules["tilelang"] = types.SimpleNamespace(contrib=types.SimpleNamespace(nvcc=nvcc))
sys.path.insert(0, sys.argv[1] + "/flash_qla/ops/gated_delta_rule/chunk/cp")
import autocp
print(json.dumps([autocp.current_arch(), autocp.is_calibrated(autocp.current_arch())]))
"""
# What the mod calls FlashQLA with.
PASSED = {
    *("q", "k", "v", "g", "beta", "initial_state", "output_final_state", "cu_seqlens", "use_qk_l2norm_in_kernel"),
    "state_v_first",
}
# In the cpu image: as the mod is baked, but without the kernels, which are for GPUs.
BAKE_AND_ASK = """\
set -e
cd "$(python3 -c 'import importlib.util; print(*importlib.util.find_spec("vllm").submodule_search_locations)')/.."
git apply /mod/hook.patch
cd /mod && bash run.sh
exec python3 /here/in_image.py
"""


@pytest.fixture(scope="module")
def tilelang(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tilelang_sites.make(tmp_path_factory.mktemp("tilelang"), "0.1.12")


def baked(released: Releases, tilelang: Path, folder: Path, version: str) -> Path:
    """vLLM's files, FlashQLA's and TileLang with the mod in them, as in site-packages."""
    ((_, site),) = released.sites(folder, "vllm", [version])
    ((_, kernels),) = released.sites(folder / "kernels", "flash_qla", [KERNELS])
    (kernels / "flash_qla").rename(site / "flash_qla")
    for package in ("tilelang", "tvm_ffi", "z3"):
        (site / package).symlink_to(tilelang / package)
    for patch in PATCHES:
        assert releases.apply(NAME, patch, site) == "applied"
    done = releases.run_script(NAME, "run.sh", site)
    assert done.returncode == 0, done.stderr
    return site


@pytest.mark.long
def test_it_is_baked_into_and_proven_in_every_release_that_it_is_for(
    released: Releases, tilelang: Path, tmp_path: Path
) -> None:
    for version in VLLM[VLLM.index("0.27.0") :]:
        done = releases.run_script(NAME, "check.sh", baked(released, tilelang, tmp_path / version, version))
        assert (done.returncode, done.stderr) == (0, ""), version


def test_the_releases_that_it_is_for() -> None:
    at = VLLM.index
    held = releases.held(releases.shipped(NAME), "vllm", VLLM)
    assert held == [*VLLM[at("0.20.0") : at("0.26.0")], *VLLM[at("0.27.0") :]]


@pytest.mark.parametrize(("version", "patch"), [("0.1.2", "gb10-0.1.2.patch"), ("0.1.3", "gb10.patch")])
def test_each_release_of_the_kernels_has_its_own_patch(version: str, patch: str) -> None:
    patches = [each for each in releases.shipped(NAME).patches if each.package == "flash_qla"]
    assert [each.file for each in patches if each.fits(version)] == [patch]


def test_the_hook_fits_the_releases_that_only_the_kernels_exclude(released: Releases, tmp_path: Path) -> None:
    earlier = VLLM[VLLM.index("0.19.0") : VLLM.index("0.27.0")]
    for version, site in released.sites(tmp_path, "vllm", earlier):
        assert releases.apply(NAME, "hook.patch", site) == "applied", version


@pytest.mark.long
def test_before_0_19_there_is_no_such_op_to_hook(released: Releases, tilelang: Path, tmp_path: Path) -> None:
    done = releases.run_script(NAME, "check.sh", baked(released, tilelang, tmp_path, "0.18.1"))
    assert done.returncode == 1
    assert "0 ops are registered as chunk_gated_delta_rule" in done.stderr


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("custom_op.py", "gdn_flashqla", "other", "the hook is in []"),
        ("layers/mamba/gdn_flashqla/hook.py", None, None, "gdn_flashqla/hook.py is missing"),
        (
            "layers/mamba/gdn/qwen_gdn_linear_attn.py",
            "self._forward_method = ",
            "self.forward_as = ",
            "does not choose its kernel",
        ),
        ("layers/mamba/gdn/qwen_gdn_linear_attn.py", "beta: torch.Tensor", "betas: torch.Tensor", "takes no beta"),
        ("../flash_qla/ops/gated_delta_rule/chunk/__init__.py", '"12.1"', '"12.2"', "on GB10 (SM121)"),
        ("../flash_qla/ops/gated_delta_rule/chunk/cp/autocp/launch.py", '"12.1"', '"12.2"', "on GB10 (SM121)"),
    ],
)
def test_the_check_tells_what_it_no_longer_builds_on(
    released: Releases, tilelang: Path, tmp_path: Path, file: str, old: str | None, new: str | None, said: str
) -> None:
    site = baked(released, tilelang, tmp_path, "0.28.0")
    changed = site / "vllm" / ("" if file.startswith("..") else "model_executor") / file
    if old is None or new is None:
        changed.unlink()
    else:
        assert old in changed.read_text()
        changed.write_text(changed.read_text().replace(old, new))
    done = releases.run_script(NAME, "check.sh", site)
    assert done.returncode == 1
    assert said in done.stderr


def signature(site: Path) -> list[str]:
    """The parameters of ``chunk_gated_delta_rule`` as FlashQLA's source has them."""
    found = [
        node
        for node in ast.parse((site / CHUNK).read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name == "chunk_gated_delta_rule"
    ]
    return [argument.arg for argument in found[0].args.args]


def test_flash_qla_takes_what_the_mod_passes(released: Releases, tmp_path: Path) -> None:
    for version, site in released.sites(tmp_path, "flash_qla", ["0.1.2", "0.1.3"]):
        assert set(signature(site)) >= PASSED, version


def card(site: Path, version: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", CARDS, site, version], capture_output=True, text=True)


def test_flash_qla_0_1_3_names_gb10_and_dies_of_it_without_the_patch(released: Releases, tmp_path: Path) -> None:
    ((_, site),) = released.sites(tmp_path, "flash_qla", [KERNELS])
    assert '"12.1"' in (site / CHUNK).read_text()
    assert "Found compute version: 12.1" in card(site, "12.1").stderr
    others = {version: card(site, version).stdout for version in ("9.0", "10.0", "12.0")}
    assert releases.apply(NAME, "gb10.patch", site) == "applied"
    assert json.loads(card(site, "12.1").stdout) == ["sm120", False]
    assert {version: card(site, version).stdout for version in others} == others


def test_the_batches_of_the_warm_up_have_every_kernel_compiled_that_serving_asks_for(
    released: Releases, tmp_path: Path
) -> None:
    """By FlashQLA's own rules: 1,200 batches for each number of heads and of tokens."""
    ((_, site),) = released.sites(tmp_path, "flash_qla", [KERNELS])
    command = [sys.executable, str(HERE / "choosing.py"), str(site)]
    command += [str(releases.folder_of(NAME) / "gdn_flashqla/warmup.py")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"Hopper": [], "GB10": []}


@pytest.mark.long
def test_the_kernels_want_the_very_tilelang_that_vllm_pins(released: Releases) -> None:
    """Why the mod is not for vLLM 0.26: no release of FlashQLA goes with it, and 0.1.2 alone with those before."""
    assert required(released, "vllm", "0.21.0") == required(released, "flash_qla", "0.1.2")
    assert required(released, "vllm", "0.25.1") == required(released, "flash_qla", "0.1.2")
    assert required(released, "vllm", "0.26.0") == {"tilelang": "==0.1.9", "apache-tvm-ffi": "==0.1.10"}
    assert required(released, "flash_qla", "0.1.3") == {"tilelang": ">=0.1.12"}
    for version in VLLM[VLLM.index("0.27.0") :]:
        assert required(released, "vllm", version) == {"tilelang": "==0.1.12", "apache-tvm-ffi": "==0.1.11"}, version


def required(released: Releases, package: str, version: str) -> dict[str, str]:
    """What a wheel's metadata says of tilelang and tvm-ffi."""
    path = f"{package}-{version}.dist-info/METADATA"
    lines = HeaderParser().parsestr(released.text(package, version, path)).get_all("Requires-Dist", [])
    names = ("tilelang", "apache-tvm-ffi")
    return {name: line.removeprefix(name) for line in lines for name in names if line.startswith(name)}


@pytest.fixture(scope="module")
def answer(endpoint: Endpoint, cpu: CpuImages) -> Any:
    """Who served which call of vLLM's own op, hooked, with a stand-in for FlashQLA."""
    folders = {HERE: "/here", releases.folder_of(NAME): "/mod"}
    return cpu_image.answer(endpoint, cpu.plain, ["bash", "-c", BAKE_AND_ASK], folders)


@pytest.mark.long
@pytest.mark.engine
@pytest.mark.image
def test_the_op_that_vllm_registers_is_the_one_that_is_hooked(answer: Any) -> None:
    assert answer["registered"] is True


@pytest.mark.long
@pytest.mark.engine
@pytest.mark.image
@pytest.mark.parametrize("gpu", ["GB10", "Hopper"])
def test_flash_qla_serves_what_vllm_passes_in_its_own_layout(answer: Any, gpu: str) -> None:
    assert answer[gpu] == "FlashQLA"
    assert answer[f"{gpu} call"] == {
        "q": [[1, 96, 2, 128], "bfloat16"],
        "k": [[1, 96, 2, 128], "bfloat16"],
        "v": [[1, 96, 4, 128], "bfloat16"],
        "g": [[1, 96, 4], "float32"],
        "beta": [[1, 96, 4], "float32"],
        "initial_state": [[2, 4, 128, 128], "float32"],
        "output_final_state": True,
        "cu_seqlens": [[3], "int32"],
        "use_qk_l2norm_in_kernel": False,
        "state_v_first": True,
    }
    assert set(answer[f"{gpu} call"]) == PASSED


@pytest.mark.long
@pytest.mark.engine
@pytest.mark.image
def test_what_flash_qla_cannot_serve_goes_to_vllms_own_kernel(answer: Any) -> None:
    unfit = ("GB10 float16", "GB10 heads of 64", "Hopper heads of 64", "chosen triton", "off", "no kernels for the GPU")
    assert {case: answer[case] for case in (*unfit, "not CUDA")} == dict.fromkeys((*unfit, "not CUDA"), "vLLM")
    assert answer["Hopper float16"] == answer["GB10 batch without lengths"] == "FlashQLA"


@pytest.mark.long
@pytest.mark.engine
@pytest.mark.image
def test_the_first_call_goes_through_the_batches_that_serving_can_have(answer: Any) -> None:
    assert answer["warm-up and two calls"] == ["FlashQLA", "FlashQLA"]
    warming = answer["warm-up"][: answer["warm-up ends"]]
    assert answer["warm-up"][-1] == [2, 96]
    assert [1, 64] in warming
    assert max(tokens for _, tokens in warming) == answer["most tokens"]
    assert {count for count, _ in warming} == {1, 2, 4, 8, 16, 32}


@pytest.mark.long
@pytest.mark.engine
@pytest.mark.image
def test_the_faster_kernel_serves_all_layers_of_a_batch(answer: Any) -> None:
    assert answer["own is faster"] == ["vLLM"] * 3
    assert answer["FlashQLA is faster"] == ["FlashQLA"] * 3
    assert answer["own is faster, require"] == "FlashQLA"
    assert answer["own fails when it is timed"] == "FlashQLA"


@pytest.mark.long
@pytest.mark.engine
@pytest.mark.image
def test_the_kernels_are_timed_once(answer: Any) -> None:
    assert answer["calls of a second op"] == 1
    assert answer["after a restart"] is True, "the times are kept beside vLLM's caches"


@pytest.mark.long
@pytest.mark.engine
@pytest.mark.image
def test_an_empty_sequence_is_left_out_and_keeps_its_state(answer: Any) -> None:
    assert answer["empty sequence"] == [[2], [5.0, 2.0]]


@pytest.mark.long
@pytest.mark.engine
@pytest.mark.image
def test_output_and_state_are_what_the_op_returns(answer: Any) -> None:
    assert answer["output"] == [1.0, None]
    assert answer["place for the output"] == [1.0, 0.0]


@pytest.mark.long
@pytest.mark.engine
@pytest.mark.image
def test_a_first_call_that_fails_is_the_last_and_a_later_failure_is_not_hidden(answer: Any) -> None:
    assert answer["first call fails"] == ["vLLM", "vLLM", ["FlashQLA", "vLLM", "vLLM"]]
    assert answer["fails later"] == "RuntimeError: illegal memory access"


@pytest.mark.long
@pytest.mark.engine
@pytest.mark.image
def test_require_makes_an_error_of_every_way_back(answer: Any) -> None:
    assert answer["require"] == "FlashQLA"
    assert answer["require, heads of 64"] == "UnfitError: heads of 64 and 64, where it has kernels for 128"
    assert answer["require, first call fails"] == "RuntimeError: nvcc not found"
    assert answer["require, not importable"].startswith("UnfitError: flash_qla cannot be imported: ImportError(")
    assert answer["maybe"] == "ValueError: FLASHQLA_PREFILL=maybe: it is one of auto, off, require"
