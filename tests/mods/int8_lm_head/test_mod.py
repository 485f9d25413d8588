"""The mod against every release that it is for, and the logits of vLLM's own model with it: the kernel in Triton's
interpreter, since there is no GPU."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from uv import find_uv_bin

from builder.engine.client import Endpoint
from tests import cpu_image
from tests.mods import releases
from tests.mods.conftest import CpuImages
from tests.mods.releases import VLLM, Releases

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
NAME = "int8-lm-head"
HOOKED = "model_loader/utils.py"
PROCESSOR = "layers/logits_processor.py"
EMBEDDING = "layers/vocab_parallel_embedding.py"
# As a build does it, in the container of the test.
BAKE_AND_ASK = """
cp -r /mod /tmp/mod && cd /tmp/mod &&
site=$(python3 -c 'import importlib.util as i; print(i.find_spec("vllm").submodule_search_locations[0])')/.. &&
GIT_DIR=/dev/null git -C "$site" apply --whitespace=nowarn /mod/hook.patch && bash run.sh && bash check.sh &&
TRITON_INTERPRET=1 python3 /here/in_image.py /triton
"""


def baked(site: Path) -> None:
    assert releases.apply(NAME, "hook.patch", site) == "applied"
    done = releases.run_script(NAME, "run.sh", site)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_it_is_baked_into_and_proven_in_every_release_that_it_is_for(released: Releases, tmp_path: Path) -> None:
    wanted = releases.held(releases.shipped(NAME), "vllm", VLLM)
    assert wanted == list(VLLM[VLLM.index("0.20.0") :])
    for version, site in released.sites(tmp_path, "vllm", wanted):
        baked(site)
        done = releases.run_script(NAME, "check.sh", site)
        assert (done.returncode, done.stderr) == (0, ""), version
        assert releases.apply(NAME, "hook.patch", site) == "in place", version


def test_the_check_fails_without_the_mod(released: Releases, tmp_path: Path) -> None:
    ((_, site),) = released.sites(tmp_path, "vllm", ["0.32.0"])
    assert releases.run_script(NAME, "check.sh", site).returncode == 1


@pytest.mark.parametrize("version", ["0.20.0", "0.33.0"])
@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("layers/int8_lm_head/kernel.py", None, None, "kernel.py is missing"),
        (HOOKED, "@int8_lm_head.after_loading\n", "", "process_weights_after_loading is not hooked"),
        (HOOKED, "target_device: torch.device\n) -> None", "device: torch.device\n) -> None", "takes model"),
        ("model_loader/base_loader.py", "process_weights_after_loading(model", "process(model", "are loaded without"),
        ("../config/speculative.py", 'runner="draft"', 'runner="drafter"', "cannot be told from a model's"),
        (PROCESSOR, "        embedding_bias: torch.Tensor | None = None,\n", "        b=None,\n", "other arguments"),
        (PROCESSOR, "lm_head.quant_method.apply(", "lm_head.method.apply(", "does not ask the quantisation method"),
        (EMBEDDING, "class ParallelLMHead", "class LMHead", "vLLM's head is another class"),
    ],
)
def test_the_check_tells_what_it_no_longer_builds_on(
    released: Releases, tmp_path: Path, version: str, file: str, old: str | None, new: str | None, message: str
) -> None:
    ((_, site),) = released.sites(tmp_path, "vllm", [version])
    baked(site)
    changed = site / "vllm/model_executor" / file
    if old is None or new is None:
        changed.unlink()
    else:
        assert old in changed.read_text()
        changed.write_text(changed.read_text().replace(old, new))
    done = releases.run_script(NAME, "check.sh", site)
    assert done.returncode == 1
    assert message in done.stderr


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Triton for the Python of the cpu image, which has none."""
    folder = tmp_path_factory.mktemp("triton")
    uv = [find_uv_bin(), "pip", "install", "--quiet", "--no-deps", "--python-version", "3.11", "--target", str(folder)]
    find = [word for link in os.environ.get("PIP_FIND_LINKS", "").split() for word in ("--find-links", link)]
    subprocess.run([*uv, *find, "triton==3.6.0"], check=True)
    return folder


@pytest.fixture(scope="module")
def answer(endpoint: Endpoint, cpu: CpuImages, triton: Path) -> Any:
    """What vLLM's own model answers in each case."""
    folders = {HERE: "/here", releases.folder_of(NAME): "/mod", triton: "/triton"}
    return cpu_image.answer(endpoint, cpu.plain, ["bash", "-c", BAKE_AND_ASK], folders)


@pytest.mark.long
@pytest.mark.engine
@pytest.mark.image
def test_the_kernel_and_its_reference_are_right(answer: Any) -> None:
    """By float64, for batches and vocabularies that fill no block: what is lost is what rounding the logits costs."""
    assert len(answer["kernel"]) == 14
    for case in answer["kernel"]:
        assert case["kernel"] <= case["rounding"] * 1.01, case
        assert case["reference"] <= case["rounding"] * 1.01, case
        assert case["shape"] == [case["batch"], case["vocabulary"]]


@pytest.mark.long
@pytest.mark.engine
@pytest.mark.image
def test_rows_are_quantised_alone_so_that_a_part_has_the_rows_of_the_whole(answer: Any) -> None:
    assert answer["quantised"] == {"parts": True, "zeros": [0.0, 1e-12], "largest": 127, "off by half a step": True}


@pytest.mark.long
@pytest.mark.engine
@pytest.mark.image
def test_each_tile_fits_into_the_shared_memory_of_gb10(answer: Any) -> None:
    assert answer["tiles"]
    assert max(size for _, size in answer["tiles"]) <= 99 * 1024
    assert [batch for batch, _ in answer["tiles"]] == [16, 32, 64]


@pytest.mark.long
@pytest.mark.engine
@pytest.mark.image
def test_a_model_that_vllm_loads_is_served_in_int8_up_to_batches_of_64(answer: Any) -> None:
    assert answer["served"] == {"1": "INT8", "17": "INT8", "64": "INT8", "65": "own"}
    assert answer["leading dimensions"] == [2, 3, 128]
    assert answer["arguments by name"] == "INT8"


@pytest.mark.long
@pytest.mark.engine
@pytest.mark.image
def test_a_drafter_that_shares_the_head_has_the_models_own(answer: Any) -> None:
    assert answer["drafter"] == {"after loading": "own", "with the head of the model": "own"}
    assert answer["weight"] == "as it was"


@pytest.mark.long
@pytest.mark.engine
@pytest.mark.image
def test_it_is_off_where_it_cannot_serve(answer: Any) -> None:
    assert answer["off"] == "own"
    assert answer["not on a GPU"] == "its weight is on cpu, and the kernel is for CUDA"
    assert answer["tied"] == "its weight is the input embedding's"
    assert answer["quantised already"] == "it is quantised already, by SimpleNamespace"
    assert answer["float32"] == "its weight is torch.float32"
    assert answer["other shape"] == "its weight is (32, 64), not a row of 64 for each token"
    assert answer["batch invariant"].startswith("VLLM_BATCH_INVARIANT is set")
    assert answer["no head"].startswith("nothing in it is a head of its own")
    assert answer["pooling"] == "own"
    assert answer["logits in float32"] == "own"


@pytest.mark.long
@pytest.mark.engine
@pytest.mark.image
def test_require_makes_an_error_of_it(answer: Any) -> None:
    assert answer["require"] == "UnfitError: its weight is the input embedding's"
    assert answer["maybe"] == "ValueError: INT8_LM_HEAD=maybe: it is one of auto, off, require"


@pytest.mark.long
@pytest.mark.engine
@pytest.mark.image
def test_weights_that_are_loaded_later_are_taken(answer: Any) -> None:
    assert answer["loaded again"] == answer["written in place"] == "INT8"
