"""A small Qwen3-Next of random weights, served by vLLM: `python part_serving.py KIND [VARIABLE=VALUE …]`.

KIND is `eager`, `compiled`, or `recipe`, which has the options of the recipe qwen3.5-122b-tf5: the model's own
prediction of three tokens, prefix caching, an FP8 cache. The variables are those of the mods: FLASHQLA_PREFILL,
INT8_LM_HEAD. ENGINE_OPTIONS may hold further options of vLLM as JSON. Prints the greedy tokens.
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
    "num_nextn_predict_layers": 1,
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
RECIPE: dict[str, Any] = {
    "kv_cache_dtype": "fp8_e4m3",
    "attention_config": {"backend": "FLASHINFER"},
    "enable_prefix_caching": True,
    "speculative_config": {"method": "mtp", "num_speculative_tokens": 3},
}
# vLLM chooses FlashInfer's on some cards, and that compiles for minutes where it has never run.
TRITON = {"additional_config": {"gdn_prefill_backend": "triton"}}
PROMPTS = [
    [3 + (7 * place + 11 * number) % 1000 for place in range(length)]
    for number, length in enumerate((5, 64, 700, 3000))
]
NEW = 24


def serve(folder: Path, options: dict[str, Any]) -> tuple[Any, list[list[int]], float]:
    """The engine, its greedy tokens, and the seconds until it was there."""
    from vllm import LLM, SamplingParams, TokensPrompt

    began = time.monotonic()
    engine = LLM(
        model=str(folder),
        load_format="dummy",
        skip_tokenizer_init=True,
        gpu_memory_utilization=float(os.environ.get("GPU_MEMORY_UTILIZATION", "0.3")),
        max_model_len=4096,
        max_num_seqs=8,
        **options,
    )
    started = time.monotonic() - began
    sampling = SamplingParams(temperature=0.0, max_tokens=NEW, detokenize=False, ignore_eos=True)
    answers = engine.generate([TokensPrompt(prompt_token_ids=prompt) for prompt in PROMPTS], sampling)
    return engine, [list(answer.outputs[0].token_ids) for answer in answers], started


def options_of(kind: str) -> dict[str, Any]:
    options: dict[str, Any] = {"enforce_eager": kind == "eager"}
    if os.environ.get("FLASHQLA_PREFILL") == "off":
        options |= TRITON
    options |= json.loads(os.environ.get("ENGINE_OPTIONS", "{}"))
    return {**options, **RECIPE, "disable_log_stats": False} if kind == "recipe" else options


def drafts(results: Results, engine: Any) -> None:
    """How many tokens were drafted and taken: with random weights hardly any are."""
    counts = {
        metric.name.removeprefix("vllm:spec_decode_"): getattr(metric, "value", 0) for metric in engine.get_metrics()
    }
    for name in ("num_draft_tokens", "num_accepted_tokens"):
        results.figure(name, {"kind": "recipe"}, "tokens", "", float(counts.get(name, 0)))
    results.check("serving", "drafts", counts.get("num_draft_tokens", 0) > 0, "nothing was drafted")


def main(kind: str, *variables: str) -> int:
    os.environ |= dict(variable.split("=", 1) for variable in variables)
    results = Results()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(CONFIG))
        engine, tokens, started = serve(Path(folder), options_of(kind))
    at: dict[str, int | str] = {"kind": kind, **dict(variable.split("=", 1) for variable in variables)}
    results.figure("startup", at, "s", "lower", started)
    results.check(
        "serving", " ".join((kind, *variables)), all(len(each) == NEW for each in tokens), "tokens are missing"
    )
    results.version("tokens", json.dumps(tokens))
    if kind == "recipe":
        drafts(results, engine)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
