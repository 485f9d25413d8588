"""The options of the recipe qwen3.5-122b-tf5, with a small model whose continuation is known: its own prediction of
three tokens, prefix caching, an FP8 cache, FlashInfer's attention.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import part_checkpoint
import part_engine
from part_results import Results

RECIPE: dict[str, Any] = {
    "kv_cache_dtype": "fp8_e4m3",
    "attention_config": {"backend": "FLASHINFER"},
    "enable_prefix_caching": True,
    "speculative_config": {"method": "mtp", "num_speculative_tokens": 3},
}
SEQUENCES, PROMPT, NEW = 8, 3000, 96


def predictions(results: Results, counts: dict[str, float]) -> None:
    drafted, taken = (counts.get(f"spec_decode_num_{what}_tokens", 0.0) for what in ("draft", "accepted"))
    results.figure("drafted_tokens", {}, "tokens", "", drafted)
    results.figure("accepted_tokens", {"of": int(drafted)}, "tokens", "higher", taken)
    results.check("options of the recipe", "drafts", drafted > 0, "nothing was drafted")
    results.check("options of the recipe", "accepted", taken > 0.8 * drafted, f"{taken:.0f} of {drafted:.0f} drafts")


def main(*variables: str) -> int:
    at = part_engine.set_variables(variables)
    results = Results()
    prompts = [part_checkpoint.prompt(number, PROMPT) for number in range(SEQUENCES)]
    wanted = [part_checkpoint.continuation(prompt, NEW) for prompt in prompts]
    options = dict(RECIPE)
    if at.get("FLASHQLA_PREFILL") == "off":
        options |= part_engine.TRITON
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = part_checkpoint.write(Path(folder))["BF16"]
        began = time.monotonic()
        engine = part_engine.start(
            checkpoint, max_model_len=4096, max_num_seqs=SEQUENCES, disable_log_stats=False, **options
        )
        results.figure("startup", {"kind": "recipe", **at}, "s", "lower", time.monotonic() - began)
        for time_asked in ("first", "again"):
            before = part_engine.counters(engine).get("prefix_cache_hits", 0.0)
            share = part_engine.same(part_engine.greedy(engine, prompts, NEW), wanted)
            results.figure("right_answers", {"options": "recipe", "asked": time_asked}, "ratio", "higher", share)
            results.check("options of the recipe", f"answers, {time_asked}", share > 0.95, f"{share:.1%} are right")
        counts = part_engine.counters(engine)
    hits = counts.get("prefix_cache_hits", 0.0) - before
    results.figure("prefix_cache_hits", {"of": SEQUENCES * PROMPT}, "tokens", "higher", hits)
    results.check("options of the recipe", "prefix caching", hits > 0, "no token came from the cache")
    predictions(results, counts)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
