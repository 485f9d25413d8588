"""The doctor command: finds what would make a build fail, before one is tried."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from builder import release
from builder.building import mod_selection
from builder.checkpoints import checkpoints_lock
from builder.definitions import checkpoint, configuration, image
from builder.definitions.mods import mod_reading
from builder.definitions.recipes import finding, recipe, recipe_problems
from builder.diagnosis import Diagnosis
from builder.engine import daemon_settings
from builder.engine.client import endpoint as endpoints
from builder.engine.client import versions
from builder.errors import BuilderError
from builder.events import ignore
from builder.lock import lost_lock, reading
from builder.lock.file_problems import TAKE_BACK
from builder.migration import images
from builder.nodes import machine_shell, spark_checks, spark_facts
from builder.numbered import status
from builder.plan import dockerfile
from builder.redaction import redacted
from builder.serving import chip_faults, image_selection
from builder.sources import environment
from builder.storage import regular_file
from builder.workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from builder.engine.client.endpoint import Endpoint
    from builder.lock.model import Lock
    from builder.project import Project

GB = 1000**3
# A GPU image is 19 to 35 GB, and BuildKit holds about as much again while it is made.
ROOM_FOR_A_GPU_IMAGE = 80 * GB
ROOM_FOR_ANY_IMAGE = 12 * GB
# ccache may hold 50 GB, and the layers of a GPU image beside it.
ROOM_FOR_BUILD_CACHE = 80 * GB
PROC = Path("/proc")
# BuildKit writes this where it leaves out the rest of a step's output.
_CLIPPED = "[output clipped, log limit"
_LARGEST_LOG = 256 << 20
_LOGS_READ = 20


def run(
    project: Project, environ: Mapping[str, str], proc: Path = PROC, releases: str | None = None
) -> tuple[Diagnosis, ...]:
    """Runs every check. ``proc`` is the machine's /proc, which tells if it has an NVIDIA GPU, and which. ``releases``
    is the address of a repository that is asked for a newer release, empty for the program's own; None asks none."""
    results: list[Diagnosis] = []
    is_here = True
    try:
        endpoint = endpoints.find(environ)
        is_here = machine_shell.is_here(endpoint.host)
        results += _engine(endpoint, proc)
    except BuilderError as error:
        endpoint = None
        results.append(Diagnosis("engine", "error", error.message, error.hint))
    if is_here:
        results += _spark(project, environ, proc)
    results += _files(project)
    results += _lock(project, endpoint, environ)
    results += _logs(project)
    results += _settings(environ)
    results += _proxies(environ)
    if releases is not None:
        results.append(_release(releases))
    return tuple(results)


def _release(address: str) -> Diagnosis:
    """Tells whether there is a newer release of this program."""
    here = release.of_this_program()
    address = address or release.repository()
    if not address:
        remedy = "name the repository: `builder doctor --check-update ADDRESS`"
        return Diagnosis("release", "warning", f"{here}; this installation does not say where it comes from", remedy)
    try:
        newer = release.newer(address)
    except BuilderError as error:
        return Diagnosis("release", "warning", f"{here}; {error.message}", error.hint)
    shown = redacted(address)
    if not newer:
        return Diagnosis("release", "ok", f"{here}; {shown} has no newer one")
    remedy = "install it, then `builder init --update` in each project"
    return Diagnosis("release", "warning", f"{here}; {shown} has {newer}", remedy)


def _engine(endpoint: Endpoint, proc: Path) -> Iterator[Diagnosis]:
    engine = versions.require_supported(endpoint)
    yield Diagnosis(
        "engine", "ok", f"Docker {engine.engine} on {engine.platform} at {endpoint.host} ({endpoint.origin})"
    )
    yield Diagnosis("buildx", "ok", f"buildx {engine.buildx}")
    if engine.store == "containerd":
        yield Diagnosis("image store", "ok", "containerd")
    else:
        yield Diagnosis(
            "image store",
            "warning",
            "the classic store: image ids differ from those of other machines, and layers are compressed again to push",
            'set {"features": {"containerd-snapshotter": true}} in /etc/docker/daemon.json and restart Docker',
        )
    if (proc / "driver/nvidia/version").exists():
        yield _gpu(engine)
    yield from _daemon(endpoint)
    if engine.data_root:
        yield from _disk(engine.data_root)


def _daemon(endpoint: Endpoint) -> Iterator[Diagnosis]:
    settings = daemon_settings.read(endpoint)
    if not settings.limits_memory:
        yield Diagnosis(
            "limits",
            "warning",
            "the engine cannot limit the memory of a container: `run --memory` does nothing",
            "turn the kernel's memory controller on (cgroup v2, or `cgroup_enable=memory swapaccount=1`) and restart",
        )
    if settings.endless_logs:
        yield Diagnosis(
            "server logs",
            "warning",
            "the engine keeps the output of a server for as long as it runs, without a limit",
            'set {"log-driver": "local"} in /etc/docker/daemon.json, which keeps 100 MB of each, and restart Docker',
        )
    if settings.build_cache is not None and settings.build_cache < ROOM_FOR_BUILD_CACHE:
        yield Diagnosis(
            "build cache",
            "warning",
            f"BuildKit keeps {settings.build_cache / GB:.0f} GB: what a GPU image compiled is gone by the next build",
            'set "builder": {"gc": {"defaultKeepStorage": "80GB"}} or more in /etc/docker/daemon.json, or take it out',
        )


def _spark(project: Project, environ: Mapping[str, str], proc: Path) -> Iterator[Diagnosis]:
    """Checks this machine, and the images that models are paired with, where it is a DGX Spark."""
    facts = spark_facts.read(environ, proc)
    if facts is None:
        return
    yield from spark_checks.run(facts, _architectures(project))
    with suppress(BuilderError):  # a file with an error is reported elsewhere
        lock, nodes = reading.read(project.lock), configuration.load(project).nodes
        for model in lock.models:
            with suppress(BuilderError):
                selection = image_selection.select(project, lock, model)
                yield from chip_faults.of_selection(project, selection, len(nodes))


def _architectures(project: Project) -> dict[str, str]:
    """The GPU architecture of each definition that has one; a file with an error is reported elsewhere."""
    architectures = {}
    for name in image.names(project):
        with suppress(BuilderError):
            architecture = image.load(project, name, "linux/arm64").args.get("gpu_arch")
            if architecture is not None:
                architectures[name] = str(architecture)
    return architectures


def _gpu(engine: versions.Versions) -> Diagnosis:
    if engine.nvidia:
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
        return  # the engine is on another machine, or its folder is not readable
    message = f"{free / GB:.0f} GB free in {folder}"
    if free < ROOM_FOR_ANY_IMAGE:
        yield Diagnosis("disk", "error", message, "free some space: even the cpu image needs 12 GB while it is built")
    elif free < ROOM_FOR_A_GPU_IMAGE:
        yield Diagnosis(
            "disk", "warning", message, "a GPU image needs up to 35 GB, and as much again while it is built"
        )
    else:
        yield Diagnosis("disk", "ok", message)


def _files(project: Project) -> Iterator[Diagnosis]:
    recipes = {finding.name_of(project.relative(path)): path for path in finding.files(project.recipes)}
    missing_mods: list[str] = []

    def check_recipe(name: str) -> None:
        loaded = recipe.load(project, recipes[name])
        missing_mods.extend(map(str, recipe_problems.missing_mods(project, loaded)))
        recipe_problems.require_none((loaded,))

    checks: list[tuple[str, tuple[str, ...], Callable[[str], object]]] = [
        ("definitions", image.names(project), lambda name: _check_definition(project, name)),
        ("mods", mod_reading.names(project), lambda name: mod_reading.load(project, name)),
        ("recipes", tuple(recipes), check_recipe),
    ]
    if (project.root / configuration.FILE).exists():
        checks.append((configuration.FILE, ("read",), lambda _: configuration.load(project)))
    if checkpoints := checkpoint.names(project):
        checks.append(("checkpoints", checkpoints, lambda name: checkpoint.load(project, name)))
    if project.checkpoints_lock.exists():
        checks.append((project.checkpoints_lock.name, ("read",), lambda _: checkpoints_lock.read(project)))
    for subject, names, load in checks:
        errors = []
        for name in names:
            try:
                load(name)
            except BuilderError as error:
                errors.append(error.message)
        if errors:
            yield Diagnosis(subject, "error", "\n".join(dict.fromkeys(errors)), "correct the files named")
        else:
            yield Diagnosis(subject, "ok", ", ".join(names) or "none")
    if missing_mods:
        yield Diagnosis("recipe mods", "warning", "\n".join(missing_mods), "nothing is built for these without them")


def _check_definition(project: Project, name: str) -> None:
    definition = image.load(project, name, "linux/arm64")
    mod_selection.require_known(project, (definition,), None)
    dockerfile.require_parsed(definition)


def _lock(project: Project, endpoint: Endpoint | None, environ: Mapping[str, str]) -> Iterator[Diagnosis]:
    try:
        lock = reading.read(project.lock)
    except BuilderError as error:
        yield Diagnosis("images.lock", "error", error.message, error.hint)
        return
    if lost_lock.is_lost(project):
        yield Diagnosis("images.lock", "error", lost_lock.MESSAGE, TAKE_BACK)
        return
    count = sum(len(repository.numbers) for repository in lock.images.values())
    yield Diagnosis("images.lock", "ok", f"numbered images: {count}, models: {len(lock.models)}")
    if endpoint is None:
        return
    workspace = Workspace(project, endpoint, environ, ignore)
    overview = status.overview(workspace, lock)
    for row in overview.rows:
        if row.state in {"missing", "moved"}:
            yield Diagnosis("image", "warning", f"{row.name} is {row.state}", "`builder list` shows what is there")
    for repository in overview.stray:
        remedy = "the next build or rollback in this project mends it"
        yield Diagnosis("tag", "warning", f"{repository}:latest is not its current number", remedy)
    with suppress(BuilderError):  # an engine that fails is told above
        yield from _models_without_gpu(project, lock, endpoint)
        yield from images.untagged_findings(workspace, [each for _, each in recipe.readable(project)])


def _models_without_gpu(project: Project, lock: Lock, endpoint: Endpoint) -> Iterator[Diagnosis]:
    """A warning of the models whose images need a GPU, where the engine can give a container none."""
    waiting = []
    for model in lock.models:
        with suppress(BuilderError):  # a file with an error is reported elsewhere
            selection = image_selection.select(project, lock, model)
            if image_selection.serve_settings(project, selection).gpus == "all":
                waiting.append(f"{model} on {selection.image}")
    if waiting and not versions.has_nvidia(endpoint):
        message = f"this engine can give a container no GPU, which these need: {', '.join(waiting)}"
        remedy = "serve them on a machine with a GPU; `serve: {gpus: none}` in image.yaml is for images for the CPU"
        yield Diagnosis("models", "warning", message, remedy)


def _logs(project: Project) -> Iterator[Diagnosis]:
    """Warns of cut logs: BuildKit keeps 2 MiB of a step's output, and a compiler's error stands at its end."""
    latest = sorted((project.state / "logs").glob("*.log"))[-_LOGS_READ:]
    clipped = [path for path in latest if _is_clipped(path)]
    if clipped:
        yield Diagnosis(
            "build logs",
            "warning",
            f"BuildKit cut the output of a step short in {project.relative(clipped[-1])}",
            "set BUILDKIT_STEP_LOG_MAX_SIZE=-1 for the engine (systemctl edit docker: Environment=…) and restart it",
        )


def _is_clipped(log: Path) -> bool:
    try:
        return _CLIPPED.encode() in regular_file.read(log, _LARGEST_LOG)
    except OSError:
        return False


def _proxies(environ: Mapping[str, str]) -> Iterator[Diagnosis]:
    """Reports a proxy on a loopback address, which means the container itself to a build step."""
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
