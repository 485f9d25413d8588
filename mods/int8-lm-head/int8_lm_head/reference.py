"""INT8 rows of a head and the logits of them, in PyTorch: what the kernel is held to."""

# What it imports is in the image, not where the types are checked.
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import torch

LARGEST = 127
SMALLEST_SCALE = 1e-12
# Rows that are converted at once: in float32 they are four times as large as in INT8, twice as large as in BF16.
AT_ONCE = 8192


def quantise(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """INT8 rows and the float32 scale of each, for a weight ``[vocabulary, hidden]``.

    A scale is the largest absolute value of its row by 127, and at least 1e-12, so that a row of zeros stays one.
    """
    rows = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
    scales = torch.empty(weight.shape[0], dtype=torch.float32, device=weight.device)
    for begin in range(0, weight.shape[0], AT_ONCE):
        some = weight[begin : begin + AT_ONCE].float()
        scale = (some.abs().amax(dim=1) / LARGEST).clamp(min=SMALLEST_SCALE)
        scales[begin : begin + AT_ONCE] = scale
        rows[begin : begin + AT_ONCE] = (some / scale[:, None]).round_().clamp_(-LARGEST, LARGEST).to(torch.int8)
    return rows, scales


def logits(
    hidden: torch.Tensor, rows: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """The logits ``[batch, vocabulary]`` of ``hidden``, one row each: sums in float32, rounded once at the end."""
    total = hidden.float() @ rows.float().T * scales
    return (total if bias is None else total + bias.float()).to(hidden.dtype)
