"""The bake file of a build directory, which ``docker buildx bake`` builds without this program."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from builder.plan.model import StagedFile

if TYPE_CHECKING:
    from builder.definitions.image import ImageDefinition
    from builder.definitions.mod import Mod
    from builder.definitions.recipe import Recipe
    from builder.lock.model import Version

TARGET = "image"


def labels(
    definition: ImageDefinition,
    input_hash: str,
    mods: tuple[Mod, ...],
    versions: dict[str, Version],
    base: str,
    created: str,
    recipe: Recipe | None,
    models: tuple[str, ...],
) -> dict[str, str]:
    """What an image says of itself, so that a lost images.lock can be made again from the engine."""
    said = {
        "org.opencontainers.image.title": definition.repository,
        "org.opencontainers.image.description": definition.description,
        "org.opencontainers.image.created": created,
        "org.opencontainers.image.base.name": definition.base,
        "builder.definition": definition.name,
        "builder.input-hash": input_hash,
        "builder.base": base,
        "builder.mods": json.dumps({mod.name: mod.content_hash for mod in mods}),
        "builder.sources": json.dumps({name: [v.version, v.commit] for name, v in sorted(versions.items())}),
        "builder.recipe": recipe.file if recipe else "",
        "builder.models": json.dumps(models),
    }
    return {name: value for name, value in said.items() if value}


def bake_file(platform: str, labels: dict[str, str], epoch: int) -> StagedFile:
    """One target over the build directory itself. Attestations are off: they would change the digest of every build."""
    target: dict[str, Any] = {
        "context": ".",
        "dockerfile": "Dockerfile",
        "platforms": [platform],
        "args": {"SOURCE_DATE_EPOCH": str(epoch)},
        "labels": labels,
        "attest": [{"type": "provenance", "disabled": "true"}, {"type": "sbom", "disabled": "true"}],
    }
    text = json.dumps({"group": {"default": {"targets": [TARGET]}}, "target": {TARGET: target}}, indent=2)
    return StagedFile(f"{text}\n".encode())
