"""Small checkpoints with the names, dtypes and layout of real ones, written without the code under test.

The names of Qwen3.5's releases follow from its model in transformers (``qwen3_5_moe``): a decoder of 48 layers, of
which every fourth has ``self_attn`` and the others ``linear_attn``, a mixture of experts with a shared expert in each,
and one additional layer under ``mtp.``. The FP8 release stores each linear layer in FP8 with ``weight_scale_inv``,
except the two narrow ones of linear attention and the gates. AutoRound's INT4 release stores the experts and all of the
attention as ``qweight``, ``qzeros`` and ``scales``, and keeps the shared experts and ``mtp.`` in BF16.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

SIZES = {"BF16": 2, "F16": 2, "F8_E4M3": 1, "I32": 4, "I8": 1, "F32": 4, "U8": 1}
PROJECTIONS = ("gate", "up", "down")
INT4_FILES = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
EXTRA = "model_extra_tensors.safetensors"

Specification = dict[str, tuple[str, list[int]]]


@dataclass(frozen=True)
class Dimensions:
    """The sizes of a small Qwen3.5. The real one has 256 experts in each layer."""

    layers: int = 48
    hidden: int = 16
    width: int = 8
    """the inner size of an expert"""
    experts: int = 4
    mtp_experts: int = 256
    head: int = 8
    """the size of a head; attention has two heads and one key head, linear attention has one key head"""
    value_heads: int = 2
    """the number of value heads in linear attention"""
    vocabulary: int = 64


SMALL = Dimensions()


@dataclass
class Folder:
    """A checkpoint in a folder: the tensors of each file, by name, with dtype and shape."""

    path: Path
    files: dict[str, Specification] = field(default_factory=dict)


def content(name: str, dtype: str, shape: list[int]) -> bytes:
    """Bytes for a tensor, the same each time. All floating point numbers are finite and small."""
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
    """The beginning of a file with this header, which may be invalid."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def files(shards: dict[str, Specification], *, listed: Collection[str] | None = None) -> dict[str, bytes]:
    """The files of a checkpoint: weights, an index of the ``listed`` ones (default: all), and a configuration."""
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


def int4(size: Dimensions = SMALL) -> dict[str, Specification]:
    """Intel/Qwen3.5-122B-A10B-int4-AutoRound with small tensors: two files that the index of each revision lists, and
    model_extra_tensors.safetensors."""
    shards: dict[str, Specification] = {name: {} for name in (*INT4_FILES, EXTRA)}
    for layer in range(size.layers):
        shard = shards[INT4_FILES[layer * 2 // size.layers]]
        for name, (rows, columns) in _linear(layer, size).items():
            if ".shared_expert." in name:
                shard[f"{name}.weight"] = ("BF16", [rows, columns])
            else:  # packed along the input, in groups of 128
                groups = -(-columns // 128)
                shard[f"{name}.qweight"] = ("I32", [-(-columns // 8), rows])
                shard[f"{name}.qzeros"] = ("I32", [groups, -(-rows // 8)])
                shard[f"{name}.scales"] = ("F16", [groups, rows])
        shard |= _unquantized(layer, size)
    shards[INT4_FILES[0]] |= _outside(size)
    shards[EXTRA] = mtp(size)
    return shards


def fp8(size: Dimensions = SMALL) -> dict[str, Specification]:
    """Qwen/Qwen3.5-122B-A10B-FP8 with small tensors, in three files."""
    names = tuple(f"model-{number:05}-of-00003.safetensors" for number in (1, 2, 3))
    shards: dict[str, Specification] = {name: {} for name in names}
    for layer in range(size.layers):
        shard = shards[names[layer * 3 // size.layers]]
        for name, (rows, columns) in _linear(layer, size).items():
            if name.endswith(("in_proj_a", "in_proj_b")):
                shard[f"{name}.weight"] = ("BF16", [rows, columns])
            else:
                shard |= _in_fp8(f"{name}.weight", [rows, columns])
        shard |= _unquantized(layer, size)
    shards[names[0]] |= _outside(size)
    for name, (dtype, shape) in mtp(size).items():
        shards[names[2]] |= _in_fp8(name, shape) if "_proj." in name else {name: (dtype, shape)}
    return shards


def mtp(size: Dimensions = SMALL) -> Specification:
    """The layer that predicts additional tokens, in BF16: three projections of each expert, and 17 other tensors."""
    prefix, hidden = "mtp.layers.0", size.hidden
    matrices = {
        "mtp.fc": (hidden, 2 * hidden),
        **{f"{prefix}.{name}": shape for name, shape in _attention(size).items()},
        f"{prefix}.mlp.gate": (size.mtp_experts, hidden),
        f"{prefix}.mlp.shared_expert_gate": (1, hidden),
        **_experts(f"{prefix}.mlp", size.mtp_experts, size),
    }
    norms = {
        **dict.fromkeys(("mtp.norm", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden"), hidden),
        **dict.fromkeys((f"{prefix}.input_layernorm", f"{prefix}.post_attention_layernorm"), hidden),
        **dict.fromkeys((f"{prefix}.self_attn.q_norm", f"{prefix}.self_attn.k_norm"), size.head),
    }
    tensors: Specification = {f"{name}.weight": ("BF16", list(shape)) for name, shape in matrices.items()}
    return tensors | {f"{name}.weight": ("BF16", [extent]) for name, extent in norms.items()}


def _linear(layer: int, size: Dimensions) -> dict[str, tuple[int, int]]:
    """The linear layers in a decoder layer that a release may quantize, with rows and columns."""
    prefix = f"model.language_model.layers.{layer}"
    if layer % 4 == 3:
        attention = _attention(size)
    else:
        heads, hidden = size.value_heads, size.hidden
        values = heads * size.head
        attention = {
            "linear_attn.in_proj_qkv": (2 * size.head + values, hidden),
            "linear_attn.in_proj_z": (values, hidden),
            "linear_attn.in_proj_a": (heads, hidden),
            "linear_attn.in_proj_b": (heads, hidden),
            "linear_attn.out_proj": (hidden, values),
        }
    return {f"{prefix}.{name}": shape for name, shape in attention.items()} | _experts(
        f"{prefix}.mlp", size.experts, size
    )


def _attention(size: Dimensions) -> dict[str, tuple[int, int]]:
    """Full attention with gated queries."""
    heads, hidden = 2 * size.head, size.hidden
    shapes = {"q": (2 * heads, hidden), "k": (size.head, hidden), "v": (size.head, hidden), "o": (hidden, heads)}
    return {f"self_attn.{part}_proj": shape for part, shape in shapes.items()}


def _experts(prefix: str, count: int, size: Dimensions) -> dict[str, tuple[int, int]]:
    return {
        f"{prefix}.{expert}.{part}_proj": (size.hidden, size.width) if part == "down" else (size.width, size.hidden)
        for expert in ("shared_expert", *(f"experts.{number}" for number in range(count)))
        for part in PROJECTIONS
    }


def _unquantized(layer: int, size: Dimensions) -> Specification:
    """The tensors of a decoder layer that both releases store in 16 bits."""
    prefix = f"model.language_model.layers.{layer}"
    if layer % 4 == 3:
        shapes = {f"self_attn.{part}_norm.weight": [size.head] for part in "qk"}
    else:
        shapes = {
            **{f"linear_attn.{part}": [size.value_heads] for part in ("A_log", "dt_bias")},
            "linear_attn.norm.weight": [size.head],
            "linear_attn.conv1d.weight": [(2 + size.value_heads) * size.head, 1, 4],
        }
    shapes |= {
        "input_layernorm.weight": [size.hidden],
        "post_attention_layernorm.weight": [size.hidden],
        "mlp.gate.weight": [size.experts, size.hidden],
        "mlp.shared_expert_gate.weight": [1, size.hidden],
    }
    return {f"{prefix}.{name}": ("BF16", shape) for name, shape in shapes.items()}


def _outside(size: Dimensions) -> Specification:
    """The tensors outside the decoder layers, including one matrix of the vision tower."""
    shapes = {
        "model.language_model.embed_tokens.weight": [size.vocabulary, size.hidden],
        "model.language_model.norm.weight": [size.hidden],
        "lm_head.weight": [size.vocabulary, size.hidden],
        "model.visual.blocks.0.attn.proj.weight": [size.hidden, size.hidden],
    }
    return {name: ("BF16", shape) for name, shape in shapes.items()}


def _in_fp8(name: str, shape: list[int]) -> Specification:
    """A weight in FP8 with a scale for each block of 128 by 128."""
    return {name: ("F8_E4M3", shape), f"{name}_scale_inv": ("BF16", [-(-extent // 128) for extent in shape])}
