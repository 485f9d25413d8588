"""vLLM's engine for the small models of these parts, and how it is asked."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# A fixed cache, so that nothing depends on what else the memory of the GPU is used for meanwhile: vLLM's own measuring
# ends with an error where another process frees some, and on a DGX Spark every process of the machine does.
CACHE = 2 << 30
UTILIZATION = 0.05  # of all memory: what vLLM asks to be free at start, the cache aside
# vLLM chooses FlashInfer's on some cards, and that compiles for minutes where it has never run.
TRITON = {"additional_config": {"gdn_prefill_backend": "triton"}}


def set_variables(variables: Sequence[str]) -> dict[str, int | str]:
    """Sets the environment variables of a part, each `NAME=VALUE`; returns them by name."""
    chosen = dict(variable.split("=", 1) for variable in variables)
    os.environ |= chosen
    return {**chosen}


def start(folder: Path, **options: Any) -> Any:
    """The engine for the checkpoint in ``folder``. ENGINE_OPTIONS may hold further options of vLLM as JSON."""
    from vllm import LLM

    own = {
        "gpu_memory_utilization": float(os.environ.get("GPU_MEMORY_UTILIZATION") or UTILIZATION),
        "kv_cache_memory_bytes": CACHE,
        "skip_tokenizer_init": True,
    }
    return LLM(model=str(folder), **own | json.loads(os.environ.get("ENGINE_OPTIONS") or "{}") | options)


def greedy(engine: Any, prompts: Sequence[list[int]], length: int) -> list[list[int]]:
    """The ``length`` most probable tokens after each prompt."""
    from vllm import SamplingParams, TokensPrompt

    sampling = SamplingParams(temperature=0.0, max_tokens=length, detokenize=False, ignore_eos=True)
    answers = engine.generate([TokensPrompt(prompt_token_ids=prompt) for prompt in prompts], sampling)
    return [list(answer.outputs[0].token_ids) for answer in answers]


def counters(engine: Any) -> dict[str, float]:
    """vLLM's counts, by their names in `/metrics` without `vllm:`. The engine needs `disable_log_stats=False`."""
    counts: dict[str, float] = {}
    for metric in engine.get_metrics():
        if hasattr(metric, "value"):
            name = metric.name.removeprefix("vllm:").removesuffix("_total")
            counts[name] = counts.get(name, 0.0) + metric.value
    return counts


def same(answers: Sequence[list[int]], wanted: Sequence[list[int]]) -> float:
    """The share of tokens that are the wanted ones."""
    pairs = [
        (one, other)
        for mine, yours in zip(answers, wanted, strict=True)
        for one, other in zip(mine, yours, strict=True)
    ]
    return sum(one == other for one, other in pairs) / len(pairs)
