"""What vLLM makes of a small hybrid checkpoint: run inside the image, `python in_image.py`, with the mod or without it.

Makes a Qwen3-Next of two layers whose experts are INT4, as AutoRound's config describes them, and some of whose dense
layers are FP8 with block scales; has vLLM read its config and build the model as it does to serve it; loads the FP8
tensors. Prints as JSON which method each layer got, what the experts are, and whether the scales arrived. No network.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

if TYPE_CHECKING:
    from collections.abc import Callable

LAYERS = "model.layers."
BLOCK = 128
# The FP8 layers, by name in the checkpoint, with rows and columns. Layer 1's shared expert is none of them.
FP8 = {
    "0.linear_attn.in_proj_qkvz": (768, 256),
    "0.linear_attn.out_proj": (256, 256),
    "0.mlp.shared_expert.gate_proj": (128, 256),
    "0.mlp.shared_expert.up_proj": (128, 256),
    "0.mlp.shared_expert.down_proj": (256, 128),
    "1.self_attn.q_proj": (512, 256),
    "1.self_attn.k_proj": (128, 256),
    "1.self_attn.v_proj": (128, 256),
    "1.self_attn.o_proj": (256, 256),
}
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "dtype": "bfloat16",
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 128,
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 128,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "tie_word_embeddings": False,
    # As AutoRound writes it: all of the layers are INT4 but those that it names, which it takes for 16 bit ones.
    "quantization_config": {
        "quant_method": "auto-round",
        "bits": 4,
        "group_size": 128,
        "sym": True,
        "data_type": "int",
        "packing_format": "auto_round:auto_gptq",
        "block_name_to_quantize": "model.layers",
        "extra_config": {
            pattern: {"bits": 16, "data_type": "float"}
            for pattern in (".*linear_attn.*", ".*self_attn.*", ".*shared_expert.*", r".*mlp\.gate$")
        },
    },
}


def make_checkpoint(folder: Path) -> dict[str, torch.Tensor]:
    """Writes the checkpoint; returns its FP8 tensors with their scales."""
    torch.manual_seed(0)
    dense: dict[str, torch.Tensor] = {}
    for name, (rows, columns) in FP8.items():
        dense[f"{LAYERS}{name}.weight"] = torch.randn(rows, columns).to(torch.float8_e4m3fn)
        dense[f"{LAYERS}{name}.weight_scale_inv"] = torch.rand(-(-rows // BLOCK), -(-columns // BLOCK)) + 0.5
    experts = {
        f"{LAYERS}{layer}.mlp.experts.{expert}.{part}.{kind}": tensor
        for layer in range(2)
        for expert in range(2)
        for part, (rows, columns) in {"gate_proj": (128, 256), "up_proj": (128, 256), "down_proj": (256, 128)}.items()
        for kind, tensor in {
            "qweight": torch.zeros(columns // 8, rows, dtype=torch.int32),
            "scales": torch.ones(columns // 128, rows, dtype=torch.float16),
        }.items()
    }
    others = {f"{LAYERS}1.mlp.shared_expert.down_proj.weight": torch.zeros(256, 128, dtype=torch.bfloat16)}
    save_file(dense, folder / "model-00001-of-00002.safetensors")
    save_file(experts | others, folder / "model-00002-of-00002.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return dense


def build(folder: Path) -> tuple[Any, Any]:
    """The model as vLLM builds it to serve ``folder``, and its quantisation config."""
    from vllm.config import set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.layers.quantization import fp8
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    # Which kernel multiplies is no question here, and a CPU without AMX has none for FP8.
    if hasattr(fp8, "init_fp8_linear_kernel"):
        fp8.init_fp8_linear_kernel = lambda **_: None
    config = EngineArgs(
        model=str(folder), skip_tokenizer_init=True, enforce_eager=True, max_model_len=128
    ).create_engine_config()
    with set_current_vllm_config(config):
        init_distributed_environment(1, 0, f"file://{folder}/meet", 0, "gloo")
        initialize_model_parallel(1)
        with set_default_torch_dtype(torch.bfloat16):
            return initialize_model(vllm_config=config), config.quant_config


def methods(model: Any) -> dict[str, str]:
    """The method of each linear layer of the decoder."""
    from vllm.model_executor.layers.linear import LinearBase

    return {
        name.removeprefix(LAYERS): type(layer.quant_method).__name__
        for name, layer in model.named_modules()
        if isinstance(layer, LinearBase) and name.startswith(LAYERS)
    }


def loaded(model: Any, dense: dict[str, torch.Tensor]) -> list[str]:
    """The layers that hold the checkpoint's scales after loading; what vLLM said, where it refuses to load them."""
    try:
        model.load_weights(iter(dense.items()))
    except (AttributeError, KeyError) as error:
        return [f"{type(error).__name__}: {error}"]
    parameters = dict(model.named_parameters())
    fused = {
        "0.linear_attn.in_proj_qkvz": ["0.linear_attn.in_proj_qkvz"],
        "0.mlp.shared_expert.gate_up_proj": ["0.mlp.shared_expert.gate_proj", "0.mlp.shared_expert.up_proj"],
        "1.self_attn.qkv_proj": ["1.self_attn.q_proj", "1.self_attn.k_proj", "1.self_attn.v_proj"],
        "1.self_attn.o_proj": ["1.self_attn.o_proj"],
    }
    found = []
    for layer, parts in fused.items():
        wanted = torch.cat([dense[f"{LAYERS}{part}.weight_scale_inv"] for part in parts])
        parameter = parameters.get(f"{LAYERS}{layer}.weight_scale_inv")
        if parameter is not None and torch.equal(parameter.data.to(wanted.dtype), wanted):
            found.append(layer)
    return found


def rules() -> dict[str, Any] | None:
    """What the mod's own rules say to names and shapes, where it is there."""
    try:
        from vllm.model_executor.layers.quantization import inc_hybrid
    except ImportError:
        return None
    from vllm.model_executor.models.utils import WeightsMapper

    def attempt(function: Callable[[], Any]) -> Any:
        try:
            return function()
        except ValueError as error:
            return f"ValueError: {error}"

    config = inc_hybrid.HybridINCConfig(weight_bits=4, group_size=128)
    attention = "layers.0.self_attn."
    config.fp8_layers = frozenset(f"model.language_model.{attention}{part}" for part in ("q_proj", "k_proj", "o_proj"))
    # Names as Qwen3.5's checkpoints have them and as its model in vLLM has them.
    config.apply_vllm_mapper(WeightsMapper(orig_to_new_prefix={"model.language_model.": "language_model.model."}))
    config.packed_modules_mapping = {"qk_proj": ["q_proj", "k_proj"], "qkv_proj": ["q_proj", "k_proj", "v_proj"]}
    model = f"language_model.model.{attention}"
    asked: list[str | None] = []

    def headers(_: str, revision: str | None) -> dict[str, Any]:
        asked.append(revision)
        return {}

    inc_hybrid.get_safetensors_params_metadata = headers
    config.maybe_update_config("a/model", SimpleNamespace(_commit_hash="0123abc"))
    per_tensor = {
        "a.weight": {"dtype": "F8_E4M3", "shape": [256, 256]},
        "a.weight_scale_inv": {"dtype": "F32", "shape": []},
        "b.weight": {"dtype": "F8_E4M3", "shape": [256, 256]},
    }
    return {
        "blocks of 128": inc_hybrid.block_size({"a": ((256, 300), (2, 3)), "b": ((64, 64), (1, 1))}),
        "blocks of 64 by 32": inc_hybrid.block_size({"a": ((256, 256), (4, 8))}),
        "one block, any size": inc_hybrid.block_size({"a": ((64, 64), (1, 1))}),
        "no block size": attempt(lambda: inc_hybrid.block_size({"a": ((256, 256), (2, 2)), "b": ((256, 256), (3, 2))})),
        "fused": config.is_fp8(f"{model}qk_proj"),
        "fused in part": attempt(lambda: config.is_fp8(f"{model}qkv_proj")),
        "not fused": config.is_fp8(f"{model}v_proj"),
        "by the name before the model's": config.is_fp8(f"model.language_model.{attention}o_proj"),
        "FP8 without block scales": sorted(inc_hybrid.fp8_layers(per_tensor)),
        "commit of the config": asked[0],
    }


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        dense = make_checkpoint(Path(name))
        model, config = build(Path(name))
        experts = next(layer for path, layer in model.named_modules() if path.endswith("0.mlp.experts"))
        result = {
            "config": type(config).__name__,
            "methods": methods(model),
            "expert bits": config.get_layer_config(experts, f"{LAYERS}0.mlp.experts")[0],
            "block": getattr(getattr(config, "fp8_config", None), "weight_block_size", None),
            "scales": loaded(model, dense),
            "rules": rules(),
        }
    sys.stdout.write("\n" + json.dumps(result) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
