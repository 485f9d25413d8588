"""The made hybrid checkpoint is read by vLLM's own loader, whichever files the index of the INT4 release lists."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from builder.engine.client import Endpoint
from tests import cpu_image, safetensors_files
from tests.lab.checkpoints import made
from tests.mods.conftest import CpuImages
from tests.safetensors_files import Dimensions

pytestmark = [pytest.mark.slow, pytest.mark.engine, pytest.mark.image]

HERE = Path(__file__).parent
# The smallest that vLLM's kernels for INT4 on a CPU and for FP8 in blocks take; mtp. has as many experts as the others.
SIZE = Dimensions(layers=4, hidden=256, width=128, experts=8, mtp_experts=8, head=128, value_heads=16, vocabulary=256)
LAYERS = range(SIZE.layers)


def config() -> dict[str, Any]:
    """The configuration of a model with these sizes, as AutoRound writes it, without the vision tower."""
    return {
        "architectures": ["Qwen3_5MoeForCausalLM"],
        "model_type": "qwen3_5_moe_text",
        "dtype": "bfloat16",
        "hidden_size": SIZE.hidden,
        "num_hidden_layers": SIZE.layers,
        "layer_types": ["full_attention" if layer % 4 == 3 else "linear_attention" for layer in LAYERS],
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": SIZE.head,
        "vocab_size": SIZE.vocabulary,
        "max_position_embeddings": 512,
        "num_experts": SIZE.experts,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": SIZE.width,
        "shared_expert_intermediate_size": SIZE.width,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": SIZE.value_heads,
        "linear_key_head_dim": SIZE.head,
        "linear_value_head_dim": SIZE.head,
        "linear_conv_kernel_dim": 4,
        "mtp_num_hidden_layers": 1,
        "tie_word_embeddings": False,
        "quantization_config": {
            "quant_method": "auto-round",
            "bits": 4,
            "group_size": 128,
            "sym": True,
            "data_type": "int",
            "packing_format": "auto_round:auto_gptq",
            "block_name_to_quantize": "model.language_model.layers",
            "extra_config": {
                pattern: {"bits": 16, "data_type": "float"} for pattern in (".*shared_expert.*", r".*mlp\.gate$")
            },
        },
    }


@pytest.mark.long
def test_vllm_loads_every_weight_of_it(endpoint: Endpoint, cpu: CpuImages, tmp_path: Path) -> None:
    """The models are built once: both checkpoints have the same configuration, and must have the same tensors."""
    folders: dict[Path, str] = {}
    for name, more in (("listed", ()), ("extra", (safetensors_files.EXTRA,))):
        kitchen = made.kitchen(tmp_path / name, SIZE, [*safetensors_files.INT4_FILES, *more])
        (kitchen.folder / "int4/config.json").write_text(json.dumps(config()))
        kitchen.define(output=f"{{folder: {tmp_path}/out-{name}}}")
        folders[kitchen.build().folder] = f"/{name}"
    argv = ["python3", "/here/load_checkpoint.py", *folders.values()]
    found = cpu_image.answer(endpoint, cpu.modded, argv, {HERE: "/here", **folders})

    expected = {name: entry for file in safetensors_files.int4(SIZE).values() for name, entry in file.items()}
    shared = [f"model.language_model.layers.{layer}.mlp.shared_expert" for layer in LAYERS]
    of_fp8 = {name: entry for file in safetensors_files.fp8(SIZE).values() for name, entry in file.items()}
    expected |= {name: entry for name, entry in of_fp8.items() if name.startswith(tuple(f"{each}." for each in shared))}
    digests = {
        name: hashlib.sha256(safetensors_files.content(name, dtype, shape)).hexdigest()
        for name, (dtype, shape) in expected.items()
    }
    assert found["tensors"] == [digests, digests]
    assert found["config"] == "HybridINCConfig"
    layers = [f"model.layers.{layer}.mlp" for layer in LAYERS]
    # On a CPU vLLM has no method for INT4 experts.
    experts = [f"{layer}.experts.routed_experts.{part}_weight" for layer in layers for part in ("w13", "w2")]
    scales = [
        f"{layer}.shared_expert.{part}.weight_scale_inv" for layer in layers for part in ("down_proj", "gate_up_proj")
    ]
    assert found["model"] == {"empty": experts, "scales": scales}
    assert found["mtp"] == {"empty": [], "scales": []}
