"""The mod against every release that it is for, and what vLLM makes of a hybrid checkpoint with it and without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builder.engine.client import Endpoint
from tests import cpu_image
from tests.mods import releases
from tests.mods.conftest import CpuImages
from tests.mods.releases import VLLM, Releases

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
NAME = "enable-hybrid-int4fp8"
QUANTIZATION = "vllm/model_executor/layers/quantization"
FP8 = {
    *("0.linear_attn.in_proj_qkvz", "0.linear_attn.out_proj", "0.mlp.shared_expert.gate_up_proj"),
    *("0.mlp.shared_expert.down_proj", "1.self_attn.qkv_proj", "1.self_attn.o_proj"),
}
OTHERS = {
    *("0.linear_attn.conv1d", "0.linear_attn.in_proj_ba", "0.mlp.gate", "0.mlp.shared_expert_gate"),
    *("1.mlp.gate", "1.mlp.shared_expert_gate", "1.mlp.shared_expert.gate_up_proj", "1.mlp.shared_expert.down_proj"),
}


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


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("inc/inc.py", "def from_config", "def maybe_update_config", "look whether this mod is still needed"),
        ("inc/inc.py", "layer: torch.nn.Module, prefix: str", "layer: torch.nn.Module", "INCConfig has changed"),
        ("fp8.py", "weight_block_size: list[int] | None", "block: list[int] | None", "Fp8Config has changed"),
        ("inc_hybrid.py", None, None, "inc_hybrid.py is missing"),
        ("__init__.py", "inc_hybrid import", "other import", "does not give HybridINCConfig"),
    ],
)
def test_the_check_tells_what_it_no_longer_builds_on(
    released: Releases, tmp_path: Path, file: str, old: str | None, new: str | None, said: str
) -> None:
    ((_, site),) = released.sites(tmp_path, "vllm", ["0.33.0"])
    baked(site)
    changed = site / QUANTIZATION / file
    if old is None or new is None:
        changed.unlink()
    else:
        assert old in changed.read_text()
        changed.write_text(changed.read_text().replace(old, new))
    done = releases.run_script(NAME, "check.sh", site)
    assert done.returncode == 1
    assert said in done.stderr


def answer(endpoint: Endpoint, image: str) -> Any:
    return cpu_image.answer(endpoint, image, ["python3", "/here/in_image.py"], {HERE: "/here"})


@pytest.mark.long
@pytest.mark.engine
@pytest.mark.image
def test_with_the_mod_exactly_the_fp8_layers_get_the_fp8_method(endpoint: Endpoint, cpu: CpuImages) -> None:
    found = answer(endpoint, cpu.modded)
    assert found["config"] == "HybridINCConfig"
    assert found["methods"] == {
        **dict.fromkeys(FP8, "Fp8LinearMethod"),
        **dict.fromkeys(OTHERS, "UnquantizedLinearMethod"),
    }
    assert (found["block"], found["expert bits"]) == ([128, 128], 4)
    assert found["scales"] == [
        *("0.linear_attn.in_proj_qkvz", "0.mlp.shared_expert.gate_up_proj", "1.self_attn.qkv_proj"),
        "1.self_attn.o_proj",
    ]
    assert found["rules"] == {
        "blocks of 128": [128, 128],
        "blocks of 64 by 32": [64, 32],
        "one block, any size": [128, 128],
        "no block size": "ValueError: no block size explains weight_scale_inv; (size, blocks) found: "
        "[(256, 2), (256, 3)]",
        "fused": True,
        "fused in part": "ValueError: language_model.model.layers.0.self_attn.qkv_proj fuses FP8 layers with "
        "language_model.model.layers.0.self_attn.v_proj, which the checkpoint holds as others",
        "not fused": False,
        "by the name before the model's": False,
        "FP8 without block scales": [],
        "commit of the config": "0123abc",
    }


@pytest.mark.long
@pytest.mark.engine
@pytest.mark.image
def test_without_the_mod_none_does_and_the_scales_are_lost(endpoint: Endpoint, cpu: CpuImages) -> None:
    found = answer(endpoint, cpu.plain)
    assert found["config"] == "INCConfig"
    assert found["methods"] == dict.fromkeys(FP8 | OTHERS, "UnquantizedLinearMethod")
    assert not FP8 & set(found["scales"])
    assert found["rules"] is None
