"""The steps of a checkpoint definition, as data. Each takes tensors by name and gives tensors by name; none of them
reads anything."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

Quantization = Literal["int8-rows", "fp8-blocks"]


@dataclass(frozen=True)
class TensorSelection:
    """Tensors by patterns of their names, and by their dtype where one is given."""

    patterns: tuple[str, ...] = ("*",)
    exceptions: tuple[str, ...] = ()
    dtype: str | None = None


@dataclass(frozen=True)
class TakeStep:
    """Takes over tensors of a source, under the names that ``rename`` gives them, and its other files by ``files``;
    None leaves that to its place: the first step of this kind takes all of them, the others none."""

    source: str
    selection: TensorSelection
    rename: Mapping[str, str] = field(default_factory=dict)
    files: tuple[str, ...] | None = None
    expect: int | None = None


@dataclass(frozen=True)
class ReplaceStep:
    """Puts selected tensors of a source in the place of those with the same name and shape, each with its companions;
    ``unmatched`` is how many have no counterpart."""

    source: str
    selection: TensorSelection
    companions: tuple[str, ...] = ()
    expect: int | None = None
    unmatched: int | None = None


@dataclass(frozen=True)
class AddStep:
    """Adds a whole file of a source, with the names in its own header. Where a tensor already has a name of the
    patterns ``unless``, as when the index of the source lists the file, the step adds nothing."""

    source: str
    file: str
    unless: tuple[str, ...] = ()
    expect: int | None = None


@dataclass(frozen=True)
class CastStep:
    """Converts tensors to another dtype."""

    dtype: str
    selection: TensorSelection
    expect: int | None = None


@dataclass(frozen=True)
class QuantizeStep:
    """Quantizes matrices, and adds a tensor of scales for each, whose name ends with ``scale``."""

    kind: Quantization
    selection: TensorSelection
    block: tuple[int, int]
    scale: str
    scale_dtype: str
    expect: int | None = None


@dataclass(frozen=True)
class ConfigStep:
    """Changes a JSON file by a merge patch (RFC 7396)."""

    file: str
    patch: Mapping[str, Any]


@dataclass(frozen=True)
class VerifyStep:
    """Demands that something holds: amounts in all, by pattern and by dtype; shapes by pattern; digests of files."""

    tensors: int | None = None
    size: int | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    dtypes: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


CheckpointStep = TakeStep | ReplaceStep | AddStep | CastStep | QuantizeStep | ConfigStep | VerifyStep
