"""The headers of safetensors files, and the index of a checkpoint with several.

The format (https://huggingface.co/docs/safetensors/index#format): the length of the header in 8 bytes, the header as
JSON, the data. The reader is strict, and the writer has one form: every byte of the data belongs to exactly one tensor.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from math import prod
from typing import Any, NoReturn

from builder.base.values import dataclass

PREFIX = 8
LARGEST = 25_000_000
"""The largest accepted header in bytes, as in huggingface_hub. Files of 100,000 tensors have less."""
MOST_TENSORS = 100_000
"""The largest accepted number of tensors in a file. Models of 90,000 tensors have a hundred files."""
_BY_SIZE = {1: "BOOL U8 I8 F8_E4M3 F8_E5M2 F8_E8M0", 2: "I16 U16 F16 BF16", 4: "I32 U32 F32", 8: "F64 I64 U64"}
DTYPES: Mapping[str, int] = {name: size for size, names in _BY_SIZE.items() for name in names.split()}
"""The bytes of a number, by the name of its dtype in the format."""
METADATA = {"format": "pt"}
"""Loaders refuse a file that does not name its framework."""
NAME = "model.safetensors.index.json"
"""The index of a checkpoint with several files, which maps tensors to files."""
LARGEST_INDEX = 64 << 20

# Besides its name, a tensor has three keys, and its lengths as values. Parsing more JSON would take gigabytes of
# memory.
_MOST_NAMES, _MOST_VALUES = 5 * MOST_TENSORS, 30 * MOST_TENSORS
_LARGEST_FILE = 1 << 53
_MOST_DIMENSIONS = 16


class HeaderError(Exception):
    """An invalid or damaged safetensors file; the text says why."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file. ``begin`` is the offset of its first byte in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    size: int


@dataclass(frozen=True)
class Header:
    """The tensors of a file in the order of their bytes, the ``size`` of the file, and the SHA-256 of the header."""

    tensors: tuple[StoredTensor, ...]
    size: int
    digest: str


def length(prefix: bytes, file_size: int) -> int:
    """The length of the header of a file that begins with ``prefix``. Raises HeaderError if it is invalid."""
    if len(prefix) < PREFIX or file_size < PREFIX:
        raise HeaderError(f"it has {file_size} bytes: too few for a safetensors file")
    count = int.from_bytes(prefix[:PREFIX], "little")
    if count > LARGEST:
        raise HeaderError(f"its header would have {count:,} bytes, but at most {LARGEST:,} are read")
    if count < len("{}"):
        raise HeaderError(f"its header has only {count} bytes, too few for a JSON object")
    if PREFIX + count > file_size:
        what = f"its header should have {count:,} bytes, but the file has only {file_size:,}"
        raise HeaderError(f"{what}: the file was truncated")
    return count


def parse_header(text: bytes, file_size: int) -> Header:
    """Reads the header of a file of ``file_size`` bytes. Raises HeaderError if it violates the format."""
    data = _object(text)
    metadata = data.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise HeaderError("its __metadata__ does not map names to strings")
    end = PREFIX + len(text)
    tensors = [_tensor(name, entry, end) for name, entry in data.items()]
    tensors.sort(key=lambda each: (each.begin, each.size))
    for tensor in tensors:
        if tensor.begin != end:
            kind = "overlap the previous tensor" if tensor.begin < end else "leave a gap after the previous tensor"
            raise HeaderError(f"the bytes of {_shown(tensor.name)} {kind}")
        end = tensor.begin + tensor.size
    if end != file_size:
        what = "the file was truncated" if file_size < end else "more bytes follow the tensors"
        raise HeaderError(f"its tensors end at byte {end:,}, but the file ends at {file_size:,}: {what}")
    return Header(tuple(tensors), file_size, hashlib.sha256(text).hexdigest())


def written(tensors: Iterable[tuple[str, str, tuple[int, ...]]]) -> tuple[bytes, tuple[int, ...]]:
    """The header of a file with these tensors (name, dtype, shape) in this order, and the offset of each tensor's data.
    As in the safetensors library, the data begins at a multiple of 8."""
    content: dict[str, Any] = {"__metadata__": METADATA}
    begins, at = [], 0
    for name, dtype, shape in tensors:
        size = DTYPES[dtype] * prod(shape)
        content[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        begins.append(at)
        at += size
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > LARGEST:
        message = f"the header of one file would have {len(text):,} bytes, which is too long: set a smaller shard_size"
        raise HeaderError(message)
    start = PREFIX + len(text)
    return len(text).to_bytes(PREFIX, "little") + text, tuple(start + begin for begin in begins)


def _object(text: bytes) -> dict[str, Any]:
    if not text.startswith(b"{"):
        raise HeaderError("its header is not a JSON object")
    for what, most, count in (
        ("names", _MOST_NAMES, text.count(b":")),
        ("values", _MOST_VALUES, text.count(b",") + text.count(b"[") + text.count(b"{")),
    ):
        if count > most:
            raise HeaderError(f"its header has {count:,} {what}, but at most {most:,} are read")
    try:
        data = json.loads(text.decode(), object_pairs_hook=_without_repetition, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise HeaderError("its header is not JSON") from None
    return dict(data)


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > MOST_TENSORS + 1:  # and __metadata__
        raise HeaderError(f"its header has {len(pairs):,} tensors, but at most {MOST_TENSORS:,} are read")
    data: dict[str, Any] = {}
    for name, value in pairs:
        if name in data:
            raise HeaderError(f"its header has {_shown(name)} twice")
        data[name] = value
    return data


def _no_constant(text: str) -> NoReturn:
    raise HeaderError(f"its header contains {text}, which is not valid JSON")


def _tensor(name: str, entry: Any, start: int) -> StoredTensor:
    if not name or re.search("[\0\ud800-\udfff]", name):
        raise HeaderError(f"{name!a} is not a valid tensor name")
    shown = _shown(name)
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise HeaderError(f"{shown} must have exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise HeaderError(f"{shown} has an unknown dtype: {str(dtype)[:20]}")
    if not _are_counts(shape) or len(shape) > _MOST_DIMENSIONS:
        raise HeaderError(f"the shape of {shown} is not a list of whole numbers")
    if not _are_counts(offsets) or len(offsets) != len(("begin", "end")) or offsets[1] < offsets[0]:
        raise HeaderError(f"the data_offsets of {shown} are not a start and an end")
    size = DTYPES[dtype] * prod(shape)
    if size != offsets[1] - offsets[0]:
        raise HeaderError(f"{shown} is {dtype} {shape}: it needs {size:,} bytes, but has {offsets[1] - offsets[0]:,}")
    return StoredTensor(name, dtype, tuple(shape), start + offsets[0], size)


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < _LARGEST_FILE for value in values)


def _shown(name: str) -> str:
    return f"`{name if len(name) <= 160 else name[:159] + '…'}`"


def parse_index(text: bytes) -> dict[str, str]:
    """The files of the tensors, by name. Raises HeaderError if the text is not an index, or names a path outside."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        data = dict(pairs)
        if len(data) < len(pairs):
            raise HeaderError("it contains a name twice")
        return data

    try:
        data = json.loads(text.decode(), object_pairs_hook=unique)
    except (ValueError, RecursionError):
        raise HeaderError("it is not JSON") from None
    files = data.get("weight_map") if isinstance(data, dict) else None
    if not isinstance(files, dict) or not files:
        raise HeaderError("it has no weight_map")
    for name, file in files.items():
        if not isinstance(file, str) or not file.endswith(".safetensors") or "/" in file or not file.isprintable():
            message = f"its weight_map has an entry that is not a weights file: {name[:100]!r}: {str(file)[:100]!r}"
            raise HeaderError(message)
    return files


def written_index(files: Mapping[str, str], total: int) -> bytes:
    content = {"metadata": {"total_size": total}, "weight_map": dict(sorted(files.items()))}
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()
