"""The tensors of a checkpoint while its steps are planned: by name, each with where its bytes come from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from builder.checkpoints.planning.header import DTYPES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.checkpoints.planning.header import Header

Operation = Literal["copy", "cast", "int8-rows", "int8-rows-scale", "fp8-blocks", "fp8-blocks-scale"]


@dataclass(frozen=True, order=True)
class SourceFile:
    """A file of one of the sources, by the source's name in the definition."""

    source: str
    path: str


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor of the result. Its bytes come from ``size`` bytes at ``begin`` of ``file``, which hold numbers of
    ``stored_dtype`` and the shape ``stored_shape``, by ``operation``. The tensors of a ``shard`` of a source stay
    together, in the order of ``place``."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: SourceFile
    begin: int
    size: int
    stored_dtype: str
    stored_shape: tuple[int, ...]
    shard: SourceFile
    place: tuple[int, ...]
    operation: Operation = "copy"
    block: tuple[int, int] = (0, 0)
    scale_dtype: str = ""

    @property
    def bytes(self) -> int:
        """The bytes that it takes in the result."""
        count = DTYPES[self.dtype]
        for extent in self.shape:
            count *= extent
        return count


@dataclass(frozen=True)
class StepEffect:
    """The effect of a step, for the user: what it does in a line, and how many tensors it is about."""

    text: str
    tensors: int


@dataclass(frozen=True)
class SourceListing:
    """A source as far as planning needs it: the headers of its files of weights, by path, the files that its index
    lists (all where it has none), and by path the size of every other file."""

    headers: Mapping[str, Header]
    listed: tuple[str, ...]
    others: Mapping[str, int] = field(default_factory=dict)
