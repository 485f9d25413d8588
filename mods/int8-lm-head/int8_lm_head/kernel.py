"""The Triton kernel: logits of INT8 rows with a scale each.

Each program takes some rows of the vocabulary and up to 64 items of the batch, and reads those rows once: only they are
large, and they are what the time goes to. INT8 values are exact in BF16 and FP16, so the tensor cores multiply what the
reference multiplies; sums are float32, and the scale is applied to the sum.
"""

# What it imports is in the image, not where the types are checked.
# mypy: disable-error-code="import-not-found, no-untyped-def, misc, untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl


@dataclass(frozen=True)
class Tile:
    """What a program takes: ``batch`` items, ``rows`` of the vocabulary, ``columns`` of them at a time."""

    batch: int
    rows: int
    columns: int
    warps: int
    stages: int

    @property
    def shared_memory(self) -> int:
        """The bytes that its stages hold, of which GB10 has 99 KiB for a program and Hopper 227."""
        return self.stages * self.columns * (self.rows + 2 * self.batch)


# The fastest of 127 that were tried on an H100, each for batches up to its own. All fit into GB10's shared memory.
TILES = (Tile(16, 32, 256, 4, 4), Tile(32, 64, 128, 4, 3), Tile(64, 64, 128, 4, 3))
# A larger batch is cut into pieces of this size. On an H100 BF16 was faster than that for 128 and for 256.
LARGEST_BATCH = TILES[-1].batch


def tile_for(batch: int) -> Tile:
    return next((tile for tile in TILES if batch <= tile.batch), TILES[-1])


@triton.jit(do_not_specialize=["batch"])
def _logits(
    hidden,
    rows,
    scales,
    bias,
    out,
    batch,
    vocabulary,
    hidden_stride,
    rows_stride,
    size: tl.constexpr,
    has_bias: tl.constexpr,
    batch_block: tl.constexpr,
    row_block: tl.constexpr,
    column_block: tl.constexpr,
):
    row = tl.program_id(1).to(tl.int64) * row_block + tl.arange(0, row_block)
    item = tl.program_id(0) * batch_block + tl.arange(0, batch_block)
    column = tl.arange(0, column_block)
    row_there, item_there = row < vocabulary, item < batch
    total = tl.zeros((row_block, batch_block), dtype=tl.float32)
    for begin in range(0, size, column_block):
        there = begin + column < size
        weight = tl.load(
            rows + row[:, None] * rows_stride + (begin + column)[None, :],
            mask=row_there[:, None] & there[None, :],
            other=0,
        )
        values = tl.load(
            hidden + item[None, :] * hidden_stride + (begin + column)[:, None],
            mask=item_there[None, :] & there[:, None],
            other=0.0,
        )
        total = tl.dot(weight.to(values.dtype), values, total)
    total = total * tl.load(scales + row, mask=row_there, other=0.0)[:, None]
    if has_bias:
        total = total + tl.load(bias + row, mask=row_there, other=0.0).to(tl.float32)[:, None]
    tl.store(
        out + item[None, :].to(tl.int64) * vocabulary + row[:, None],
        total.to(out.dtype.element_ty),
        mask=row_there[:, None] & item_there[None, :],
    )


def logits(
    hidden: torch.Tensor,
    rows: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None = None,
    tile: Tile | None = None,
) -> torch.Tensor:
    """``reference.logits`` on the GPU: ``hidden`` is BF16 or FP16, ``rows`` has consecutive columns."""
    flat = hidden.reshape(-1, hidden.shape[-1])
    if flat.stride(1) != 1:
        flat = flat.contiguous()
    batch, (vocabulary, size) = flat.shape[0], rows.shape
    out = torch.empty(batch, vocabulary, dtype=hidden.dtype, device=hidden.device)
    if batch:
        tile = tile or tile_for(batch)
        _logits[triton.cdiv(batch, tile.batch), triton.cdiv(vocabulary, tile.rows)](
            flat,
            rows,
            scales,
            scales if bias is None else bias,
            out,
            batch,
            vocabulary,
            flat.stride(0),
            rows.stride(0),
            size=size,
            has_bias=bias is not None,
            batch_block=tile.batch,
            row_block=tile.rows,
            column_block=tile.columns,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
    return out.reshape(*hidden.shape[:-1], vocabulary)
