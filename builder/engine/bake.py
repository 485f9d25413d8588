"""Building with ``docker buildx bake``.

The result is given temporary names; a number's tag is set only when everything about the image has been checked.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.engine.endpoint import environment
from builder.engine.failure import failure
from builder.engine.faults import START_HINT
from builder.engine.images import remove
from builder.engine.log import Log
from builder.engine.progress import Event, Progress, Step
from builder.errors import BuilderError, EngineError

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from builder.engine.endpoint import Endpoint

BAKE_FILE = "bake.json"
# Exporting with zstd takes half the time of gzip, BuildKit's default, and unpacking a fifth; layers of the base image
# stay as they are. rewrite-timestamp is no choice: an engine always unpacks what it built, which BuildKit then refuses.
_OUTPUT = "type=image,compression=zstd"
_STOP_WAIT = 5.0


@dataclass(frozen=True)
class Secret:
    """A secret for RUN --mount=type=secret: from a file, or from a variable of the environment of the build."""

    id: str
    src: str = ""
    env: str = ""


@dataclass(frozen=True)
class Material:
    """Something BuildKit itself says it used: ``uri`` as it writes it, ``digest`` as ``algorithm:hex``."""

    uri: str
    digest: str


@dataclass(frozen=True)
class Baked:
    """A finished build: the engine's id of the image, the seconds it took, its steps, and what went into it."""

    id: str
    seconds: float
    steps: tuple[Step, ...]
    materials: tuple[Material, ...]


def bake(
    endpoint: Endpoint,
    directory: Path,
    *,
    name: str,
    secrets: Sequence[Secret],
    contexts: Mapping[str, str],
    log_path: Path,
    on_event: Callable[[Event], None],
    environ: Mapping[str, str],
    target: str = "image",
) -> Baked:
    """Builds one target of the bake file in ``directory`` and tags it ``name``; see `bake_targets`."""
    return bake_targets(
        endpoint,
        directory,
        names={target: name},
        secrets=secrets,
        contexts=contexts,
        log_path=log_path,
        on_event=on_event,
        environ=environ,
    )[target]


def bake_targets(
    endpoint: Endpoint,
    directory: Path,
    *,
    names: Mapping[str, str],
    secrets: Sequence[Secret],
    contexts: Mapping[str, str],
    log_path: Path,
    on_event: Callable[[Event], None],
    environ: Mapping[str, str],
) -> dict[str, Baked]:
    """Builds targets of ``directory``/bake.json in one go, each tagged with its name in ``names``.

    ``secrets`` and ``contexts`` (named build contexts: name -> folder, address or image) are given to every target,
    over what the bake file says. ``environ`` is the whole environment of the build. ``log_path`` gets the readable log
    while the build runs, ``on_event`` every event.

    Raises BuildFailedError, and EngineError where the engine went away. The names are temporary: after a failure or an
    interruption they are removed, since BuildKit names an image before the last thing that may go wrong (unpacking).
    """
    import shutil
    import tempfile
    from contextlib import suppress
    from pathlib import Path

    began = time.monotonic()
    work = Path(tempfile.mkdtemp(prefix="builder-"))
    try:
        # A fresh path each time: bake neither writes the file on failure nor deletes an old one.
        metadata = work / "metadata.json"
        arguments = _arguments(names, secrets, contexts, metadata)
        progress = _run(endpoint, directory, arguments, _environment(endpoint, environ), log_path, on_event)
        said = json.loads(metadata.read_bytes())
    except (KeyboardInterrupt, BuilderError):
        for name in names.values():
            with suppress(BuilderError):
                remove(endpoint, name)
        raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    seconds = time.monotonic() - began
    steps = tuple(progress.steps.values())
    return {target: Baked(_image_id(said[target]), seconds, steps, _materials(said[target])) for target in names}


def _arguments(
    names: Mapping[str, str],
    secrets: Sequence[Secret],
    contexts: Mapping[str, str],
    metadata: Path,
) -> list[str]:
    arguments = ["bake", "--progress=rawjson", f"--metadata-file={metadata}", "--file", BAKE_FILE]
    for target, name in names.items():
        arguments += ["--set", f"{target}.output={_OUTPUT},name={name}"]
    for secret in secrets:
        source = f"src={secret.src}" if secret.src else f"env={secret.env or secret.id}"
        arguments += ["--set", "*.secrets=" + ",".join(map(_field, (f"id={secret.id}", source)))]
    for context, place in contexts.items():
        arguments += ["--set", f"*.contexts.{context}={place}"]
    return [*arguments, *names]


def _field(text: str) -> str:
    """One field of a line that buildx reads as CSV."""
    return '"' + text.replace('"', '""') + '"' if any(mark in text for mark in ',"\n') else text


def _environment(endpoint: Endpoint, environ: Mapping[str, str]) -> dict[str, str]:
    return {
        **environ,
        **environment(endpoint),
        # With the default attestations the same build gets another digest every time.
        "BUILDX_NO_DEFAULT_ATTESTATIONS": "1",
        # Since buildx 0.20 bake asks before it reads outside its directory; secrets and contexts are there on purpose.
        "BUILDX_BAKE_ENTITLEMENTS_FS": "0",
    }


def _run(
    endpoint: Endpoint,
    directory: Path,
    arguments: Sequence[str],
    environ: Mapping[str, str],
    log_path: Path,
    on_event: Callable[[Event], None],
) -> Progress:
    import subprocess

    progress = Progress()
    rest: list[str] = []
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("w", encoding="utf-8", errors="replace") as file:
        log = Log(file)
        process = subprocess.Popen(
            [*_dying_with_us(), _program(endpoint), *endpoint.buildx[1:], *arguments],
            cwd=directory,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        with process:
            try:
                for line in process.stderr or ():
                    if (message := _object(line)) is None:
                        rest.append(line.rstrip("\n"))
                        log.text(line)
                        continue
                    for event in progress.feed(message):
                        log.write(event)
                        on_event(event)
                process.wait()
            finally:
                # KeyboardInterrupt, or whatever on_event raised: the build must not go on alone.
                _end(process)
        if process.returncode:
            raise failure(endpoint, progress, log, rest, process.returncode, str(log_path))
    return progress


def _program(endpoint: Endpoint) -> str:
    from shutil import which

    if found := which(endpoint.buildx[0]):
        return found
    raise EngineError(f"there is no {endpoint.buildx[0]}, which builds images", hint=START_HINT)


def _dying_with_us() -> list[str]:
    """A prefix that makes the kernel end buildx when this process is killed.

    Otherwise it would go on until it next writes to the closed pipe: at the end of a step that may take an hour.
    setpriv is part of util-linux, which Debian and Ubuntu always have.
    """
    from shutil import which

    return ["setpriv", "--pdeathsig", "TERM", "--"] if which("setpriv") else []


def _object(line: str) -> dict[str, Any] | None:
    if not line.startswith("{"):
        return None
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _end(process: subprocess.Popen[str]) -> None:
    """Ends a process that still runs: asks, waits, kills. Its output is read meanwhile, lest it wait for us."""
    import signal
    import subprocess
    from contextlib import suppress

    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    try:
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_STOP_WAIT)
    finally:
        process.kill()


def _image_id(said: Mapping[str, Any]) -> str:
    """The engine's id of the image: the manifest's digest on the containerd store, the config's on the classic one."""
    return str(said.get("containerimage.digest") or said["containerimage.config.digest"])


def _materials(said: Mapping[str, Any]) -> tuple[Material, ...]:
    """What the provenance in the metadata file names, in the form of SLSA 0.2 or of SLSA 1."""
    provenance = said.get("buildx.build.provenance") or {}
    used = provenance.get("materials") or provenance.get("buildDefinition", {}).get("resolvedDependencies") or ()
    return tuple(
        Material(str(material.get("uri", "")), f"{algorithm}:{value}")
        for material in used
        for algorithm, value in (material.get("digest") or {}).items()
    )
