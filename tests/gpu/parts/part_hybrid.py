"""A small checkpoint with INT4 experts and FP8 dense layers whose continuation is known, and the same in BF16.

Each token is followed by one other: the head's row for that is the token's embedding, which the residual stream carries
past layers of random weights. Layers whose scales are lost or wrong drown it. The sizes are those of
tests/mods/enable_hybrid_int4fp8, which loads such a checkpoint without a GPU.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from part_results import Results
from safetensors.torch import save_file

BLOCK, GROUP = 128, 128
HIDDEN, VOCABULARY = 256, 512
STEP = 77  # what follows a token: 77 further, around the vocabulary
SEQUENCES, NEW = 16, 32
# The FP8 layers, with rows and columns; those of the experts.
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
    "1.mlp.shared_expert.gate_proj": (128, 256),
    "1.mlp.shared_expert.up_proj": (128, 256),
    "1.mlp.shared_expert.down_proj": (256, 128),
}
EXPERTS = 4
EXPERT = {"gate_proj": (128, 256), "up_proj": (128, 256), "down_proj": (256, 128)}
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "dtype": "bfloat16",
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 128,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 512,
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


def plain() -> Tensors:
    """What both checkpoints hold in BF16."""
    embedding = torch.randn(VOCABULARY, HIDDEN)
    following = (torch.arange(VOCABULARY) + STEP) % VOCABULARY
    head = torch.empty_like(embedding)
    head[following] = embedding
    tensors = {"model.embed_tokens.weight": embedding, "lm_head.weight": head, "model.norm.weight": torch.zeros(HIDDEN)}
    for layer in range(2):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{norm}.weight"] = torch.zeros(HIDDEN)
        tensors[f"model.layers.{layer}.mlp.gate.weight"] = torch.randn(EXPERTS, HIDDEN) / 16
        tensors[f"model.layers.{layer}.mlp.shared_expert_gate.weight"] = torch.randn(1, HIDDEN) / 16
    delta, attention = "model.layers.0.linear_attn", "model.layers.1.self_attn"
    tensors |= {
        f"{delta}.in_proj_ba.weight": torch.randn(4, HIDDEN) / 16,
        f"{delta}.conv1d.weight": torch.randn(512, 1, 4) / 2,
        f"{delta}.A_log": torch.zeros(2),
        f"{delta}.dt_bias": torch.zeros(2),
        f"{delta}.norm.weight": torch.ones(128),
        f"{attention}.q_norm.weight": torch.zeros(128),
        f"{attention}.k_norm.weight": torch.zeros(128),
    }
    return {name: tensor.bfloat16() for name, tensor in tensors.items()}


def dense() -> tuple[Tensors, Tensors]:
    """The dense layers in FP8 with block scales, and what they mean in BF16."""
    packed, meant = {}, {}
    for name, (rows, columns) in FP8.items():
        weight = torch.randn(rows, columns) / columns**0.5
        blocks = weight.reshape(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK)
        scale = blocks.abs().amax(dim=(1, 3)) / 448.0
        values = (blocks / scale[:, None, :, None]).to(torch.float8_e4m3fn)
        packed[f"model.layers.{name}.weight"] = values.reshape(rows, columns)
        packed[f"model.layers.{name}.weight_scale_inv"] = scale
        meant[f"model.layers.{name}.weight"] = (
            (values.float() * scale[:, None, :, None]).reshape(rows, columns).bfloat16()
        )
    return packed, meant


def experts() -> tuple[Tensors, Tensors]:
    """The experts in INT4, as AutoRound packs them for GPTQ's kernels, and what they mean in BF16."""
    packed, meant = {}, {}
    for layer in range(2):
        for expert in range(EXPERTS):
            for part, (rows, columns) in EXPERT.items():
                name = f"model.layers.{layer}.mlp.experts.{expert}.{part}"
                values = torch.randint(1, 16, (columns, rows), dtype=torch.int64)
                scales = (torch.rand(columns // GROUP, rows) + 0.5) / (4 * columns**0.5)
                nibbles = values.reshape(columns // 8, 8, rows) << (4 * torch.arange(8))[None, :, None]
                packed[f"{name}.qweight"] = nibbles.sum(dim=1).to(torch.uint32).view(torch.int32)
                packed[f"{name}.qzeros"] = torch.full((columns // GROUP, rows // 8), 0x77777777, dtype=torch.int32)
                packed[f"{name}.scales"] = scales.half()
                full = (values - 8).float() * scales.half().float().repeat_interleave(GROUP, dim=0)
                meant[f"{name}.weight"] = full.T.contiguous().bfloat16()
    return packed, meant


def write(folder: Path) -> dict[str, Path]:
    """The two checkpoints, by what they are."""
    torch.manual_seed(0)
    both, (fp8, dense_weights), (int4, expert_weights) = plain(), dense(), experts()
    found = {}
    for kind, tensors, config in (
        ("hybrid", both | fp8 | int4, {**CONFIG, "quantization_config": QUANTISED}),
        ("BF16", both | dense_weights | expert_weights, CONFIG),
    ):
        found[kind] = folder / kind
        found[kind].mkdir()
        save_file(tensors, found[kind] / "model.safetensors", metadata={"format": "pt"})
        (found[kind] / "config.json").write_text(json.dumps(config))
    return found


def right(folder: Path) -> float:
    """How many of the greedy tokens are those that follow."""
    from vllm import LLM, SamplingParams, TokensPrompt

    engine = LLM(
        model=str(folder),
        skip_tokenizer_init=True,
        enforce_eager=True,
        gpu_memory_utilization=float(os.environ.get("GPU_MEMORY_UTILIZATION", "0.3")) / 2,
        max_model_len=256,
        max_num_seqs=SEQUENCES,
        additional_config={"gdn_prefill_backend": "triton"},
        **json.loads(os.environ.get("ENGINE_OPTIONS", "{}")),
    )
    prompts = [[(31 * number + STEP * place) % VOCABULARY for place in range(8)] for number in range(SEQUENCES)]
    sampling = SamplingParams(temperature=0.0, max_tokens=NEW, detokenize=False, ignore_eos=True)
    answers = engine.generate([TokensPrompt(prompt_token_ids=prompt) for prompt in prompts], sampling)
    same = 0
    for prompt, answer in zip(prompts, answers, strict=True):
        wanted = [(prompt[-1] + STEP * place) % VOCABULARY for place in range(1, NEW + 1)]
        same += sum(one == other for one, other in zip(wanted, answer.outputs[0].token_ids, strict=True))
    return same / (SEQUENCES * NEW)


def main() -> int:
    results = Results()
    with tempfile.TemporaryDirectory() as folder:
        for kind, path in write(Path(folder)).items():
            share = right(path)
            results.figure("right_answers", {"checkpoint": kind}, "ratio", "higher", share)
            results.check("answers of a known checkpoint", kind, share > 0.95, f"{share:.1%} are right")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
