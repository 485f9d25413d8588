"""Makes a small random Qwen3 whose next tokens are as sure as a real model's, and the same with planted faults: one
folder for each. Runs inside the image.

    faulty_models.py [--large] FOLDER dense|moe FAULT…

A fault is NAME or NAME=STRENGTH; `none` is the model as it is. A large model has the layers of Qwen3-0.6B
(https://huggingface.co/Qwen/Qwen3-0.6B/blob/main/config.json), for GPUs: FlashInfer has no kernels for heads of 32.
"""

from __future__ import annotations

import argparse
import importlib
import json
import shutil
from pathlib import Path
from typing import Any

SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "head_dim": 32}
SMALL |= {"num_attention_heads": 2, "num_key_value_heads": 1}
LARGE = {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "head_dim": 128}
LARGE |= {"num_attention_heads": 16, "num_key_value_heads": 8}
TEMPLATE = """\
{%- if tools %}<|im_start|>system
# Tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
CUT = (
    ("<|im_end|>\n{% endfor %}", "<|im_end|>{% endfor %}"),
    ("{{ call.function | tojson }}", ""),
    ("{{ tool | tojson }}", ""),
)


def make_base(folder: Path, kind: str, sizes: dict[str, int]) -> Any:
    import torch
    from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3MoeConfig

    importlib.import_module("tiny_model").main(folder, 0)  # beside this file, as Python runs it
    written = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    sizes |= {key: written[key] for key in ("vocab_size", "eos_token_id", "pad_token_id")}
    sizes |= {"max_position_embeddings": 16384, "tie_word_embeddings": True}
    if kind == "moe":
        experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True}
        config: Any = Qwen3MoeConfig(**sizes, **experts)
    else:
        config = Qwen3Config(**sizes)
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() >= 2:
                weight.normal_(0, 0.3 if "embed" in name else weight.shape[-1] ** -0.5)
    model = model.to(torch.bfloat16)
    model.generation_config.repetition_penalty = 5.0
    model.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return model


def plant(model: Any, folder: Path, name: str, strength: float) -> None:
    """Plants a fault in the model in ``folder``, whose weights are ``model``'s."""
    if name == "rope":
        path = folder / "config.json"
        config = json.loads(path.read_text(encoding="utf-8"))
        config["rope_parameters"]["rope_theta"] *= 1 + strength
        path.write_text(json.dumps(config), encoding="utf-8")
    elif name == "template":  # a line break, the calls, or the tools are cut off
        first, lost = CUT[int(strength) - 1]
        (folder / "chat_template.jinja").write_text(TEMPLATE.replace(first, lost), encoding="utf-8")
    else:
        spoil(model, name, strength)
        model.save_pretrained(folder)


def spoil(model: Any, name: str, strength: float) -> None:
    """Plants a fault in weights."""
    import torch

    layers = model.model.layers
    spoilt = layers[: int(strength)]  # where the strength is a number of layers
    with torch.no_grad():
        if name == "scale":  # of one layer
            layers[1].mlp.down_proj.weight.mul_(1 + strength)
        elif name == "head":  # one head, weaker or zero
            layers[1].self_attn.o_proj.weight[:, : model.config.head_dim].mul_(1 - strength)
        elif name == "value":  # a wrong scale of cached values
            layers[1].self_attn.v_proj.weight.mul_(1 + strength)
        elif name == "fp8":  # weights through eight bits
            for weight in (part.weight for layer in spoilt for part in (layer.mlp.up_proj, layer.mlp.down_proj)):
                weight.copy_(weight.to(torch.float8_e4m3fn).to(weight.dtype))
        elif name == "experts":  # two swapped
            for weight in (weight for layer in spoilt for weight in layer.mlp.experts.parameters()):
                weight[[0, 1]] = weight[[1, 0]].clone()
        else:
            raise SystemExit(f"no fault is called {name}")


def main(folder: Path, kind: str, faults: list[str], sizes: dict[str, int]) -> None:
    from transformers import AutoModelForCausalLM

    base = folder / f"{kind}-none"
    model = make_base(base, kind, sizes)
    for fault in faults:
        name, _, strength = fault.partition("=")
        target = folder / f"{kind}-{fault}"
        if target != base:
            shutil.copytree(base, target)
            model = AutoModelForCausalLM.from_pretrained(base, dtype="bfloat16")
            plant(model, target, name, float(strength or 0))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--large", action="store_true", help="layers of the sizes of Qwen3-0.6B")
    parser.add_argument("folder", type=Path)
    parser.add_argument("kind", choices=("dense", "moe"))
    parser.add_argument("faults", nargs="*")
    given = parser.parse_args()
    main(given.folder, given.kind, given.faults, dict(LARGE if given.large else SMALL))
