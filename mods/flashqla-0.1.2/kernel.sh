#!/usr/bin/env bash
# One call of the kernels, which TileLang compiles for this GPU: finite numbers of the right shape come out.
set -euo pipefail

python3 - <<'PYTHON'
import torch
from flash_qla import chunk_gated_delta_rule

TOKENS, HEADS, VALUE_HEADS, SIZE = 96, 2, 4, 128
torch.manual_seed(0)


def tensor(heads):
    return torch.randn(1, TOKENS, heads, SIZE, dtype=torch.bfloat16, device="cuda")


output, state = chunk_gated_delta_rule(
    q=tensor(HEADS),
    k=tensor(HEADS),
    v=tensor(VALUE_HEADS),
    g=-torch.rand(1, TOKENS, VALUE_HEADS, device="cuda"),
    beta=torch.rand(1, TOKENS, VALUE_HEADS, device="cuda"),
    initial_state=torch.zeros(2, VALUE_HEADS, SIZE, SIZE, device="cuda"),
    output_final_state=True,
    cu_seqlens=torch.tensor([0, 32, TOKENS], dtype=torch.int32, device="cuda"),
    use_qk_l2norm_in_kernel=True,
    state_v_first=True,
)
torch.cuda.synchronize()
for name, found, shape in (
    ("output", output, (1, TOKENS, VALUE_HEADS, SIZE)),
    ("state", state, (2, VALUE_HEADS, SIZE, SIZE)),
):
    if tuple(found.shape) != shape or not bool(torch.isfinite(found.float()).all()):
        raise SystemExit(f"the {name} is {tuple(found.shape)} with values that are not finite, not {shape} with finite ones")
PYTHON
