"""A small Qwen3-Next of random weights, served by vLLM with FlashQLA and without: `python serving.py [eager|compiled]`.

Its greedy tokens are the same as often as those of one kernel are the same twice; the engine starts, in both ways.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

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
    "linear_num_value_heads": 32,
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


def tokens_of(folder: Path, eager: bool, options: dict[str, Any]) -> tuple[list[list[int]], float]:
    from vllm import LLM, SamplingParams, TokensPrompt

    began = time.monotonic()
    engine = LLM(
        model=str(folder),
        load_format="dummy",
        skip_tokenizer_init=True,
        enforce_eager=eager,
        gpu_memory_utilization=float(os.environ.get("GPU_MEMORY_UTILIZATION", "0.3")),
        max_model_len=4096,
        max_num_seqs=8,
        **options,
    )
    started = time.monotonic() - began
    sampling = SamplingParams(temperature=0.0, max_tokens=NEW, detokenize=False, ignore_eos=True)
    answers = engine.generate([TokensPrompt(prompt_token_ids=prompt) for prompt in PROMPTS], sampling)
    return [list(answer.outputs[0].token_ids) for answer in answers], started


def main(kind: str, mode: str) -> int:
    """Prints the tokens; FLASHQLA_PREFILL is ``mode``, and ENGINE_OPTIONS may hold further ones of vLLM as JSON."""
    os.environ["FLASHQLA_PREFILL"] = mode
    results = Results()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(CONFIG))
        tokens, started = tokens_of(Path(folder), kind == "eager", json.loads(os.environ.get("ENGINE_OPTIONS", "{}")))
    results.figure("startup", {"kind": kind, "FLASHQLA_PREFILL": mode}, "s", "lower", started)
    results.check("serving", f"{kind} {mode}", all(len(each) == NEW for each in tokens), "tokens are missing")
    results.version("tokens", json.dumps(tokens))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
