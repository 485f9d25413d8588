"""The tensors of a source, as they are stored, chosen and turned into tensors of the result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.checkpoints.planning import selection
from builder.checkpoints.planning.tensor_table import PlannedTensor

if TYPE_CHECKING:
    from builder.checkpoints.planning.header import StoredTensor
    from builder.checkpoints.planning.tensor_table import SourceFile, SourceListing
    from builder.definitions.checkpoint_steps import TensorSelection


def stored(source: SourceListing, chosen: TensorSelection) -> list[tuple[str, StoredTensor]]:
    """The selected tensors of a source, in the order of its files and of their bytes."""
    is_selected = selection.name_test(chosen)
    return [
        (path, tensor)
        for path in source.listed
        for tensor in source.headers[path].tensors
        if is_selected(tensor.name) and chosen.dtype in (None, tensor.dtype)
    ]


def planned(name: str, tensor: StoredTensor, file: SourceFile) -> PlannedTensor:
    """A tensor of the result that is a stored one as it is, called ``name``."""
    return PlannedTensor(
        name=name,
        dtype=tensor.dtype,
        shape=tensor.shape,
        file=file,
        begin=tensor.begin,
        size=tensor.size,
        stored_dtype=tensor.dtype,
        stored_shape=tensor.shape,
        shard=file,
        place=(tensor.begin,),
    )
