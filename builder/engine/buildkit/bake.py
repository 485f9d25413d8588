"""Builds with ``docker buildx bake``.

The result gets temporary names; a number's tag is set only after every check of the image.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.engine.buildkit import buildx
from builder.engine.client.endpoint import environment
from builder.engine.images import remove
from builder.errors import BuilderError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from builder.engine.buildkit.memory import StepMemory
    from builder.engine.buildkit.progress import BuildStep, Event
    from builder.engine.client.endpoint import Endpoint

BAKE_FILE = "bake.json"
# Exporting with zstd takes half the time of gzip, BuildKit's default, and unpacking a fifth; layers of the base image
# stay as they are. rewrite-timestamp is no option: BuildKit refuses it with unpacking, which an engine always does.
_OUTPUT = "type=image,compression=zstd"
# Another BuildKit than the engine's own sends the image to buildx, which loads it into the engine.
_LOADED = "type=docker"
# Or it pushes the image to a registry without a tag, from which the engine pulls the layers it lacks.
_BY_DIGEST = "type=image,compression=zstd,push=true,push-by-digest=true,name-canonical=true"


@dataclass(frozen=True)
class Secret:
    """A secret for RUN --mount=type=secret: from a file, or from a variable of the build's environment."""

    id: str
    src: str = ""
    env: str = ""


@dataclass(frozen=True)
class Material:
    """A source in BuildKit's provenance of a build: ``uri`` as BuildKit writes it, ``digest`` as ``algorithm:hex``."""

    uri: str
    digest: str


@dataclass(frozen=True)
class BakeResult:
    """A finished build: the engine's id of the image, the duration in seconds, the steps, the memory of those that
    compiled, and the materials."""

    id: str
    seconds: float
    steps: tuple[BuildStep, ...]
    compiled: tuple[StepMemory, ...]
    materials: tuple[Material, ...]


def bake_targets(
    endpoint: Endpoint,
    directory: Path,
    *,
    names: Mapping[str, str],
    secrets: Sequence[Secret],
    contexts: Mapping[str, str],
    args: Mapping[str, str],
    log_path: Path,
    on_event: Callable[[Event], None],
    environ: Mapping[str, str],
    cache: Mapping[str, str] | None = None,
    pushed: Mapping[str, str] | None = None,
) -> dict[str, BakeResult]:
    """Builds targets of ``directory``/bake.json at once, each tagged with its name in ``names``.

    ``secrets``, ``contexts`` (named build contexts: name -> folder, address or image) and build ``args`` apply to every
    target, in addition to what the bake file says; the values of ``args`` are no arguments of buildx, which anybody may
    list.
    ``cache`` is the build cache's source and destination (``from``, ``to``: as buildx writes them). Targets in
    ``pushed`` (with a repository of a registry for each) are pushed there by their digests, and not loaded into the
    engine. ``environ`` is the whole environment of the build. ``log_path`` gets the readable log while the build runs,
    ``on_event`` every event.

    Raises BuildFailedError, and EngineError where the engine stopped. The names are temporary: after a failure or an
    interruption they are removed, since BuildKit names an image before its last step that may fail (unpacking).
    """
    from contextlib import suppress

    began = time.monotonic()
    # buildx writes this file at the very end, and does not delete an old one.
    metadata = directory.absolute() / "metadata.json"
    metadata.unlink(missing_ok=True)
    output = _LOADED if endpoint.builds_elsewhere else _OUTPUT
    outputs = {target: f"{output},name={name}" for target, name in names.items()}
    outputs |= {target: f"{_BY_DIGEST},name={repository}" for target, repository in (pushed or {}).items()}
    try:
        targets = json.loads((directory / BAKE_FILE).read_bytes())["target"]
        arguments = _arguments(targets, outputs, secrets, contexts, args, metadata, cache or {})
        progress, compiled = buildx.run(
            endpoint, directory, arguments, _environment(endpoint, {**environ, **args}), log_path, on_event
        )
        results = json.loads(metadata.read_bytes())
    except (KeyboardInterrupt, BuilderError):
        for name in names.values():
            with suppress(BuilderError):
                remove(endpoint, name)
        raise
    finally:
        metadata.unlink(missing_ok=True)
    seconds = time.monotonic() - began
    steps = tuple(progress.steps.values())
    return {
        target: BakeResult(_image_id(results[target]), seconds, steps, compiled, _materials(results[target]))
        for target in names
    }


def _arguments(
    targets: Mapping[str, Any],
    outputs: Mapping[str, str],
    secrets: Sequence[Secret],
    contexts: Mapping[str, str],
    args: Iterable[str],
    metadata: Path,
    cache: Mapping[str, str],
) -> list[str]:
    arguments = ["bake", "--progress=rawjson", f"--metadata-file={metadata}", "--file", BAKE_FILE]
    for target, output in outputs.items():
        arguments += ["--set", f"{target}.output={output}"]
        for direction, location in cache.items():
            arguments += ["--set", f"{target}.cache-{direction}={location}"]
    # `--set` replaces the secrets that a target has in the bake file.
    given = [
        ",".join(
            map(_field, (f"id={secret.id}", f"src={secret.src}" if secret.src else f"env={secret.env or secret.id}"))
        )
        for secret in secrets
    ]
    for target, definition in targets.items():
        for option in (*definition.get("secret", ()), *given):
            arguments += ["--set", f"{target}.secrets={option}"]
    for context, location in contexts.items():
        arguments += ["--set", f"*.contexts.{context}={location}"]
    for arg in args:
        arguments += ["--set", f"*.args.{arg}"]
    return [*arguments, *outputs]


def _field(text: str) -> str:
    """Quotes a field of a line that buildx reads as CSV."""
    return '"' + text.replace('"', '""') + '"' if any(mark in text for mark in ',"\n') else text


def _environment(endpoint: Endpoint, environ: Mapping[str, str]) -> dict[str, str]:
    return {
        **environ,
        **environment(endpoint),
        # With the default attestations the same build gets a new digest every time.
        "BUILDX_NO_DEFAULT_ATTESTATIONS": "1",
        # Otherwise buildx runs git in the project, whose repository may name programs for it.
        "BUILDX_GIT_INFO": "false",
        # Since buildx 0.20 bake asks before it reads outside its directory, where secrets and contexts are on purpose.
        "BUILDX_BAKE_ENTITLEMENTS_FS": "0",
    }


def _image_id(result: Mapping[str, Any]) -> str:
    """Returns the engine's id of the image: the manifest's digest on the containerd store, else the config's."""
    return str(result.get("containerimage.digest") or result["containerimage.config.digest"])


def _materials(result: Mapping[str, Any]) -> tuple[Material, ...]:
    """Returns the materials of the provenance in the metadata file, in the form of SLSA 0.2 or of SLSA 1."""
    provenance = result.get("buildx.build.provenance") or {}
    materials = provenance.get("materials") or provenance.get("buildDefinition", {}).get("resolvedDependencies") or ()
    return tuple(
        Material(str(material.get("uri", "")), f"{algorithm}:{value}")
        for material in materials
        for algorithm, value in (material.get("digest") or {}).items()
    )
