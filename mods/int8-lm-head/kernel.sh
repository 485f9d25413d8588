#!/usr/bin/env bash
# The kernel on this GPU against sums in float64, for each size of a batch that it has another form for.
set -euo pipefail

python3 - <<'PYTHON'
import torch
from vllm.model_executor.layers.int8_lm_head import kernel, reference

VOCABULARY, HIDDEN = 5003, 1000
torch.manual_seed(0)
rows, scales = reference.quantise(torch.randn(VOCABULARY, HIDDEN, dtype=torch.bfloat16, device="cuda"))
for batch in (1, *(tile.batch for tile in kernel.TILES)):
    hidden = torch.randn(batch, HIDDEN, dtype=torch.bfloat16, device="cuda")
    exact = hidden.double() @ (rows.double() * scales.double()[:, None]).T
    off = float((kernel.logits(hidden, rows, scales).double() - exact).norm() / exact.norm())
    if not off < 3e-3:
        raise SystemExit(f"a batch of {batch} is off by {off:.1e}, where rounding to BF16 alone is by 1.7e-3")
PYTHON
