"""The doctor verb: what would keep a build from working, found before it is tried."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from builder.building import mod_selection
from builder.definitions import image
from builder.definitions.mods import mod_reading
from builder.definitions.recipes import recipe, recipe_problems
from builder.engine.client import endpoint as endpoints
from builder.engine.client import versions
from builder.errors import BuilderError
from builder.events import ignore
from builder.lock import lost, reading
from builder.lock.file_problems import TAKE_BACK
from builder.numbered import status
from builder.sources import environment
from builder.workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from builder.engine.client.endpoint import Endpoint
    from builder.project import Project

GB = 1000**3
# A GPU image is 19 to 35 GB, and BuildKit holds about as much again while it is made.
ROOM_FOR_A_GPU_IMAGE = 80 * GB
ROOM_FOR_ANY_IMAGE = 12 * GB
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
# What BuildKit writes where it leaves the rest of a step's output out.
_CLIPPED = "[output clipped, log limit"
_LOGS_READ = 20


@dataclass(frozen=True)
class Diagnosis:
    """One thing looked at. ``remedy`` is what to do, empty where all is well."""

    subject: str
    verdict: Literal["ok", "warning", "error"]
    said: str
    remedy: str = ""


def run(project: Project, environ: Mapping[str, str], driver: Path = NVIDIA_DRIVER) -> tuple[Diagnosis, ...]:
    """Every finding, the good ones too. ``driver`` is a file that is there where the machine has an NVIDIA GPU."""
    findings: list[Diagnosis] = []
    try:
        endpoint = endpoints.find(environ)
        findings += _engine(endpoint, driver)
    except BuilderError as error:
        endpoint = None
        findings.append(Diagnosis("engine", "error", error.message, error.hint))
    findings += _files(project)
    findings += _lock(project, endpoint, environ)
    findings += _logs(project)
    findings += _settings(environ)
    findings += _proxies(environ)
    return tuple(findings)


def _engine(endpoint: Endpoint, driver: Path) -> Iterator[Diagnosis]:
    found = versions.require_supported(endpoint)
    yield Diagnosis("engine", "ok", f"Docker {found.engine} on {found.platform} at {endpoint.host} ({endpoint.origin})")
    yield Diagnosis("buildx", "ok", f"buildx {found.buildx}")
    if found.store == "containerd":
        yield Diagnosis("image store", "ok", "containerd")
    else:
        yield Diagnosis(
            "image store",
            "warning",
            "the classic store: image ids differ from those of other machines, and layers are compressed again to push",
            'set {"features": {"containerd-snapshotter": true}} in /etc/docker/daemon.json and restart Docker',
        )
    if driver.exists():
        yield _gpu(found)
    if found.data_root:
        yield from _disk(found.data_root)


def _gpu(found: versions.Versions) -> Diagnosis:
    if found.nvidia:
        return Diagnosis("GPU", "ok", "the engine can give a container the NVIDIA GPU")
    return Diagnosis(
        "GPU",
        "error",
        "this machine has an NVIDIA GPU, and the engine knows neither an nvidia runtime nor the device",
        "install nvidia-container-toolkit, then `sudo nvidia-ctk runtime configure --runtime=docker` "
        "and `sudo systemctl restart docker`",
    )


def _disk(folder: str) -> Iterator[Diagnosis]:
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return  # the engine is another machine, or its folder is closed to us
    said = f"{free / GB:.0f} GB free in {folder}"
    if free < ROOM_FOR_ANY_IMAGE:
        yield Diagnosis("disk", "error", said, "free some space: even the cpu image needs 12 GB while it is built")
    elif free < ROOM_FOR_A_GPU_IMAGE:
        yield Diagnosis("disk", "warning", said, "a GPU image needs up to 35 GB, and as much again while it is built")
    else:
        yield Diagnosis("disk", "ok", said)


def _files(project: Project) -> Iterator[Diagnosis]:
    checked: list[tuple[str, tuple[str, ...], Callable[[str], object]]] = [
        ("definitions", image.names(project), lambda name: _check_definition(project, name)),
        ("mods", mod_reading.names(project), lambda name: mod_reading.load(project, name)),
        ("recipes", recipe.names(project), lambda name: _check_recipe(project, name)),
    ]
    for subject, names, load in checked:
        wrong = []
        for name in names:
            try:
                load(name)
            except BuilderError as error:
                wrong.append(error.message)
        if wrong:
            yield Diagnosis(subject, "error", "\n".join(dict.fromkeys(wrong)), "correct the files named")
        else:
            yield Diagnosis(subject, "ok", ", ".join(names) or "none")


def _check_definition(project: Project, name: str) -> None:
    mod_selection.require_known(project, (image.load(project, name, "linux/arm64"),), None)


def _check_recipe(project: Project, name: str) -> None:
    recipe_problems.require_none(project, (recipe.load(project, project.recipes / f"{name}.yaml"),))


def _lock(project: Project, endpoint: Endpoint | None, environ: Mapping[str, str]) -> Iterator[Diagnosis]:
    try:
        lock = reading.read(project.lock)
    except BuilderError as error:
        yield Diagnosis("images.lock", "error", error.message, error.hint)
        return
    if lost.is_lost(project):
        yield Diagnosis("images.lock", "error", lost.MESSAGE, TAKE_BACK)
        return
    count = sum(len(held.numbers) for held in lock.images.values())
    yield Diagnosis("images.lock", "ok", f"numbered images: {count}, models: {len(lock.models)}")
    if endpoint is None:
        return
    overview = status.overview(Workspace(project, endpoint, environ, ignore), lock)
    for row in overview.rows:
        if row.state in {"missing", "moved"}:
            yield Diagnosis("image", "warning", f"{row.name} is {row.state}", "`builder list` shows what is there")
    for repository in overview.stray:
        remedy = "the next build or rollback in this project mends it"
        yield Diagnosis("tag", "warning", f"{repository}:latest is not its current number", remedy)


def _logs(project: Project) -> Iterator[Diagnosis]:
    """BuildKit cuts a step's output at 2 MiB, and a compiler's error stands at its end."""
    latest = sorted((project.state / "logs").glob("*.log"))[-_LOGS_READ:]
    clipped = [path for path in latest if _CLIPPED in path.read_text(encoding="utf-8", errors="replace")]
    if clipped:
        yield Diagnosis(
            "build logs",
            "warning",
            f"BuildKit cut the output of a step short in {project.relative(clipped[-1])}",
            "set BUILDKIT_STEP_LOG_MAX_SIZE=-1 for the engine (systemctl edit docker: Environment=…) and restart it",
        )


def _proxies(environ: Mapping[str, str]) -> Iterator[Diagnosis]:
    """A proxy on this machine's own address is another machine's address in a container."""
    from urllib.parse import urlsplit

    for name, value in environment.read(environ).proxies:
        if name == "NO_PROXY":
            continue
        host = urlsplit(value if "://" in value else f"//{value}").hostname or ""
        if host in {"localhost", "::1"} or host.startswith("127."):
            remedy = "give the proxy an address that containers reach, such as the one of the bridge docker0"
            yield Diagnosis("proxy", "error", f"{name} is {host}, which a build step takes for itself", remedy)


def _settings(environ: Mapping[str, str]) -> Iterator[Diagnosis]:
    settings = environment.read(environ)
    if settings.ca_file:
        yield Diagnosis(
            "certificates", "ok", f"{settings.ca_file} is given to steps that use the network, and not kept"
        )
    if settings.index_url or settings.find_links:
        yield Diagnosis("packages", "ok", " ".join([settings.index_url, *settings.find_links]).strip())
