"""Made-up checkpoints with the names, dtypes and layout of real ones, written without the code under test."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

SIZES = {"BF16": 2, "F16": 2, "F8_E4M3": 1, "I32": 4, "I8": 1, "F32": 4, "U8": 1}
LAYERS = 48
EXPERTS = 4
"""The real model has 256; their names are the same."""

Specification = dict[str, tuple[str, list[int]]]


@dataclass
class Folder:
    """A checkpoint in a folder: the tensors of each file, by name, with dtype and shape."""

    path: Path
    files: dict[str, Specification] = field(default_factory=dict)


def content(name: str, dtype: str, shape: list[int]) -> bytes:
    """Bytes for a tensor, the same each time; of floating point numbers all are finite and small."""
    random_bytes = random.Random(name).randbytes(SIZES[dtype] * prod(shape))  # noqa: S311
    if dtype in {"BF16", "F16", "F32"}:
        width = SIZES[dtype]
        high = {"BF16": 0x3F, "F16": 0x3B, "F32": 0x3F}[dtype]
        changed = bytearray(random_bytes)
        changed[width - 1 :: width] = bytes((byte & 0x80) | (high - byte % 2) for byte in changed[width - 1 :: width])
        return bytes(changed)
    if dtype == "F8_E4M3":
        return bytes(byte & 0xBF for byte in random_bytes)
    return random_bytes


def encoded(tensors: Specification, metadata: dict[str, str] | None = None) -> bytes:
    """A safetensors file with these tensors."""
    header: dict[str, Any] = {"__metadata__": metadata or {"format": "pt"}}
    data, at = [], 0
    for name, (dtype, shape) in tensors.items():
        part = content(name, dtype, shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(part)]}
        at += len(part)
        data.append(part)
    return raw(header) + b"".join(data)


def raw(header: object) -> bytes:
    """The beginning of a file with this header, whatever it is."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def files(shards: dict[str, Specification], *, listed: set[str] | None = None) -> dict[str, bytes]:
    """The files of a checkpoint: weights, an index over those that are ``listed`` (all), and a configuration."""
    made = {name: encoded(tensors) for name, tensors in shards.items()}
    names = {tensor: name for name in shards if listed is None or name in listed for tensor in shards[name]}
    total = sum(prod(shape) * SIZES[dtype] for name in set(names.values()) for dtype, shape in shards[name].values())
    index = {"metadata": {"total_size": total}, "weight_map": names}
    config = {"model_type": "qwen3_5_moe", "quantization_config": {"quant_method": "auto-round", "bits": 4}}
    return {
        **made,
        "model.safetensors.index.json": json.dumps(index).encode(),
        "config.json": json.dumps(config).encode(),
        "tokenizer.json": b'{"version": "1.0"}',
        "README.md": b"# the source's own",
    }


def write(folder: Path, contents: dict[str, bytes]) -> Path:
    """Writes files into a new folder, and returns it."""
    folder.mkdir(parents=True)
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    return folder


def int4(rows: int = 8, layers: int = LAYERS) -> dict[str, Specification]:
    """The names, dtypes and layout of Intel/Qwen3.5-122B-A10B-int4-AutoRound with small tensors: two files of weights
    that its index lists, and model_extra_tensors.safetensors, which it does not."""
    shards: dict[str, Specification] = {f"model-{n:05}-of-00002.safetensors": {} for n in (1, 2)}
    first, second = shards
    for layer in range(layers):
        shard = shards[first if layer < layers // 2 else second]
        prefix = f"model.language_model.layers.{layer}.mlp"
        for expert in range(EXPERTS):
            for part in ("gate", "up", "down"):
                name = f"{prefix}.experts.{expert}.{part}_proj"
                shard[f"{name}.qweight"] = ("I32", [rows // 8, 16])
                shard[f"{name}.qzeros"] = ("I32", [1, 2])
                shard[f"{name}.scales"] = ("F16", [1, 16])
        for part in ("gate", "up", "down"):
            shard[f"{prefix}.shared_expert.{part}_proj.weight"] = ("BF16", [rows, 16])
        shard[f"model.language_model.layers.{layer}.input_layernorm.weight"] = ("BF16", [16])
        for part in ("q", "k"):
            shard[f"model.language_model.layers.{layer}.self_attn.{part}_proj.qweight"] = ("I32", [rows // 8, 16])
    shards[second]["lm_head.weight"] = ("BF16", [64, 16])
    shards["model_extra_tensors.safetensors"] = mtp()
    return shards


def mtp(experts: int = 256) -> Specification:
    """The multi-token-prediction weights: 785 tensors, of which 768 are of experts."""
    tensors: Specification = {
        f"mtp.layers.0.mlp.experts.{expert}.{part}_proj.weight": ("BF16", [4, 4])
        for expert in range(experts)
        for part in ("gate", "up", "down")
    }
    others = (
        *("fc", "norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "layers.0.input_layernorm"),
        *("layers.0.post_attention_layernorm", "layers.0.mlp.gate", "layers.0.mlp.shared_expert_gate"),
        *(f"layers.0.mlp.shared_expert.{part}_proj" for part in ("gate", "up", "down")),
        *(f"layers.0.self_attn.{part}" for part in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")),
    )
    return tensors | {f"mtp.{name}.weight": ("BF16", [4, 4]) for name in others}


def fp8(rows: int = 8, layers: int = LAYERS) -> dict[str, Specification]:
    """The names, dtypes and layout of Qwen/Qwen3.5-122B-A10B-FP8 with small tensors: of its FP8 tensors outside of the
    experts, 144 have a counterpart in `int4` and 408 have none."""
    shards: dict[str, Specification] = {f"model-{n:05}-of-00003.safetensors": {} for n in (1, 2, 3)}
    without = [f"model.language_model.layers.{layer}" for layer in range(layers)]
    for layer, prefix in enumerate(without):
        shard = list(shards.values())[layer * 3 // layers]
        names = [f"{prefix}.mlp.shared_expert.{part}_proj" for part in ("gate", "up", "down")]
        # 36 of 48 layers have linear attention, 12 full attention, as every fourth layer.
        if layer % 4 == 3:
            names += [f"{prefix}.self_attn.{part}_proj" for part in ("q", "k", "v", "o")]
        else:
            names += [f"{prefix}.linear_attn.{part}" for part in ("in_proj_qkv", "in_proj_z", "out_proj", "x", "y")]
        names += [f"{prefix}.attn_{part}" for part in ("a", "b", "c")] if layer % 4 != 3 else []
        names += [f"{prefix}.more_{part}" for part in "abcdef"] if layer % 4 == 3 else []
        for name in names:
            shard[f"{name}.weight"] = ("F8_E4M3", [rows, 16])
            shard[f"{name}.weight_scale_inv"] = ("BF16", [1, 1])
        shard[f"{prefix}.mlp.experts.0.gate_proj.weight"] = ("F8_E4M3", [rows, 16])
        shard[f"{prefix}.mlp.experts.0.gate_proj.weight_scale_inv"] = ("BF16", [1, 1])
        shard[f"{prefix}.input_layernorm.weight"] = ("BF16", [16])
    return shards
