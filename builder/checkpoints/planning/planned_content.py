"""All that the steps of a definition give, as it is after each of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from builder.checkpoints.planning.tensor_table import StepEffect

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from builder.checkpoints.planning.tensor_table import PlannedTensor, SourceFile


@dataclass(frozen=True)
class PlannedContent:
    """All that the steps give: tensors by name, the files whose tensors were added as a whole, other files and where
    they come from, the changes to JSON files, digests that files must have, and what each step does."""

    tensors: Mapping[str, PlannedTensor] = field(default_factory=dict)
    added: frozenset[SourceFile] = frozenset()
    files: Mapping[str, SourceFile] = field(default_factory=dict)
    patches: Mapping[str, tuple[Mapping[str, Any], ...]] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)
    effects: tuple[StepEffect, ...] = ()


def after(content: PlannedContent, text: str, count: int, **changes: Any) -> PlannedContent:
    """The content after a step that does ``text`` to so many tensors."""
    return replace(content, effects=(*content.effects, StepEffect(text, count)), **changes)


def dtype_change(pairs: Iterable[tuple[str, str]]) -> str:
    """The dtypes that change, before and after, for the text of a step; empty where none does."""
    changes = sorted({f"{before} → {after}" for before, after in pairs if before != after})
    return f" ({', '.join(changes)})" if changes else ""
