"""Commands that check a project or explain the program."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from builder.base.errors import BuilderError, FileProblemsError, TransferError, UsageError, require_no_problems
from builder.base.events import Diagnosis, ignore
from builder.base.redaction import redacted
from builder.base.values import dataclass
from builder.base.words import did_you_mean
from builder.building import mod_choice
from builder.commands import explaining
from builder.definitions import checkpoint_definition, configuration, mod, recipe, recipe_problems
from builder.definitions.image import definition_names, load_image
from builder.engine import client as endpoints
from builder.engine import machine
from builder.evidence import run_record
from builder.lab import changes
from builder.lock import checkpoints_lock, lock_file
from builder.lock.checking import TAKE_BACK
from builder.moving import machines, shipped
from builder.numbers import adopted, build_directory, named_registry, status
from builder.numbers.workspace import Workspace
from builder.pins import vendored
from builder.plan import making, plan_model
from builder.serving import advice
from builder.serving.selection import select_image, serve_settings
from builder.sources import git

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.lock.model import Lock


# The names that a shell completes on the command line. They are read only from the project's files.


def _sources(project: Project) -> tuple[str, ...]:
    """The sources that `--update` can resolve again: sources of definitions, `base` and `python`."""
    definitions = mod_choice.definitions(project).values()
    own = sorted({name for definition in definitions for name in definition.sources})
    with_python = any(definition.python for definition in definitions)
    return ("base", *own, *(["python"] if with_python else []))


def _probes(project: Project) -> tuple[str, ...]:
    from builder.lab.measure import probes

    return probes.names(project)


NAMES: dict[str, Callable[[Project], Iterable[object]]] = {
    "definitions": definition_names,
    "recipes": recipe.recipe_names,
    "checkpoints": checkpoint_definition.checkpoint_names,
    "mods": mod.mod_names,
    "models": lambda project: sorted(lock_file.read_lock(project.lock).models),
    "numbered": lambda project: (name for name, _ in lock_file.read_lock(project.lock).numbered()),
    "sources": _sources,
    "nodes": lambda project: (node.name for node in configuration.load_configuration(project).nodes),
    "profiles": lambda project: (profile.name for profile in configuration.load_configuration(project).bench),
    "probes": _probes,
}
"""The function that reads the names of each kind."""


def numbers(project: Project, target: str) -> tuple[str, ...]:
    """The numbers that ``target`` can be rolled back to, the newest first."""
    lock = lock_file.read_lock(project.lock)
    repository = status.named_number(project, lock, target)[0].repository
    return tuple(str(number) for number in sorted(lock.images[repository].numbers, reverse=True))


# The explain command: explains an exit code or a key of a file.


@dataclass(frozen=True)
class Explanation:
    """The explanation of ``subject``, as lines."""

    kind: str
    subject: str
    lines: tuple[str, ...]


def explain_text(text: str) -> tuple[Explanation, ...]:
    """Explains an exit code or a key. A key can be ``serve.gpus``, ``image.yaml:serve.gpus`` of one file,
    ``run-json:server`` of a command's output, or only the last part of a path. Raises UsageError for anything else."""
    wanted = text.strip()
    if re.fullmatch(r"\d{1,3}", wanted):
        codes = {code.code: code.meanings for code in explaining.every()}
        if int(wanted) not in codes:
            hint = f"the exit codes are {', '.join(map(str, codes))}"
            raise UsageError(f"builder has no exit code {int(wanted)}", hint=hint)
        return (Explanation("exit code", str(int(wanted)), codes[int(wanted)]),)
    if explained := tuple(_keys(wanted)):
        return explained
    paths = {key.path for file in explaining.every_key() for key in file.keys}
    meant = did_you_mean(wanted, sorted(paths | {path.rpartition(".")[2] for path in paths}), code=True)
    hint = meant or "`builder schema` lists the files; `builder COMMAND --help` lists options"
    raise UsageError(f"`{text}` is neither an exit code nor a key of a file", hint=hint)


def _keys(wanted: str) -> Iterator[Explanation]:
    """The keys with the path ``wanted``; if there are none, the keys whose path ends with it."""
    file, colon, path = wanted.rpartition(":")
    files = [
        each for each in explaining.every_key() if not colon or each.name == file or each.name.startswith(f"{file}.")
    ]
    if printed := explaining.outputs().get(file):
        files = [printed]
    every = [(each.name, key) for each in files for key in each.keys]
    exact = [pair for pair in every if pair[1].path == path]
    ending = [pair for pair in every if re.search(rf"(?:^|[.\]]){re.escape(path)}$", pair[1].path)]
    for name, key in exact or (ending if path else []):
        yield Explanation("key", f"{name}: {key.path}", tuple(filter(None, (key.kind, key.text))))


# The JSON Schemas of the project's files, of images.lock and of the commands' output, for editors and programs.

FILES = {**explaining.SCHEMAS, **explaining.OUTPUTS}


def text(name: str) -> str:
    """The schema called ``name``, one of FILES, as JSON."""
    return FILES[name].read_text(encoding="utf-8")


def title(name: str) -> str:
    """The title of the schema called ``name``: one line that describes the file."""
    import json

    return str(json.loads(text(name))["title"])


def program_version() -> shipped.ProgramRelease:
    """The running release, with its commit if the commit is recorded."""
    return shipped.of_this_program()


# The doctor command: finds what would make a build fail, before the build.

GB = 1000**3
# A GPU image has 19 to 35 GB. BuildKit needs about the same space again during the build.
ROOM_FOR_A_GPU_IMAGE = 80 * GB
ROOM_FOR_ANY_IMAGE = 12 * GB
PROC = Path("/proc")


def run_doctor(
    project: Project, environ: Mapping[str, str], proc: Path = PROC, releases: str | None = None
) -> tuple[Diagnosis, ...]:
    """Runs every check. ``proc`` is the machine's /proc, which shows the NVIDIA GPUs. ``releases`` is the address of a
    repository to check for a newer release: empty for the program's own repository, None for no check."""
    results: list[Diagnosis] = []
    is_here = True
    try:
        endpoint = endpoints.find_endpoint(environ)
        is_here = machine.is_here(endpoint.host)
        results += _engine(endpoint, proc)
    except BuilderError as error:
        endpoint = None
        results.append(Diagnosis("engine", "error", error.message, error.hint))
    if is_here:
        results += _spark(project, environ, proc)
    results += _files(project)
    results += _lock(project, endpoint, environ)
    results += _environment(environ)
    if releases is not None:
        results.append(_release(releases))
    return tuple(results)


def _release(address: str) -> Diagnosis:
    here = shipped.of_this_program()
    address = address or shipped.repository_of_releases()
    if not address:
        remedy = "name the repository: `builder doctor --check-update ADDRESS`"
        message = f"{here}; this installation does not record its source repository"
        return Diagnosis("release", "warning", message, remedy)
    try:
        newer = shipped.newer_release(address)
    except BuilderError as error:
        return Diagnosis("release", "warning", f"{here}; {error.message}", error.hint)
    shown = redacted(address)
    if not newer:
        return Diagnosis("release", "ok", f"{here}; {shown} has no newer release")
    remedy = "install it, then run `builder init --update` in each project"
    return Diagnosis("release", "warning", f"{here}; {shown} has {newer}", remedy)


def _engine(endpoint: endpoints.Endpoint, proc: Path) -> Iterator[Diagnosis]:
    engine = machine.require_supported(endpoint)
    message = f"Docker {engine.engine} on {engine.platform} at {endpoint.host} ({endpoint.origin})"
    yield Diagnosis("engine", "ok", message)
    yield Diagnosis("buildx", "ok", f"buildx {engine.buildx}")
    if engine.store == "containerd":
        yield Diagnosis("image store", "ok", "containerd")
    else:
        message = "the classic store: image ids differ between machines, and a push compresses layers again"
        remedy = "save the images that you need with `builder export-image`, because the next step hides all images; "
        remedy += 'then add "features": {"containerd-snapshotter": true} to /etc/docker/daemon.json and restart Docker'
        yield Diagnosis("image store", "warning", message, remedy)
    if (proc / "driver/nvidia/version").exists() and engine.nvidia:
        yield Diagnosis("GPU", "ok", "the engine can give a container the NVIDIA GPU")
    elif (proc / "driver/nvidia/version").exists():
        message = "this machine has an NVIDIA GPU, but Docker has neither the nvidia runtime nor a CDI device for it"
        remedy = "install nvidia-container-toolkit, then run `sudo nvidia-ctk runtime configure --runtime=docker` "
        yield Diagnosis("GPU", "error", message, f"{remedy}and `sudo systemctl restart docker`")
    if not engine.limits_memory:
        message = "the engine cannot limit the memory of a container: `run --memory` has no effect"
        remedy = "use cgroup v2, or the kernel parameters `cgroup_enable=memory swapaccount=1`; then reboot"
        yield Diagnosis("limits", "warning", message, remedy)
    # The free space is unknown if the engine is on another machine, or if its folder is not readable.
    free = machine.free_disk(engine.data_root)
    if free is not None:
        message = f"{free / GB:.0f} GB free in {engine.data_root}"
        if free >= ROOM_FOR_A_GPU_IMAGE:
            yield Diagnosis("disk", "ok", message)
        elif free >= ROOM_FOR_ANY_IMAGE:
            remedy = "a GPU image needs up to 35 GB, and as much again while it is built"
            yield Diagnosis("disk", "warning", message, remedy)
        else:
            remedy = "free some space: even the cpu image needs 12 GB while it is built"
            yield Diagnosis("disk", "error", message, remedy)


def _spark(project: Project, environ: Mapping[str, str], proc: Path) -> Iterator[Diagnosis]:
    """On a DGX Spark, checks this machine and the images that models are paired with."""
    facts = machines.read_spark_facts(environ, proc)
    if facts is None:
        return
    architectures: dict[str, str] = {}
    for name in definition_names(project):
        with suppress(BuilderError):  # a file with an error is reported elsewhere
            if (architecture := load_image(project, name, "linux/arm64").args.get("gpu_arch")) is not None:
                architectures[name] = str(architecture)
    yield from machines.check_spark(facts, architectures)
    with suppress(BuilderError):  # a file with an error is reported elsewhere
        lock, nodes = lock_file.read_lock(project.lock), configuration.load_configuration(project).nodes
        machine_facts = advice.of_machine(proc)
        advised = dict.fromkeys(advice.of_any_server(project, nodes, machine_facts))
        for model in lock.models:
            with suppress(BuilderError):
                selection = select_image(project, lock, model)
                advised |= dict.fromkeys(advice.of_selection(project, selection, nodes, machine_facts))
        yield from advised


def _files(project: Project) -> Iterator[Diagnosis]:
    recipes = {recipe.name_of(project.relative(path)): path for path in recipe.recipe_files(project.recipes)}
    missing_mods: list[str] = []

    def check_recipe(name: str) -> None:
        loaded = recipe.load_recipe(project, recipes[name])
        missing_mods.extend(map(str, recipe_problems.missing_mods(project, loaded)))
        require_no_problems(recipe_problems.recipe_problems(loaded))

    checks: list[tuple[str, tuple[str, ...], Callable[[str], object]]] = [
        ("definitions", definition_names(project), lambda name: _check_definition(project, name)),
        ("mods", mod.mod_names(project), lambda name: mod.load_mod(project, name)),
        ("recipes", tuple(recipes), check_recipe),
    ]
    if (project.root / configuration.FILE).exists():
        checks.append((configuration.FILE, ("read",), lambda _: configuration.load_configuration(project)))
    if checkpoints := checkpoint_definition.checkpoint_names(project):
        checks.append(("checkpoints", checkpoints, lambda name: checkpoint_definition.load_checkpoint(project, name)))
    if (lock := project.checkpoints_lock).exists():
        checks.append((lock.name, ("read",), lambda _: checkpoints_lock.read_checkpoints_lock(project)))
    for subject, names, load in checks:
        errors = []
        for name in names:
            try:
                load(name)
            except BuilderError as error:
                errors.append(error.message)
        if errors:
            yield Diagnosis(subject, "error", "\n".join(dict.fromkeys(errors)), "correct these files")
        else:
            yield Diagnosis(subject, "ok", ", ".join(names) or "none")
    if missing_mods:
        yield Diagnosis(
            "recipe mods",
            "warning",
            "\n".join(missing_mods),
            "these recipes cannot be built without the mods: copy the mods with `builder mods add ADDRESS`, or remove"
            " them from the recipes",
        )


def _check_definition(project: Project, name: str) -> None:
    definition = load_image(project, name, "linux/arm64")
    mod_choice.require_known(project, (definition,), None)
    making.require_parsed(definition)


def _lock(project: Project, endpoint: endpoints.Endpoint | None, environ: Mapping[str, str]) -> Iterator[Diagnosis]:
    try:
        lock = lock_file.read_lock(project.lock)
    except BuilderError as error:
        yield Diagnosis("images.lock", "error", error.message, error.hint)
        return
    if lock_file.is_lost(project):
        yield Diagnosis("images.lock", "error", lock_file.MESSAGE, TAKE_BACK)
        return
    count = sum(len(repository.numbers) for repository in lock.images.values())
    yield Diagnosis("images.lock", "ok", f"numbered images: {count}, models: {len(lock.models)}")
    if endpoint is None:
        return
    workspace = Workspace(project, endpoint, environ, ignore)
    overview = status.status_overview(workspace, lock)
    for row in overview.rows:
        if row.state in {"missing", "moved"}:
            what = "is missing from the engine" if row.state == "missing" else "names a different image in the engine"
            yield Diagnosis("image", "warning", f"{row.name} {what}", "`builder verify` shows how to correct this")
    for repository in overview.stray:
        remedy = f"`builder promote {repository}:{lock.images[repository].current}`"
        yield Diagnosis("tag", "warning", f"{repository}:latest does not point to its current number", remedy)
    with suppress(BuilderError):  # errors of the engine have their own finding
        yield from _models_without_gpu(project, lock, endpoint)


def _models_without_gpu(project: Project, lock: Lock, endpoint: endpoints.Endpoint) -> Iterator[Diagnosis]:
    """Warns about models whose images need a GPU, if the engine cannot give a GPU to containers."""
    waiting = []
    for model in lock.models:
        with suppress(BuilderError):  # a file with an error is reported elsewhere
            selection = select_image(project, lock, model)
            if serve_settings(project, selection).gpus == "all":
                waiting.append(f"{model} on {selection.image}")
    if waiting and not machine.has_nvidia(endpoint):
        message = f"this engine cannot give containers a GPU, which these models require: {', '.join(waiting)}"
        remedy = "serve them on a machine with a GPU; for CPU images, set `serve: {gpus: none}` in image.yaml"
        yield Diagnosis("models", "warning", message, remedy)


def _environment(environ: Mapping[str, str]) -> Iterator[Diagnosis]:
    """Reports certificates and package indexes for builds. Also reports a loopback proxy: in a build step, its address
    means the container itself."""
    from urllib.parse import urlsplit

    settings = git.read_index_settings(environ)
    if settings.ca_file:
        message = f"build steps that use the network get {settings.ca_file}; images do not contain the file"
        yield Diagnosis("certificates", "ok", message)
    if settings.index_url or settings.find_links:
        yield Diagnosis("packages", "ok", " ".join([settings.index_url, *settings.find_links]).strip())
    for name, value in settings.proxies:
        if name == "NO_PROXY":
            continue
        try:
            host = urlsplit(value if "://" in value else f"//{value}").hostname or ""
        except ValueError as error:
            yield Diagnosis("proxy", "error", f"{name} is not an address: {error}", f"correct or unset {name}")
            continue
        if host in {"localhost", "::1"} or host.startswith("127."):
            message = f"{name} points to {host}, which means the container itself in a build step"
            remedy = "give the proxy an address that containers can reach, such as the address of the bridge docker0"
            yield Diagnosis("proxy", "error", message, remedy)


# The verify command: compares images.lock with the engine, the build directories, and the project's files.

Kind = Literal["missing", "moved", "edited", "unknown", "foreign"]


@dataclass(frozen=True)
class Discrepancy:
    """A difference from images.lock. ``missing`` and ``moved`` concern the engine or the registry, ``edited`` the files
    of the project. ``unknown`` means that the check failed. ``foreign`` is not a fault: the name belongs to another
    project in the same engine."""

    subject: str
    kind: Kind
    message: str
    remedy: str


def verify_project(workspace: Workspace) -> tuple[Discrepancy, ...]:
    """Finds all discrepancies, the most serious first. Raises LockError if images.lock itself cannot be read."""
    lock = lock_file.read_lock(workspace.project.lock)
    directories = tuple(_directories(workspace.project, lock))
    lost = [Discrepancy(workspace.project.lock.name, "missing", lock_file.MESSAGE, TAKE_BACK)]
    return (
        *(lost if lock_file.is_lost(workspace.project) else ()),
        *_engine_discrepancies(workspace, lock, {finding.subject for finding in directories}),
        *directories,
        *_changed_files(workspace.project, lock),
    )


def compare_registry(workspace: Workspace) -> Iterator[Discrepancy]:
    """Finds pushed numbers that are missing from the registry or have different content there. Raises UsageError if no
    registry is configured."""
    registry = named_registry.Registry(configuration.load_configuration(workspace.project).required_registry())
    for name, image in lock_file.read_lock(workspace.project.lock).numbered():
        reference = f"{registry.repository(name)}:{name.number}"
        try:
            state = named_registry.state(workspace.engine, registry, name, image)[0] if image.digest else "present"
        except TransferError as error:
            yield Discrepancy(registry.address, "unknown", error.message, error.hint)
            return
        if state == "missing":
            yield Discrepancy(reference, "missing", "the registry does not have it", f"`builder push {name}`")
        elif state == "moved":
            remedy = (
                "if another project pushed that number, give this project its own path: `registry:` in builder.yaml"
            )
            yield Discrepancy(reference, "moved", "the registry has different content there", remedy)


def _engine_discrepancies(workspace: Workspace, lock: Lock, edited_names: AbstractSet[str]) -> Iterator[Discrepancy]:
    """Finds missing and moved tags. The build directories of ``edited_names`` must be restored before a rebuild."""
    overview = status.status_overview(workspace, lock)
    if overview.engine_error:
        yield Discrepancy("engine", "unknown", overview.engine_error, "`builder doctor` shows more")
    for row in overview.rows:
        name = str(row.name)
        is_rebuilt = name in edited_names and not (row.image.digest or row.image.adopted)
        first = ", after its build directory is restored (see below)" if is_rebuilt else ""
        back = f"{adopted.way_back(row.name, row.image)}{first}"
        if row.state == "missing":
            yield Discrepancy(name, "missing", "the engine has no image with this name", back)
        elif row.state == "moved":
            remedy = f"`{adopted.frees(name)}` frees the name, then {back}"
            yield Discrepancy(name, "moved", "the name belongs to a different image", remedy)
    for repository in overview.stray:
        current = f"{repository}:{lock.images[repository].current}"
        latest = f"{repository}:latest"
        yield Discrepancy(latest, "moved", f"does not point to {current}", f"`builder promote {current}`")
    for repository, owner in overview.foreign.items():
        current = f"{repository}:{lock.images[repository].current}"
        yield Discrepancy(f"{repository}:latest", "foreign", f"does not point to {current}: it belongs to {owner}", "")


def _directories(project: Project, lock: Lock) -> Iterator[Discrepancy]:
    for name, image in lock.numbered():
        folder = build_directory.path_of(project, name)
        back = f"`git checkout HEAD -- {project.relative(folder)}`"
        if folder.is_dir() and not (folder / plan_model.RECORD).is_file():
            fault = f"{project.relative(folder / plan_model.RECORD)} is gone: `builder lock --recover` could not use it"
            yield Discrepancy(str(name), "edited", fault, back)
        if image.adopted:
            contents = adopted.read_adopted(folder)
            if contents is None or contents.fingerprint != image.fingerprint:
                fault = "is gone or damaged" if contents is None else "belongs to another image"
                yield Discrepancy(str(name), "edited", f"{project.relative(folder / adopted.FILE)} {fault}", back)
            continue
        try:
            directory = build_directory.read_build_directory(project, name)
        except FileProblemsError as error:
            yield Discrepancy(str(name), "edited", error.message, error.hint)
            continue
        for message in changes.build_directory_edits(directory, image):
            yield Discrepancy(str(name), "edited", f"{project.relative(folder)}: {message}", back)


def _changed_files(project: Project, lock: Lock) -> Iterator[Discrepancy]:
    for definition, platforms in sorted(lock.pins.items()):
        faults = (fault for pins in platforms.values() for fault in vendored.vendored_faults(project, definition, pins))
        discrepancies = (Discrepancy(definition, "edited", fault.message, fault.hint) for fault in faults)
        yield from dict.fromkeys(discrepancies)  # the platforms of a definition have the same pull requests
    for name in run_record.evidence_images(project):
        for problem in run_record.look_for_runs(project, name).problems:
            file = problem.location.file
            yield Discrepancy(str(name), "edited", f"{file}: {problem.message}", f"`git checkout HEAD -- {file}`")
