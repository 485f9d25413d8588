"""Tensors that are computed from others: casts, INT8 rows and FP8 blocks, a piece at a time.

All of it is done one number at a time in float32 (float64 for casts of F64), so that the same bytes give the same bytes
on every machine. A value that the new dtype cannot hold is an error, and never an infinity or a NaN in the result.
numpy and ml_dtypes do it, which are an extra of this package (`checkpoints`): only what computes imports this page.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from builder.base.errors import SourceError
from builder.sources.safetensors_files import DTYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from builder.lab.checkpoints.tensors import PlannedTensor

    Numbers = np.ndarray[Any, np.dtype[Any]]
    ReadBytes = Callable[[int, int], bytearray]
    """Takes the place of a byte in the stored tensor and a number of bytes, and gives just these."""

PIECE = 1 << 21
"""The numbers that are computed at once: some ten times as many bytes of memory, for each file that is written."""
LONGEST_ROW = 1 << 22

_LEAST_SCALE = np.float32(1e-12)
_LARGEST_INT8 = np.float32(127)
_LARGEST_FP8 = np.float32(448)  # of float8_e4m3fn
_TYPES: dict[str, Any] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
}


def converted(tensor: PlannedTensor, read: ReadBytes) -> Iterator[bytes]:
    """Yields the bytes of a tensor that is computed, in their order. Raises SourceError."""
    if tensor.operation == "cast":
        piece = PIECE * DTYPES[tensor.stored_dtype]
        for begin in range(0, tensor.size, piece):
            values = _values(tensor, read(begin, min(piece, tensor.size - begin)))
            yield _encoded(tensor, values, tensor.dtype).tobytes()
        return
    *matrices, rows, columns = tensor.stored_shape
    if columns > LONGEST_ROW:
        raise _error(tensor, f"has rows of {columns:,} numbers: at most {LONGEST_ROW:,} are quantized")
    if tensor.operation.startswith("int8"):
        for values in _rows(tensor, read, 0, prod(matrices) * rows):
            yield _int8_rows(tensor, values)
        return
    height = tensor.block[0]
    for matrix in range(prod(matrices)):
        for first in range(0, rows, height):
            yield from _fp8_blocks(tensor, read, matrix * rows + first, min(height, rows - first))


def _int8_rows(tensor: PlannedTensor, values: Numbers) -> bytes:
    scales = _stored_scales(tensor, np.abs(values).max(axis=1, keepdims=True), _LARGEST_INT8)
    if tensor.operation.endswith("-scale"):
        return _encoded(tensor, scales, tensor.dtype).tobytes()
    return np.clip(np.rint(values / scales), -_LARGEST_INT8, _LARGEST_INT8).astype(np.int8).tobytes()


def _fp8_blocks(tensor: PlannedTensor, read: ReadBytes, first: int, count: int) -> Iterator[bytes]:
    """Yields the bytes of one row of blocks, which has ``count`` rows of numbers from row ``first`` on; of scales the
    one row that stands for it."""
    columns, width = tensor.stored_shape[-1], tensor.block[1]
    blocks = -(-columns // width)
    largest = np.zeros(blocks, np.float32)
    for values in _rows(tensor, read, first, count):
        padded = np.zeros(blocks * width, np.float32)
        padded[:columns] = np.abs(values).max(axis=0)
        largest = np.maximum(largest, padded.reshape(blocks, width).max(axis=1))
    scales = _stored_scales(tensor, largest, _LARGEST_FP8)
    if tensor.operation.endswith("-scale"):
        yield _encoded(tensor, scales, tensor.dtype).tobytes()
        return
    divisors = np.repeat(scales, width)[:columns]
    for values in _rows(tensor, read, first, count):
        yield _encoded(tensor, np.clip(values / divisors, -_LARGEST_FP8, _LARGEST_FP8), "F8_E4M3").tobytes()


def _stored_scales(tensor: PlannedTensor, largest: Numbers, most: np.float32) -> Numbers:
    """The scales for the largest numbers, so that these become ``most``; as they are stored, since these are what a
    reader multiplies with."""
    scales = np.maximum(largest / most, _LEAST_SCALE)
    return _encoded(tensor, scales, tensor.scale_dtype).astype(np.float32)


def _rows(tensor: PlannedTensor, read: ReadBytes, first: int, count: int) -> Iterator[Numbers]:
    """Yields ``count`` rows from ``first`` on as float32, as many at a time as one piece has."""
    columns = tensor.stored_shape[-1]
    size = columns * DTYPES[tensor.stored_dtype]
    step = max(1, PIECE // columns)
    for row in range(first, first + count, step):
        number = min(step, first + count - row)
        yield _values(tensor, read(row * size, number * size)).reshape(number, columns)


def _values(tensor: PlannedTensor, content: bytearray) -> Numbers:
    stored = np.frombuffer(content, _TYPES[tensor.stored_dtype])
    values = stored if tensor.stored_dtype == "F64" and tensor.operation == "cast" else stored.astype(np.float32)
    if not np.isfinite(values).all():
        raise _error(tensor, "has an infinity or NaN in it, or a number too large for float32")
    return values


def _encoded(tensor: PlannedTensor, values: Numbers, dtype: str) -> Numbers:
    with np.errstate(over="ignore", under="ignore"):
        encoded = values.astype(_TYPES[dtype])
    if not np.isfinite(encoded.astype(np.float64 if dtype == "F64" else np.float32)).all():
        raise _error(tensor, f"has numbers that {dtype} cannot represent")
    return encoded


def _error(tensor: PlannedTensor, message: str) -> SourceError:
    return SourceError(f"{tensor.name} {message}", hint="`except` leaves a tensor as it is")
