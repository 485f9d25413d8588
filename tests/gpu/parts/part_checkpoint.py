"""Small checkpoints of Qwen3-Next whose continuation is known: in BF16, and with INT4 experts and FP8 dense layers.

Each token is followed by one other: the head's row for that is the token's embedding, which the residual stream carries
past layers of random weights. Layers whose scales are lost or wrong drown it. The BF16 one predicts further tokens
itself, from the embedding of the token before. The sizes are those of tests/mods/enable_hybrid_int4fp8, which loads
such a checkpoint without a GPU.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

if TYPE_CHECKING:
    from pathlib import Path

BLOCK, GROUP = 128, 128
HIDDEN, VOCABULARY = 256, 512
STEP = 77  # what follows a token: 77 further, around the vocabulary
# The layers that the hybrid checkpoint has in FP8, with rows and columns; those of an expert, in INT4 there.
DELTA = {"linear_attn.in_proj_qkvz": (768, 256), "linear_attn.out_proj": (256, 256)}
ATTENTION = {
    "self_attn.q_proj": (512, 256),
    "self_attn.k_proj": (128, 256),
    "self_attn.v_proj": (128, 256),
    "self_attn.o_proj": (256, 256),
}
EXPERT = {"gate_proj": (128, 256), "up_proj": (128, 256), "down_proj": (256, 128)}
EXPERTS = 4
SHARED = {f"mlp.shared_expert.{part}": size for part, size in EXPERT.items()}
LAYERS = {"model.layers.0": DELTA, "model.layers.1": ATTENTION}
PREDICTION = "mtp.layers.0"
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "dtype": "bfloat16",
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_nextn_predict_layers": 1,
    "layer_types": ["linear_attention", "full_attention"],
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 128,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 8192,
    "num_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 128,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "tie_word_embeddings": False,
}
QUANTISED = {
    "quant_method": "auto-round",
    "bits": 4,
    "group_size": GROUP,
    "sym": True,
    "data_type": "int",
    "packing_format": "auto_round:auto_gptq",
    "block_name_to_quantize": "model.layers",
    "extra_config": {
        pattern: {"bits": 16, "data_type": "float"}
        for pattern in (".*linear_attn.*", ".*self_attn.*", ".*shared_expert.*", r".*mlp\.gate$")
    },
}
Tensors = dict[str, torch.Tensor]


def prompt(number: int, length: int) -> list[int]:
    """The beginning of a sequence."""
    return [(31 * number + STEP * place) % VOCABULARY for place in range(length)]


def continuation(prompt: list[int], length: int) -> list[int]:
    """The tokens that follow ``prompt``."""
    return [(prompt[-1] + STEP * place) % VOCABULARY for place in range(1, length + 1)]


def write(folder: Path) -> dict[str, Path]:
    """Writes both; returns their folders by ``hybrid`` and ``BF16``."""
    torch.manual_seed(0)
    fp8, dense = dense_layers()
    int4, experts = expert_layers()
    small, prediction = small_layers(), prediction_layer()
    folders = {}
    for kind, tensors, config in (
        ("hybrid", small | fp8 | int4, {**CONFIG, "quantization_config": QUANTISED}),
        ("BF16", small | dense | experts | prediction, CONFIG),
    ):
        folders[kind] = folder / kind
        folders[kind].mkdir()
        save_file(tensors, folders[kind] / "model.safetensors", metadata={"format": "pt"})
        (folders[kind] / "config.json").write_text(json.dumps(config))
    return folders


def small_layers() -> Tensors:
    """What both checkpoints hold in BF16."""
    embedding = torch.randn(VOCABULARY, HIDDEN)
    following = (torch.arange(VOCABULARY) + STEP) % VOCABULARY
    head = torch.empty_like(embedding)
    head[following] = embedding
    tensors = {"model.embed_tokens.weight": embedding, "lm_head.weight": head, "model.norm.weight": torch.zeros(HIDDEN)}
    for layer, parts in LAYERS.items():
        tensors |= norms_and_gates(layer)
        tensors |= attention_norms(layer) if parts is ATTENTION else delta_net(layer)
    return {name: tensor.bfloat16() for name, tensor in tensors.items()}


def norms_and_gates(layer: str) -> Tensors:
    return {
        f"{layer}.input_layernorm.weight": torch.zeros(HIDDEN),
        f"{layer}.post_attention_layernorm.weight": torch.zeros(HIDDEN),
        f"{layer}.mlp.gate.weight": torch.randn(EXPERTS, HIDDEN) / 16,
        f"{layer}.mlp.shared_expert_gate.weight": torch.randn(1, HIDDEN) / 16,
    }


def attention_norms(layer: str) -> Tensors:
    return {f"{layer}.self_attn.{norm}.weight": torch.zeros(128) for norm in ("q_norm", "k_norm")}


def delta_net(layer: str) -> Tensors:
    return {
        f"{layer}.linear_attn.in_proj_ba.weight": torch.randn(4, HIDDEN) / 16,
        f"{layer}.linear_attn.conv1d.weight": torch.randn(512, 1, 4) / 2,
        f"{layer}.linear_attn.A_log": torch.zeros(2),
        f"{layer}.linear_attn.dt_bias": torch.zeros(2),
        f"{layer}.linear_attn.norm.weight": torch.ones(128),
    }


def dense_layers() -> tuple[Tensors, Tensors]:
    """The dense layers in FP8 with block scales, and what they mean in BF16."""
    packed, meant = {}, {}
    for layer, parts in LAYERS.items():
        for name, (rows, columns) in (parts | SHARED).items():
            weight = torch.randn(rows, columns) / columns**0.5
            blocks = weight.reshape(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK)
            scale = blocks.abs().amax(dim=(1, 3)) / 448.0
            values = (blocks / scale[:, None, :, None]).to(torch.float8_e4m3fn)
            full = values.float() * scale[:, None, :, None]
            packed[f"{layer}.{name}.weight"] = values.reshape(rows, columns)
            packed[f"{layer}.{name}.weight_scale_inv"] = scale
            meant[f"{layer}.{name}.weight"] = full.reshape(rows, columns).bfloat16()
    return packed, meant


def expert_layers() -> tuple[Tensors, Tensors]:
    """The experts in INT4, as AutoRound packs them for GPTQ's kernels, and what they mean in BF16."""
    packed, meant = {}, {}
    for layer in LAYERS:
        for expert in range(EXPERTS):
            for part, (rows, columns) in EXPERT.items():
                name = f"{layer}.mlp.experts.{expert}.{part}"
                values = torch.randint(1, 16, (columns, rows), dtype=torch.int64)
                scales = (torch.rand(columns // GROUP, rows) + 0.5) / (4 * columns**0.5)
                nibbles = values.reshape(columns // 8, 8, rows) << (4 * torch.arange(8))[None, :, None]
                packed[f"{name}.qweight"] = nibbles.sum(dim=1).to(torch.uint32).view(torch.int32)
                packed[f"{name}.qzeros"] = torch.full((columns // GROUP, rows // 8), 0x77777777, dtype=torch.int32)
                packed[f"{name}.scales"] = scales.half()
                full = (values - 8).float() * scales.half().float().repeat_interleave(GROUP, dim=0)
                meant[f"{name}.weight"] = full.T.contiguous().bfloat16()
    return packed, meant


def prediction_layer() -> Tensors:
    """The layer that predicts further tokens, in BF16: its input is the embedding of the last token, and nothing of the
    model's hidden state."""
    layer = PREDICTION
    tensors = norms_and_gates(layer) | attention_norms(layer)
    sizes = ATTENTION | SHARED
    sizes |= {f"mlp.experts.{expert}.{part}": size for expert in range(EXPERTS) for part, size in EXPERT.items()}
    for name, (rows, columns) in sizes.items():
        tensors[f"{layer}.{name}.weight"] = torch.randn(rows, columns) / (4 * columns**0.5)
    tensors["mtp.fc.weight"] = torch.cat((torch.eye(HIDDEN), torch.zeros(HIDDEN, HIDDEN)), dim=1)
    for norm in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        tensors[f"mtp.{norm}.weight"] = torch.zeros(HIDDEN)
    return {name: tensor.bfloat16() for name, tensor in tensors.items()}
