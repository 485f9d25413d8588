"""BuildKit builds images through docker buildx bake. An image has temporary names until it has passed every check."""

from __future__ import annotations

import json
import re
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING, Any

from builder.base.errors import BuilderError, EngineError
from builder.base.files import naming
from builder.base.processes import read_ahead, tied_to_parent
from builder.base.values import dataclass
from builder.engine import client
from builder.engine.build_log import EXPORTING, BuildLog, BuildProgress, Event, LayersPacked, StepProgress, build_error
from builder.engine.client import Endpoint, environment, request
from builder.engine.images import remove_image
from builder.engine.machine import INSTALL_HINT

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from builder.engine.build_log import StepFinished, StepMemory


_STOP_WAIT = 5.0


def run_buildx(
    endpoint: Endpoint,
    directory: Path,
    arguments: Sequence[str],
    environ: Mapping[str, str],
    log_path: Path,
    on_event: Callable[[Event], None],
) -> tuple[BuildProgress, tuple[StepMemory, ...]]:
    """Runs buildx with ``arguments`` in ``directory``, writes its log and reports its events. Returns the final state,
    and the memory of the steps that compiled. ``environ`` is the whole environment. Raises BuildFailedError;
    EngineError if buildx is missing or the engine does not answer. Any exception, such as ^C, also ends buildx."""
    import subprocess
    from shutil import which

    program = which(endpoint.buildx[0])
    if program is None:
        raise EngineError(f"the program `{endpoint.buildx[0]}`, which builds images, was not found", hint=INSTALL_HINT)
    progress = BuildProgress()
    other_lines: list[str] = []
    followed = endpoint.builds_elsewhere  # buildx reports the amounts of such a BuildKit
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with naming(log_path), log_path.open("w", encoding="utf-8", errors="replace") as file, ExitStack() as export:
        log = BuildLog(file)
        process = subprocess.Popen(
            [*tied_to_parent(), program, *endpoint.buildx[1:], *arguments],
            cwd=directory,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        # BuildKit cancels a build if nobody reads its messages for some seconds, such as while a terminal is paused.
        messages, process.stderr = process.stderr, None
        with process:
            try:
                for line in read_ahead(messages) if messages else ():
                    if (message := client.parse_json_line(line)) is None:
                        other_lines.append(line.rstrip("\n"))
                        log.write_line(line)
                        continue
                    for event in progress.feed(message):
                        log.write(event)
                        on_event(event)
                        if not followed and isinstance(event, StepProgress) and event.what == EXPORTING:
                            followed = True
                            export.enter_context(_packing_reported(endpoint, event.step, on_event))
                process.wait()
            finally:
                # After KeyboardInterrupt or an exception from on_event, the build must not continue alone.
                _end(process)
        if process.returncode:
            raise build_error(endpoint, progress, log, other_lines, process.returncode, str(log_path))
    return progress, log.compiled


def _end(process: subprocess.Popen[str]) -> None:
    """Ends a process that still runs: interrupts it, waits, and kills it. Its output is read ahead: it cannot block."""
    import signal
    import subprocess

    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    try:
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_STOP_WAIT)
    finally:
        process.kill()


# Builds with ``docker buildx bake``. The image gets temporary names; it gets the tag of its number only after every
# check.

BAKE_FILE = "bake.json"
# Packing 4.7 GB of a cpu image on two cores: 49 s with zstd's level 1, 120 s with its default level (2 % smaller), 124
# s with gzip, BuildKit's default (docs/benchmarks.md has a second measurement). Unpacking takes a fifth of gzip's time.
# The classic image store packs nothing, and ignores the option. Existing layers, such as the layers of the base image,
# stay unchanged. rewrite-timestamp is not possible: BuildKit refuses it with unpacking, and an engine always unpacks.
_OUTPUT = "type=image,compression=zstd,compression-level=1"
# A BuildKit outside the engine sends the image to buildx, which loads it into the engine.
_LOADED = "type=docker"
# Or that BuildKit pushes the image without a tag to a registry. The engine then pulls the missing layers.
_BY_DIGEST = f"{_OUTPUT},push=true,push-by-digest=true,name-canonical=true"


_ENVIRONMENT = {
    # With the default attestations the same build gets a new digest every time.
    "BUILDX_NO_DEFAULT_ATTESTATIONS": "1",
    # The user may have turned off the provenance, from which the base of the image is read (`BakeResult.materials`).
    "BUILDX_METADATA_PROVENANCE": "min",
    # Otherwise buildx runs git in the project, and the settings of the repository may name programs for git to run.
    "BUILDX_GIT_INFO": "false",
    # Since buildx 0.20 bake asks before it reads outside its directory. Secrets and contexts are outside on purpose.
    "BUILDX_BAKE_ENTITLEMENTS_FS": "0",
}


@dataclass(frozen=True)
class Material:
    """A source in BuildKit's provenance of a build: ``uri`` as BuildKit writes it, ``digest`` as ``algorithm:hex``."""

    uri: str
    digest: str


@dataclass(frozen=True)
class BakeResult:
    """A finished build: the engine's id of the image, the steps, the memory for compiling, and the materials."""

    id: str
    steps: tuple[StepFinished, ...]
    compiled: tuple[StepMemory, ...]
    materials: tuple[Material, ...]


def bake_targets(
    endpoint: Endpoint,
    directory: Path,
    *,
    names: Mapping[str, str],
    log_path: Path,
    on_event: Callable[[Event], None],
    environ: Mapping[str, str],
    pushed: Mapping[str, str] | None = None,
) -> dict[str, BakeResult]:
    """Builds targets of ``directory``/bake.json at once, each tagged with its name in ``names``. Targets in ``pushed``
    are pushed by digest to a repository of a registry, and not loaded into the engine. ``environ`` is the whole
    environment of the build, with its secrets. Raises BuildFailedError; EngineError if the engine stopped. After an
    error the names are removed: BuildKit names an image before unpacking, which may fail."""
    # buildx writes this file at the end, and does not delete an existing one.
    metadata = directory.absolute() / "metadata.json"
    metadata.unlink(missing_ok=True)
    output = _LOADED if endpoint.builds_elsewhere else _OUTPUT
    outputs = {target: f"{output},name={name}" for target, name in names.items()}
    outputs |= {target: f"{_BY_DIGEST},name={repository}" for target, repository in (pushed or {}).items()}
    try:
        arguments = ["bake", "--progress=rawjson", f"--metadata-file={metadata}", "--file", BAKE_FILE]
        arguments += [word for target, output in outputs.items() for word in ("--set", f"{target}.output={output}")]
        every = {**environ, **environment(endpoint), **_ENVIRONMENT}
        progress, compiled = run_buildx(endpoint, directory, [*arguments, *outputs], every, log_path, on_event)
        results = json.loads(metadata.read_bytes())
    except (KeyboardInterrupt, BuilderError):
        for name in names.values():
            with suppress(BuilderError):
                remove_image(endpoint, name)
        raise
    finally:
        metadata.unlink(missing_ok=True)
    steps = tuple(progress.steps.values())
    built = {}
    for target in names:
        result = results[target]
        # The engine's id is the digest of the manifest on the containerd store, else the digest of the config.
        image_id = str(result.get("containerimage.digest") or result["containerimage.config.digest"])
        built[target] = BakeResult(image_id, steps, compiled, _materials(result))
    return built


def _materials(result: Mapping[str, Any]) -> tuple[Material, ...]:
    """Returns the materials of the provenance in the metadata file, which has the format of SLSA 0.2 or SLSA 1."""
    provenance = result.get("buildx.build.provenance") or {}
    materials = provenance.get("materials") or provenance.get("buildDefinition", {}).get("resolvedDependencies") or ()
    return tuple(
        Material(str(material.get("uri", "")), f"{algorithm}:{value}")
        for material in materials
        for algorithm, value in (material.get("digest") or {}).items()
    )


# The bytes of layers that the engine's BuildKit has packed so far. buildx 0.29 reports ``exporting layers`` without an
# amount. BuildKit's content store has the amount, and every user who may build may read that store:
# https://github.com/moby/buildkit/blob/master/control/control.go (roContentStore), and
# api/services/content/v1/content.proto of containerd. One gRPC call needs few of HTTP/2's frames (RFC 9113).

_UPGRADE = b"POST /grpc HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 0\r\n\r\n"
_METHOD = "/containerd.services.content.v1.Content/ListStatuses"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_END, _WHOLE, _ACKNOWLEDGED = 1, 4, 1  # flags
_ANSWER_SECONDS = 10.0
_REPORT_SECONDS = 1.0
# A Status in protobuf's encoding: its ref (field 3) and its offset (4). The ref of a layer that BuildKit packs is a
# random word; the ref of a layer that the engine pulls contains a digest.
_STATUS = re.compile(rb"\x1a.([a-z0-9]{20,})\x20([\x80-\xff]*[\x00-\x7f])", re.DOTALL)


@contextmanager
def _packing_reported(endpoint: Endpoint, step: str, on_event: Callable[[LayersPacked], None]) -> Iterator[None]:
    """Reports the bytes that ``step`` has packed since the block began, each second in which they grew. Reports nothing
    with the classic image store, which packs no layers. Other builds that export at the same time are also counted."""
    over = threading.Event()

    def follow() -> None:
        sizes: dict[bytes, int] = {}
        listings = _packed_sizes(endpoint)
        with suppress(OSError, EngineError):
            while not over.wait(_REPORT_SECONDS):
                before = sum(sizes.values())
                sizes |= next(listings, {})
                if (amount := sum(sizes.values())) > before:
                    on_event(LayersPacked(step, amount))

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_REPORT_SECONDS)


def _packed_sizes(endpoint: Endpoint) -> Iterator[dict[bytes, int]]:
    """Yields the sizes of the layers that are being packed now, by name. Each `next` asks the engine."""
    headers = {":method": "POST", ":scheme": "http", ":path": _METHOD, ":authority": "docker"}
    headers["content-type"] = "application/grpc"
    # Each header is a literal without a table (RFC 7541, 6.2.2).
    block = b"".join(b"\0" + b"".join(bytes((len(x),)) + x.encode() for x in pair) for pair in headers.items())
    with client.connected(endpoint, _ANSWER_SECONDS) as (connection, _):
        connection.sendall(_UPGRADE)
        stream = connection.makefile("rb")
        upgraded = b" 101 " in stream.readline()
        while upgraded and stream.readline().strip():
            pass
        # The window is so large that no answer needs another update.
        window = _frame(_WINDOW, 0, 0, (2**31 - 2**16).to_bytes(4, "big"))
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(_SETTINGS, 0, 0) + window)
        for number in count(1, 2) if upgraded else ():
            connection.sendall(_frame(_HEADERS, _WHOLE, number, block) + _frame(_DATA, _END, number, bytes(5)))
            answer, ended = b"", False
            while not ended:
                head = stream.read(9)
                content = stream.read(int.from_bytes(head[:3], "big"))
                if len(head) < 9 or head[3] in (_RESET, _GOAWAY):
                    return
                kind, flags = head[3], head[4]
                if kind in (_SETTINGS, _PING) and not flags & _ACKNOWLEDGED:
                    connection.sendall(_frame(kind, _ACKNOWLEDGED, 0, content if kind == _PING else b""))
                answer += content if kind == _DATA else b""
                ended = kind in (_DATA, _HEADERS) and bool(flags & _END)
            yield {
                ref: sum((byte & 127) << 7 * place for place, byte in enumerate(offset))
                for ref, offset in _STATUS.findall(answer)
            }


def _frame(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
    return len(content).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + content


# BuildKit's build cache: layers and cache mounts of earlier builds. A record has no labels, but it names its step of a
# Dockerfile.

_WAIT = 600.0
_PAUSES = (0.05, 0.2, 0.5, 1.0, 1.0)  # seconds between listings
_STEP = re.compile(
    r'(?:mount / from exec /bin/sh -c |cached mount \S+ from exec /bin/sh -c |\[[^\]]*\] )(.*?)(?: with id "[^"]*")?',
    re.DOTALL,
)


@dataclass(frozen=True)
class CacheRecord:
    """A record of the build cache. ``step`` is the command or instruction that made it, empty for any other origin;
    ``size`` is in bytes; ``shared`` marks a layer that an image also uses."""

    id: str
    step: str
    size: int
    shared: bool
    in_use: bool


def records(endpoint: Endpoint) -> tuple[CacheRecord, ...]:
    usage = request(endpoint, "GET", "/system/df", query={"type": "build-cache"}, timeout=_WAIT)
    collected = []
    for record in usage.get("BuildCache") or ():
        step, size = _step(record.get("Description") or ""), record.get("Size") or 0
        flags = bool(record.get("Shared")), bool(record.get("InUse"))
        collected.append(CacheRecord(record["ID"], step, size, *flags))
    return tuple(collected)


def settled_records(endpoint: Endpoint) -> tuple[CacheRecord, ...]:
    """Returns all records after two consecutive listings mark the same records as shared. For a moment after an image
    was removed, the engine marks only some or none (seen with 28.5). After some seconds the last listing counts."""
    before: frozenset[str] = frozenset()
    for pause in _PAUSES:
        listing = records(endpoint)
        marked = frozenset(record.id for record in listing if record.shared)
        if marked and marked == before:
            return listing
        before = marked
        time.sleep(pause)
    return records(endpoint)


def remove_build_cache(endpoint: Endpoint, ids: Iterable[str]) -> int:
    """Removes these records, except records that others are based on. Returns the bytes that BuildKit freed."""
    selected = sorted(ids)
    if not selected:
        return 0
    # The engine accepts one value for a filter. The value of this filter is a regular expression.
    filters = json.dumps({"id": [f"^({'|'.join(map(re.escape, selected))})$"]})
    result = request(endpoint, "POST", "/build/prune", query={"all": 1, "filters": filters}, timeout=_WAIT)
    return int(result.get("SpaceReclaimed") or 0)


def _step(description: str) -> str:
    match = _STEP.fullmatch(description)
    return match[1].strip() if match else ""
