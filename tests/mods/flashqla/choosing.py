"""Batches whose kernels the warm-up leaves out, by FlashQLA's own rules: `python choosing.py SITE WARMUP`.

SITE has FlashQLA 0.1.3, whose files that decide need no GPU; TileLang and torch are stand-ins. Prints as JSON, for each
card, the batches that ask for a kernel which no batch of the warm-up of the file WARMUP asks for.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import math
import random
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

CHUNKS = {"Hopper": 64, "GB10": 32}
PROCESSORS = {"Hopper": 132, "GB10": 48}
HEADS = (4, 8, 16, 24, 32, 48, 64)
TOKENS = (2048, 8192, 16384)


def heuristic(path: Path) -> Any:
    """FlashQLA's rule for cards that it has no measurements of."""
    tree = ast.parse(path.read_text())
    (rule,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "_heuristic_intra_cp"]
    names: dict[str, Any] = {"math": math, "MULTI_PROCESSOR_COUNT": PROCESSORS["GB10"], "ARCH": "sm120"}
    exec(compile(ast.Module([rule], []), str(path), "exec"), names)  # noqa: S102  (FlashQLA's own code)
    return names["_heuristic_intra_cp"]


def main(site: str, warmup: str) -> int:
    nvcc = SimpleNamespace(get_target_compute_version=lambda: "9.0")
    sys.modules["tilelang"] = SimpleNamespace(contrib=SimpleNamespace(nvcc=nvcc))  # type: ignore[assignment]
    sys.modules["torch"] = ModuleType("torch")
    folder = Path(site) / "flash_qla/ops/gated_delta_rule/chunk/cp"
    sys.path.insert(0, str(folder))
    autocp, launch = (importlib.import_module(name) for name in ("autocp", "autocp.launch"))
    spec = importlib.util.spec_from_file_location("warmup", warmup)
    assert spec and spec.loader
    warming = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(warming)
    rule = heuristic(folder / "context.py")

    def kernels(card: str, heads: int, batch: list[int]) -> tuple[bool, int]:
        chunks = [-(-tokens // CHUNKS[card]) for tokens in batch]
        if card == "Hopper":
            split, size = autocp.decide(num_chunks=chunks, num_v_heads=heads, P=132, chunk=64, is_train=False)
        else:
            split, size = rule(chunks, heads, False)
        parts = sum(-(-count // size) for count in chunks) if split else len(chunks)
        shape = launch.LaunchShape(H=heads, n_part=parts, P=PROCESSORS[card])
        backend = "hopper" if card == "Hopper" else "blackwell_sm120"
        return split, launch.launch_config(backend, "fused_fwd", shape).block_DV

    chance, left_out = random.Random(1), dict[str, list[Any]]()  # noqa: S311
    for card in CHUNKS:
        left_out[card] = []
        for heads in HEADS:
            for most in TOKENS:
                warm = {kernels(card, heads, batch) for batch in warming.lengths(-(-warming.BLOCKS // heads), most)}
                for _ in range(400):
                    count = chance.choice((1, 1, 1, 2, 2, 3, 4, 5, 8, 16, 32))
                    batch = [max(1, int(2 ** chance.uniform(0, math.log2(most / count)))) for _ in range(count)]
                    if sum(batch) <= most and kernels(card, heads, batch) not in warm:
                        left_out[card].append([heads, most, batch])
    sys.stdout.write(json.dumps(left_out) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
