"""The files of a result that are no weights: taken over as they are, JSON files with their changes, the index, and the
model card."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from builder.checkpoints.planning import index, layout
from builder.errors import SourceError

if TYPE_CHECKING:
    from builder.checkpoints.checkpoint_plan import CheckpointPlan
    from builder.checkpoints.source_files import SourceContents

LARGEST = 256 << 20
"""The most bytes of such a file: tokenizers have some ten million."""


def contents(plan: CheckpointPlan) -> dict[str, bytes]:
    """The files by name. Raises SourceError for one that cannot be read, or is no JSON where it is changed."""
    made: dict[str, bytes] = {}
    for name, file in plan.content.files.items():
        source = plan.sources[file.source]
        if plan.size_of(file) > LARGEST:
            raise SourceError(f"{source.shown(file.path)} has more than {LARGEST:,} bytes: `files` leaves it out")
        text = source.read(file.path, 0, LARGEST)
        patches = plan.content.patches.get(name, ())
        made[name] = _patched(text, patches, source, file.path) if patches else text
    if plan.index is not None:
        made[index.NAME] = plan.index
    made[layout.README] = _card(plan).encode()
    return made


def _patched(text: bytes, patches: tuple[Mapping[str, Any], ...], source: SourceContents, path: str) -> bytes:
    try:
        data = json.loads(text.decode())
    except (ValueError, RecursionError):
        raise SourceError(f"{source.shown(path)} is not JSON, and is to be changed") from None
    for patch in patches:
        data = merged(data, patch)
    return (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode()


def merged(target: Any, patch: Any) -> Any:
    """``target`` changed by a JSON merge patch (RFC 7396): null removes a key."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def _card(plan: CheckpointPlan) -> str:
    """The model card: what it is, what it was made from and by which steps. It holds nothing that differs between two
    machines."""
    definition = plan.definition
    models = [source.snapshot.model for source in plan.sources.values() if source.snapshot]
    head = {
        "base_model": models,
        "base_model_relation": "merge" if len(models) > 1 else "quantized",
        **({"license": definition.license} if definition.license else {}),
    }
    sources = [
        f"- `{name}`: {source.requested}" + (f", commit `{source.snapshot.commit}`" if source.snapshot else "")
        for name, source in plan.sources.items()
    ]
    steps = [f"{number}. {effect.text}" for number, effect in enumerate(plan.content.effects, 1)]
    mods = ", ".join(f"`{mod}`" for mod in definition.mods)
    needs = ["", f"An image needs {'these mods' if len(definition.mods) > 1 else 'this mod'}: {mods}."] if mods else []
    return "\n".join(
        (
            "---",
            # JSON is YAML, whatever the names have in them.
            *(f"{key}: {json.dumps(value)}" for key, value in head.items()),
            "---",
            "",
            f"# {definition.name}",
            "",
            definition.description,
            "",
            f"A form of {definition.model}, made by recorded steps from",
            "",
            *sources,
            "",
            *steps,
            *needs,
            "",
            "Nothing is said here of its quality: what was measured is evidence, and kept beside the images.",
            "",
        )
    )
