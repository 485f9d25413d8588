"""The answers of a checkpoint with INT4 experts and FP8 dense layers, beside those of its source in BF16."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import part_checkpoint
import part_engine
from part_results import Results

SEQUENCES, NEW = 16, 32
# Of all answers: weights of 4 and 8 bits may turn one where two tokens are close.
LOST = 0.02


def right(folder: Path) -> float:
    """The share of greedy tokens that are those which follow."""
    engine = part_engine.start(
        folder, enforce_eager=True, max_model_len=256, max_num_seqs=SEQUENCES, **part_engine.TRITON
    )
    prompts = [part_checkpoint.prompt(number, 8) for number in range(SEQUENCES)]
    share: float = part_engine.same(
        part_engine.greedy(engine, prompts, NEW),
        [part_checkpoint.continuation(prompt, NEW) for prompt in prompts],
    )
    # The next engine begins when this one is gone.
    engine.llm_engine.engine_core.shutdown()
    return share


def main(*variables: str) -> int:
    part_engine.set_variables(variables)
    results = Results()
    shares = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind, path in part_checkpoint.write(Path(folder)).items():
            shares[kind] = share = right(path)
            results.figure("right_answers", {"checkpoint": kind, "of": SEQUENCES * NEW}, "ratio", "higher", share)
            results.check("answers of a known checkpoint", kind, share > 0.95, f"{share:.1%} are right")
    results.check(
        "answers of a known checkpoint",
        "hybrid and BF16",
        shares["hybrid"] >= shares["BF16"] - LOST,
        f"{shares['hybrid']:.1%} are right, {shares['BF16']:.1%} of its source",
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
