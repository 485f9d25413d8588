"""Demands that a step makes, and the refusal, with the names, where they are not met."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from builder.checkpoints.planning.selection import matcher

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from builder.checkpoints.planning.tensor_table import PlannedTensor
    from builder.definitions.checkpoint_steps import VerifyStep

FLOATS = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")
"""The dtypes that `cast` converts between and `quantize` takes."""

_MOST_NAMES = 5


class RefusalError(Exception):
    """The reason why a step cannot be done."""


def require_count(expected: int | None, names: list[str], what: str) -> None:
    """Raises RefusalError where another number of tensors is expected."""
    if expected is not None and len(names) != expected:
        which = f": {listed(names)}" if names else ""
        raise RefusalError(f"{len(names)} tensors {what}, and {expected} are expected{which}")


def require_new(tensors: Mapping[str, PlannedTensor], new: Iterable[PlannedTensor]) -> None:
    """Raises RefusalError where names are there already, or twice."""
    counts = Counter(tensor.name for tensor in new)
    twice = [name for name, count in counts.items() if count > 1 or name in tensors]
    if twice:
        raise RefusalError(f"{len(twice)} names are there already: {listed(twice)}")


def require_dtypes(tensors: Iterable[PlannedTensor], what: str) -> None:
    """Raises RefusalError for tensors of numbers that no step converts."""
    others = [f"{tensor.name} ({tensor.dtype})" for tensor in tensors if tensor.dtype not in FLOATS]
    if others:
        raise RefusalError(f"`{what}` takes {', '.join(FLOATS)}; {len(others)} are none of these: {listed(others)}")


def listed(names: Iterable[str]) -> str:
    """The first of some names, for messages."""
    every = list(names)
    more = f" and {len(every) - _MOST_NAMES} more" if len(every) > _MOST_NAMES else ""
    return f"{', '.join(every[:_MOST_NAMES])}{more}"


def require(step: VerifyStep, by_name: Mapping[str, PlannedTensor]) -> None:
    """Raises RefusalError with everything that a `verify` step demands of the tensors and that does not hold."""
    tensors = by_name.values()
    wrong = []
    if step.tensors not in (None, len(tensors)):
        wrong.append(f"there are {len(tensors)} tensors, and not {step.tensors}")
    size = sum(tensor.bytes for tensor in tensors)
    if step.size not in (None, size):
        wrong.append(f"they have {size} bytes, and not {step.size}")
    for pattern, count in step.counts.items():
        number = sum(map(matcher((pattern,)), by_name))
        if number != count:
            wrong.append(f"{number} have a name like {pattern}, and not {count}")
    for dtype, count in step.dtypes.items():
        number = sum(tensor.dtype == dtype for tensor in tensors)
        if number != count:
            wrong.append(f"{number} are {dtype}, and not {count}")
    for pattern, shape in step.shapes.items():
        matching = [tensor for name, tensor in by_name.items() if matcher((pattern,))(name)]
        others = [f"{tensor.name} {list(tensor.shape)}" for tensor in matching if tensor.shape != shape]
        if not matching or others:
            what = f"these are not {list(shape)}: {listed(others)}" if others else f"none has a name like {pattern}"
            wrong.append(what)
    if wrong:
        raise RefusalError("; ".join(wrong))
