"""Definitions and pins become a plan."""

from __future__ import annotations

import hashlib
import json
from datetime import datetime
from typing import TYPE_CHECKING

from builder.lock.model import Version
from builder.plan import bake, dockerfile, python
from builder.plan.model import WORKSPACE, ImageCheck, Plan, StagedFile, Step, input_hash

if TYPE_CHECKING:
    from builder.definitions.image import ImageDefinition
    from builder.definitions.mod import Mod
    from builder.definitions.recipe import Recipe
    from builder.lock.pins import Pins


def make(
    definition: ImageDefinition,
    mods: tuple[Mod, ...],
    pins: Pins,
    recipe: Recipe | None = None,
    models: tuple[str, ...] = (),
) -> Plan:
    """The plan of one build. ``pins`` must cover all that the definition asks for."""
    base = base_reference(pins)
    versions = {source: Version(pin.version, pin.commit) for source, pin in sorted(pins.sources.items())}
    groups = python.groups(definition.python) if definition.python else ()
    text = dockerfile.render(definition, base, mods, groups, versions)
    created = pins.python.newest if pins.python else "1980-01-01T00:00:00Z"
    epoch = int(datetime.fromisoformat(created).timestamp())
    content = {
        "Dockerfile": StagedFile(text.encode()),
        "build-metadata.yaml": _metadata(definition, base, versions, created),
        **(python.files(pins.python, groups) if pins.python else {}),
        **{f"mods/{m.name}/{f.path}": StagedFile(f.content, f.executable) for m in mods for f in m.files},
    }
    steps = _steps(definition, base, mods, pins, content)
    hashed = input_hash(steps)
    labels = bake.labels(definition, hashed, mods, versions, base, created, recipe, models)
    return Plan(
        definition=definition,
        pins=pins,
        mods=mods,
        steps=steps,
        files={
            **content,
            "bake.json": bake.bake_file(definition.platform, labels, epoch),
            "plan.json": steps_file(steps),
        },
        versions=versions,
        checks=tuple(ImageCheck(mod.name, check) for mod in mods for check in mod.checks),
        epoch=epoch,
        remarks=tuple(_remarks(mods, recipe)),
    )


def base_reference(pins: Pins) -> str:
    """The base image as FROM takes it: by digest, or by tag alone for an image that only this engine has."""
    if pins.base is None:
        raise ValueError("the base is not pinned")
    if pins.base.resolved.startswith("local:"):
        return pins.base.asked
    return f"{pins.base.asked}@{pins.base.resolved}"


def steps_file(steps: tuple[Step, ...]) -> StagedFile:
    """The steps as kept in the build directory, for telling what changed since."""
    listed = [{"name": step.name, "takes": step.takes} for step in steps]
    return StagedFile(f"{json.dumps({'steps': listed}, indent=2, ensure_ascii=False)}\n".encode())


def _steps(
    definition: ImageDefinition, base: str, mods: tuple[Mod, ...], pins: Pins, content: dict[str, StagedFile]
) -> tuple[Step, ...]:
    resolved = pins.base.resolved if pins.base else base
    steps = [Step("base", {"image": definition.base, "content": resolved, "platform": definition.platform})]
    steps += [
        Step(name, {"wanted": pin.asked, "version": pin.version, **({"commit": pin.commit} if pin.commit else {})})
        for name, pin in sorted(pins.sources.items())
    ]
    if pins.python:
        # Every file's hash counts; the version alone is what a person is told.
        listed = {p.name: f"{p.version} {_sha256(' '.join(p.hashes).encode())[:12]}" for p in pins.python.packages}
        steps.append(Step("python packages", listed))
    steps.append(Step("Dockerfile", {"text": _sha256(content["Dockerfile"].content)}))
    steps.append(Step("build-metadata.yaml", {"text": _sha256(content["build-metadata.yaml"].content)}))
    steps += [Step(f"mod {mod.name}", {"content": mod.content_hash}) for mod in mods]
    return tuple(steps)


def _remarks(mods: tuple[Mod, ...], recipe: Recipe | None) -> list[str]:
    said = [
        f"mod {mod.name} has no mod.yaml: what it downloads, if anything, is not pinned"
        for mod in mods
        if not mod.described
    ]
    if recipe and recipe.ignored_build_args:
        ignored = " ".join(recipe.ignored_build_args)
        said.append(f"{recipe.file}: build_args mean nothing here and are ignored: {ignored}")
    return said


def _metadata(definition: ImageDefinition, base: str, versions: dict[str, Version], created: str) -> StagedFile:
    """The keys that existing tools read from an image; JSON strings are YAML too."""
    vllm = versions.get("vllm")
    flashinfer = versions.get("flashinfer")
    said = {
        "build_date": created,
        "vllm_version": vllm.version if vllm else None,
        "vllm_commit": vllm.commit if vllm else None,
        "flashinfer_commit": flashinfer.commit if flashinfer else None,
        "gpu_arch": definition.args.get("gpu_arch"),
        "base_image": base,
        "build_args": definition.args,
        "workspace": WORKSPACE,
    }
    return StagedFile("".join(f"{key}: {json.dumps(value)}\n" for key, value in said.items()).encode())


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
