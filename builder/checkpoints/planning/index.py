"""The index of a checkpoint of several files, ``model.safetensors.index.json``: which file has which tensor."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from builder.checkpoints.planning.header import HeaderError

if TYPE_CHECKING:
    from collections.abc import Mapping

NAME = "model.safetensors.index.json"
LARGEST = 64 << 20


def parse(text: bytes) -> dict[str, str]:
    """The files of the tensors, by name. Raises HeaderError for a text that is no index, or leads elsewhere."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        data = dict(pairs)
        if len(data) < len(pairs):
            raise HeaderError("it names something twice")
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
            raise HeaderError(f"its weight_map leads to no file of weights: {name[:100]!r}: {str(file)[:100]!r}")
    return files


def written(files: Mapping[str, str], total: int) -> bytes:
    """The index for these files of tensors, by name, with ``total`` bytes of tensors."""
    content = {"metadata": {"total_size": total}, "weight_map": dict(sorted(files.items()))}
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()
