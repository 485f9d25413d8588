"""The labels that describe an image, and reading them back if images.lock was lost.

The hashes of packages are too large for a label, because the engine sends all labels with every listing. They are in
the build directory.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from builder.lock.model import Version
from builder.lock.pins import BasePin, GitPin, IncludedPin, Pins, PullPin, SourcePin, WheelPin

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.definitions.image import ImageDefinition
    from builder.definitions.mods.mod import Mod
    from builder.definitions.recipes.recipe import Recipe

REPOSITORY = "org.opencontainers.image.title"
INPUT_HASH = "builder.input-hash"


@dataclass(frozen=True)
class ImageLabels:
    """The labels of an image, read back. ``pins`` are by definition, without Python packages."""

    repository: str
    definition: str
    input_hash: str
    mods: dict[str, str]
    versions: dict[str, Version]
    recipe: str | None
    revision: str | None
    models: tuple[str, ...]
    pins: dict[str, Pins]


def write(
    definition: ImageDefinition,
    input_hash: str,
    mods: tuple[Mod, ...],
    versions: dict[str, Version],
    base: str,
    created: str,
    recipe: Recipe | None,
    models: tuple[str, ...],
    pins: Mapping[str, Pins],
) -> dict[str, str]:
    """The labels of an image; the same inputs give the same labels. ``pins`` are those of all definitions that it is
    built from."""
    labels = {
        REPOSITORY: definition.repository,
        "org.opencontainers.image.description": definition.description,
        "org.opencontainers.image.created": created,
        "org.opencontainers.image.base.name": definition.base or "",
        "builder.definition": definition.name,
        INPUT_HASH: input_hash,
        "builder.base": base,
        "builder.mods": json.dumps({mod.name: mod.content_hash for mod in mods}),
        "builder.sources": json.dumps({name: [v.version, v.commit] for name, v in sorted(versions.items())}),
        "builder.pins": json.dumps(
            {name: _as_json(pins_of_definition) for name, pins_of_definition in sorted(pins.items())}
        ),
        "builder.recipe": recipe.file if recipe else "",
        "builder.revision": (recipe.revision if recipe else "") or "",
        "builder.models": json.dumps(models),
    }
    return {name: value for name, value in labels.items() if value}


def read(labels: Mapping[str, str]) -> ImageLabels | None:
    """Reads the labels of an image; None for an image that this program did not build, or whose labels are invalid."""
    try:
        image_labels = ImageLabels(
            repository=labels[REPOSITORY],
            definition=labels["builder.definition"],
            input_hash=labels[INPUT_HASH],
            mods=dict(json.loads(labels["builder.mods"])),
            versions={n: Version(*data) for n, data in json.loads(labels["builder.sources"]).items()},
            recipe=labels.get("builder.recipe"),
            revision=labels.get("builder.revision"),
            models=tuple(json.loads(labels["builder.models"])),
            pins={name: _pins(data) for name, data in json.loads(labels.get("builder.pins", "{}")).items()},
        )
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return None
    texts = (*image_labels.mods.values(), *image_labels.models)
    return image_labels if all(isinstance(value, str) for value in texts) else None


def _as_json(pins: Pins) -> dict[str, Any]:
    sources = {name: _fields(pin) for name, pin in sorted(pins.sources.items())}
    base = {"base": _fields(replace(pins.base, packages=()))} if pins.base else {}
    return {**base, **({"sources": sources} if sources else {})}


def _fields(pin: BasePin | SourcePin) -> dict[str, Any]:
    """The fields of a pin by the keys of images.lock; what a base is not read for is left out."""
    read_from_base = {"created", "packages"} if isinstance(pin, BasePin) else set()
    fields = {name: value for name, value in asdict(pin).items() if value or name not in read_from_base}
    return {"asked" if name == "requested" else name: value for name, value in fields.items()}


def _pins(data: Mapping[str, Any]) -> Pins:
    base = BasePin(**_renamed(data["base"])) if "base" in data else None
    return Pins(base, {name: _source(pin) for name, pin in data.get("sources", {}).items()})


def _source(data: Mapping[str, Any]) -> SourcePin:
    fields = _renamed(data)
    if "git" not in fields:
        return IncludedPin(**fields) if "base" in fields else WheelPin(**fields)
    return GitPin(**{**fields, "pulls": tuple(PullPin(**pull) for pull in fields["pulls"])})


def _renamed(data: Mapping[str, Any]) -> dict[str, Any]:
    return {"requested" if name == "asked" else name: value for name, value in data.items()}
