"""A small Qwen3-Next of random weights, served by vLLM: `python part_serving.py KIND [VARIABLE=VALUE …]`.

KIND is `eager` or `compiled`. The variables are those of the mods, FLASHQLA_PREFILL and INT8_LM_HEAD, and of vLLM.
Prints the greedy tokens.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import part_engine
from part_results import Results

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "dtype": "bfloat16",
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 128,
    "vocab_size": 1024,
    "max_position_embeddings": 8192,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 128,
    "linear_num_key_heads": 16,
    # As Qwen3.5-122B has them: the kernels of FlashQLA are then those that the other parts time.
    "linear_num_value_heads": 64,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
PROMPTS = [
    [3 + (7 * place + 11 * number) % 1000 for place in range(length)]
    for number, length in enumerate((5, 64, 700, 3000))
]
NEW = 24


def main(kind: str, *variables: str) -> int:
    at = part_engine.set_variables(variables)
    results = Results()
    options: dict[str, Any] = {"enforce_eager": kind == "eager"}
    if at.get("FLASHQLA_PREFILL") == "off":
        options |= part_engine.TRITON
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(CONFIG))
        began = time.monotonic()
        engine = part_engine.start(
            Path(folder), load_format="dummy", max_model_len=4096, max_num_seqs=len(PROMPTS), **options
        )
        results.figure("startup", {"kind": kind, **at}, "s", "lower", time.monotonic() - began)
        tokens = part_engine.greedy(engine, PROMPTS, NEW)
    what = " ".join((kind, *variables))
    results.check("serving", what, all(len(each) == NEW for each in tokens), "tokens are missing")
    results.version("tokens", json.dumps(tokens))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
