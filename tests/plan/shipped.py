"""Plans of the shipped definitions, with pins made up: every mode and platform that they are meant for."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from builder.definitions import image
from builder.definitions.image import FROM_VLLM, BaseSource, GitSource, ImageDefinition, Overrides, WheelSource
from builder.definitions.source_patches import SourcePatch
from builder.lock.model import (
    BasePin,
    GitPin,
    IncludedPin,
    LockedPackage,
    Pins,
    PythonPin,
    SourcePin,
    WheelPin,
)
from builder.plan.making import ImageInputs, make_plan
from builder.plan.plan_model import Plan
from tests import shipped_files

DIFF = b"diff --git a/vllm/x.py b/vllm/x.py\n"
SHA256 = hashlib.sha256(DIFF).hexdigest()
DATE = "2026-11-19T10:00:00Z"
MODES = [
    ("cpu", "wheel"),
    ("tf5", "git"),
    ("tf5", "wheel"),
    ("tf5-wheel", "wheel"),
    ("dflash", "git"),
    ("flashqla", "git"),
    ("node", "base"),
    ("node-b12x", "base"),
    ("openai", "base"),
]
PLATFORMS = ["linux/arm64", "linux/amd64"]
WHEELS = {"vllm": "vllm==0.19.1", "flashinfer": "flashinfer-python==0.6.7"}


def plan(name: str, mode: str, platform: str) -> Plan:
    """The plan of the definition ``name`` with its sources from git, or as wheels."""
    project = shipped_files.project()
    made: Plan | None = None
    for definition in image.load_chain(project, name, platform, Overrides(platform)):
        wanted = _as_wheels(definition) if mode == "wheel" else definition
        made = make_plan(ImageInputs(wanted, pins(wanted), {SHA256: DIFF}, ()), made)
    assert made is not None
    return made


def plan_with_pull(name: str, platform: str, number: int) -> Plan:
    """The plan of the definition ``name`` with its sources from git, and a pull request on vLLM."""
    return plan_with_patch(name, platform, SourcePatch(str(number)))


def plan_with_patch(name: str, platform: str, patch: SourcePatch) -> Plan:
    (definition,) = image.load_chain(shipped_files.project(), name, platform, Overrides(platform))
    vllm = definition.sources["vllm"]
    assert isinstance(vllm, GitSource)
    patched = replace(definition, sources={**definition.sources, "vllm": replace(vllm, patches=(patch,))})
    return make_plan(ImageInputs(patched, pins(patched), {SHA256: DIFF}, ()))


def _as_wheels(definition: ImageDefinition) -> ImageDefinition:
    sources = {name: WheelSource(WHEELS[name]) for name in definition.git_sources}
    return replace(definition, sources={**definition.sources, **sources})


def pins(definition: ImageDefinition) -> Pins:
    packages = tuple(
        LockedPackage(name, "1.0", (digit * 64,))
        for name, digit in (("torch", "1"), ("transformers", "2"), ("uv", "3"), (f"for-{definition.name}", "4"))
    )
    closure = PythonPin(("as asked",), DATE, packages)
    return Pins(
        base=_base(definition) if definition.base else None,
        sources={name: _source_pin(definition, name) for name in definition.sources},
        python=closure if definition.python else None,
        build=closure if definition.git_sources else None,
    )


def _base(definition: ImageDefinition) -> BasePin:
    brought = (LockedPackage("torch", "2.13.0+cu130", ()),) if definition.base_sources else ()
    return BasePin(str(definition.base), "sha256:" + "b" * 64, DATE if brought else "", brought)


def _source_pin(definition: ImageDefinition, name: str) -> SourcePin:
    source = definition.sources[name]
    if isinstance(source, BaseSource):
        return IncludedPin("sha256:" + "b" * 64, "0.23.1rc1.dev12+gaaaaaaa", "a" * 40)
    if isinstance(source, WheelSource):
        return WheelPin(source.requested, source.requirement.partition("==")[2] or "0.6.7")
    patches = tuple(replace(patch, head="c" * 40, sha256=SHA256) for patch in source.patches)
    ref = f"{source.ref}/{'a' * 12}" if source.ref == FROM_VLLM else source.ref
    return GitPin(source.git, ref, "a" * 40, "0.19.2.dev31+gaaaaaaa", DATE, patches)
