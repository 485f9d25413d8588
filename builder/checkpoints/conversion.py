"""Tensors that are computed from others: casts, INT8 rows and FP8 blocks, a piece at a time.

All of it is done one number at a time in float32 (float64 for F64), so that the same bytes give the same bytes on every
machine. A value that the new dtype cannot hold is an error, and never an infinity or a NaN in the result. numpy and
ml_dtypes do it; they are an extra of this package (`checkpoints`).
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from builder.checkpoints.planning.header import DTYPES
from builder.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import numpy as np

    from builder.checkpoints.planning.tensor_table import PlannedTensor

    Numbers = np.ndarray[Any, np.dtype[Any]]
    ReadBytes = Callable[[int, int], bytes]
    """Takes the place of a byte in the stored tensor and a number of bytes, and gives just these."""

PIECE = 1 << 21
"""The numbers that are computed at once: some ten times as many bytes of memory, for each file that is written."""
LONGEST_ROW = 1 << 22

_PACKAGES = {"numpy": "numpy", "ml-dtypes": "ml_dtypes"}
"""The modules that compute, by the names of their packages."""
_LEAST_SCALE = 1e-12
_LARGEST_INT8 = 127.0
_LARGEST_FP8 = 448.0  # of float8_e4m3fn


class ConversionError(Exception):
    """Numbers that cannot be converted; the text says why, with the tensor's name."""


def require_packages(tensors: Iterable[PlannedTensor]) -> None:
    """Raises UsageError where one of the tensors is computed, and the packages for that are not installed."""
    import shlex
    import sys
    from importlib.util import find_spec

    if all(tensor.operation == "copy" for tensor in tensors):
        return
    if missing := [name for name, module in _PACKAGES.items() if find_spec(module) is None]:
        python = shlex.quote(sys.executable)
        raise UsageError(
            f"`cast` and `quantize` require the extra `builder[checkpoints]`; not installed: {', '.join(missing)}",
            hint=f"install them: {python} -m uv pip install --python {python} {' '.join(missing)}",
        )


def converted(tensor: PlannedTensor, read: ReadBytes) -> Iterator[bytes]:
    """Yields the bytes of a tensor that is computed, in their order. Raises ConversionError."""
    if tensor.operation == "cast":
        yield from _cast(tensor, read)
        return
    columns = tensor.stored_shape[-1]
    if columns > LONGEST_ROW:
        raise ConversionError(f"{tensor.name} has rows of {columns:,} numbers: at most {LONGEST_ROW:,} are quantized")
    if tensor.operation.startswith("int8"):
        yield from _int8_rows(tensor, read)
        return
    rows, height = tensor.stored_shape[-2], tensor.block[0]
    for matrix in range(prod(tensor.stored_shape[:-2])):
        for first in range(0, rows, height):
            yield from _fp8_blocks(tensor, read, matrix * rows + first, min(height, rows - first))


def _int8_rows(tensor: PlannedTensor, read: ReadBytes) -> Iterator[bytes]:
    import numpy as np

    for values in _rows(tensor, read, 0, prod(tensor.stored_shape[:-1])):
        scales = _stored_scales(tensor, np.abs(values).max(axis=1, keepdims=True), _LARGEST_INT8)
        if tensor.operation.endswith("-scale"):
            yield _encoded(tensor, scales, tensor.dtype).tobytes()
        else:
            scaled = np.rint(values / scales)
            yield np.clip(scaled, -_LARGEST_INT8, _LARGEST_INT8).astype(np.int8).tobytes()


def _cast(tensor: PlannedTensor, read: ReadBytes) -> Iterator[bytes]:
    width = DTYPES[tensor.stored_dtype]
    for begin in range(0, tensor.size, PIECE * width):
        values = _values(tensor, read(begin, min(PIECE * width, tensor.size - begin)))
        yield _encoded(tensor, values, tensor.dtype).tobytes()


def _fp8_blocks(tensor: PlannedTensor, read: ReadBytes, first: int, count: int) -> Iterator[bytes]:
    """Yields the bytes of one row of blocks, which has ``count`` rows of numbers from row ``first`` on; of scales the
    one row that stands for it."""
    import numpy as np

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
        scaled = np.clip(values / divisors, -_LARGEST_FP8, _LARGEST_FP8)
        yield _encoded(tensor, scaled, "F8_E4M3").tobytes()


def _stored_scales(tensor: PlannedTensor, largest: Numbers, most: float) -> Numbers:
    """The scales for the largest numbers, so that these become ``most``; as they are stored, since these are what a
    reader multiplies with."""
    import numpy as np

    scales = np.maximum(largest / np.float32(most), np.float32(_LEAST_SCALE))
    return _encoded(tensor, scales, tensor.scale_dtype).astype(np.float32)


def _rows(tensor: PlannedTensor, read: ReadBytes, first: int, count: int) -> Iterator[Numbers]:
    """Yields ``count`` rows from ``first`` on as float32, as many at a time as one piece has."""
    columns = tensor.stored_shape[-1]
    size = columns * DTYPES[tensor.stored_dtype]
    step = max(1, PIECE // columns)
    for row in range(first, first + count, step):
        number = min(step, first + count - row)
        yield _values(tensor, read(row * size, number * size)).reshape(number, columns)


def _values(tensor: PlannedTensor, content: bytes) -> Numbers:
    import numpy as np

    stored = np.frombuffer(content, _dtype(tensor.stored_dtype))
    values = stored if tensor.stored_dtype == "F64" and tensor.operation == "cast" else stored.astype(np.float32)
    if not np.isfinite(values).all():
        raise ConversionError(f"{tensor.name} has an infinity or NaN in it, or a number too large for float32")
    return values


def _encoded(tensor: PlannedTensor, values: Numbers, dtype: str) -> Numbers:
    import numpy as np

    with np.errstate(over="ignore", under="ignore"):
        encoded = values.astype(_dtype(dtype))
    if not np.isfinite(encoded.astype(np.float64 if dtype == "F64" else np.float32)).all():
        raise ConversionError(f"{tensor.name} has numbers that {dtype} does not hold")
    return encoded


def _dtype(name: str) -> Any:
    import ml_dtypes
    import numpy as np

    return np.dtype(
        {
            "F64": np.float64,
            "F32": np.float32,
            "F16": np.float16,
            "BF16": ml_dtypes.bfloat16,
            "F8_E4M3": ml_dtypes.float8_e4m3fn,
            "F8_E5M2": ml_dtypes.float8_e5m2,
        }[name]
    )
