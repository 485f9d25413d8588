"""The bake file of a build directory, which ``docker buildx bake`` builds without this program."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from builder.plan.model import StagedFile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.lock.pins import GitPin

TARGET = "image"


def target(platform: str, epoch: int, sources: Mapping[str, GitPin], parent: str | None) -> dict[str, Any]:
    """A target that builds the build directory; the parent image is another target of the same file.

    Attestations are off: they would change the digest of every build.
    """
    contexts = {source_context(name): f"{pin.git}#{pin.commit}" for name, pin in sorted(sources.items())}
    if parent:
        contexts[parent] = f"target:{parent}"
    return {
        "context": ".",
        "dockerfile": "Dockerfile",
        **({"contexts": contexts} if contexts else {}),
        "platforms": [platform],
        "args": {"SOURCE_DATE_EPOCH": str(epoch)},
        "attest": [{"type": "provenance", "disabled": "true"}, {"type": "sbom", "disabled": "true"}],
    }


def source_context(source: str) -> str:
    """The named build context that holds a source taken from git: ``vllm-source``."""
    return f"{source}-source"


def bake_file(targets: Mapping[str, Any]) -> StagedFile:
    """The bake file, which builds the last image of the chain."""
    text = json.dumps({"group": {"default": {"targets": [TARGET]}}, "target": targets}, indent=2)
    return StagedFile(f"{text}\n".encode())
