"""BuildKit bakes all images of a build in one run. The outlook comes from the times of earlier runs.

The password of a proxy is passed as a secret, so that no record of the build contains it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.base import files, words
from builder.base.errors import (
    BaseGoneError,
    BuildFailedError,
    ConflictError,
    ImageStateError,
    SourceError,
    TransferError,
    TreeGoneError,
    UsageError,
)
from builder.base.events import Message
from builder.base.values import dataclass, replace
from builder.definitions import configuration
from builder.definitions.image import build_jobs
from builder.engine import bake_run as engine_bake
from builder.engine import images, machine
from builder.plan import making as plan_bake
from builder.plan import rules
from builder.sources import git

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.building.request import BuildRequest
    from builder.building.resolve import PlannedImage
    from builder.building.work_folder import WorkFolder
    from builder.engine.bake_run import BakeResult
    from builder.engine.build_log import StepFinished
    from builder.engine.client import Endpoint
    from builder.numbers.workspace import Workspace
    from builder.plan.plan_model import Plan
    from builder.plan.rules import CompileJobs


# The last duration of each step, shown while the step runs again. The file may be deleted at any time.

_STEP_TIMES, _SECTION = "steptimes.json", "seconds"


@dataclass(frozen=True)
class StepTimes:
    """The last duration of each step in seconds, by its label. Reported before a build begins."""

    seconds: Mapping[str, float]


def load_step_times(project: Project) -> StepTimes:
    stored = images.load_cache(project.state / _STEP_TIMES).get(_SECTION, {})
    return StepTimes({name: float(seconds) for name, seconds in stored.items()})


def compiles(title: str) -> bool:
    return title.startswith("the ") and title.endswith(" wheel")


def store_step_times(project: Project, steps: Iterable[StepFinished]) -> None:
    fresh = {s.label: s.seconds for s in steps if s.seconds >= 1.0 and not s.error and not s.internal}
    if fresh:
        # The latest entries are last; the oldest are dropped first.
        older = {name: took for name, took in load_step_times(project).seconds.items() if name not in fresh}
        content = dict([*older.items(), *fresh.items()][-2000:])
        images.store_cache(project.state / _STEP_TIMES, _SECTION, content)


# Proxies with a password are secrets, which BuildKit stores nowhere. As build arguments, they would appear in
# BuildKit's record of the build, in its metadata, and in the arguments of buildx. Other proxies are build arguments,
# which reach every instruction of a Dockerfile.

_WITH_HERE_DOCUMENTS = re.compile(r"\s*(?:RUN|COPY|ADD)\s", re.IGNORECASE)
# The same pattern as in BuildKit's parser: https://docs.docker.com/reference/dockerfile/#here-documents
_HERE_DOCUMENT = re.compile(r"(?:^|\s)\d*<<(?P<tabs>-?)(?P<quote>[\"']?)(?P<end>[^\s<\"']+)(?P=quote)(?=\s|$)")


def split(proxies: Iterable[tuple[str, str]]) -> tuple[dict[str, str], dict[str, str]]:
    """Splits the user's proxies into build arguments and secrets. The address of a secret proxy contains a user or a
    password, with or without ``http://``."""
    plain: dict[str, str] = {}
    logins: dict[str, str] = {}
    for name, value in proxies:
        has_login = git.split(value if "://" in value else f"http://{value}").secret
        (logins if has_login else plain)[name] = value
    return plain, logins


def mounted(dockerfile: str, names: Iterable[str]) -> str:
    """``dockerfile`` with these secrets as variables of every RUN instruction, in upper and lower case like BuildKit's
    proxy arguments. Line numbers do not change."""
    mounts = "".join(
        f"--mount=type=secret,id={name},env={variable} " for name in names for variable in (name, name.lower())
    )
    lines = dockerfile.split("\n")
    for number, _ in instructions(lines):
        if start := re.match(r"\s*RUN\s+", lines[number], flags=re.IGNORECASE):
            lines[number] = f"{start[0]}{mounts}{lines[number][start.end() :]}"
    return "\n".join(lines)


def instructions(lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yields the first line of each instruction of a Dockerfile, and the line after its here-documents. Comments and
    empty lines between instructions belong to no instruction."""
    number = 0
    while number < len(lines):
        first = number
        whole = lines[number]
        number += 1
        if not whole.strip() or whole.lstrip().startswith("#"):
            continue
        while whole.rstrip().endswith("\\") and number < len(lines):
            comment = lines[number].lstrip().startswith("#") or not lines[number].strip()
            whole = whole if comment else f"{whole.rstrip()[:-1]} {lines[number]}"
            number += 1
        for here in _HERE_DOCUMENT.finditer(whole) if _WITH_HERE_DOCUMENTS.match(whole) else ():
            stripped = "\t" if here["tabs"] else ""
            while number < len(lines) and lines[number].lstrip(stripped) != here["end"]:
                number += 1
            number += 1
        yield first, number


def with_builder(workspace: Workspace, name: str | None) -> Workspace:
    """The workspace with the buildx instance for building: ``name``, or the one in builder.yaml, or the engine's
    own."""
    instance = name or configuration.load_configuration(workspace.project).builder
    return replace(workspace, engine=replace(workspace.engine, instance=instance)) if instance else workspace


# _parts/wheels.j2 reads it. It is a secret, because secrets do not change the cache key of a step.
_JOBS = "BUILD_JOBS"


@dataclass(frozen=True)
class BakeJob:
    """An image to build: the name of its definition, the targets of its plan, and the work folder with its build
    directory. The result gets the tag of the work folder. The bake file in the directory is not used. With ``push_to``,
    a repository in a registry, the result goes only there, by its digest."""

    definition: str
    targets: Mapping[str, Any]
    work: WorkFolder
    push_to: str = ""


def bake_images(
    workspace: Workspace, jobs: Sequence[BakeJob], compilers: int | None = None
) -> tuple[tuple[engine_bake.BakeResult, ...], Path]:
    """Builds all jobs in one run, and shared steps only once. Returns the results and the file with the whole log.
    ``compilers`` is the number of compilers that a step may run at once; None for as many as fit. If a repository no
    longer provides a source tree, the tree comes from the mirror. Raises BuildFailedError if a step fails."""
    from builder.engine import bake_run as engine_bake
    from builder.sources import wheels

    workspace.report(load_step_times(workspace.project))
    settings = git.read_index_settings(workspace.environment)
    work, project = jobs[0].work, workspace.project
    log = project.state / "logs" / f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{work.name}.log"
    hashes = {folder: expected for job in jobs for folder, expected in _own_index_hashes(job).items()}
    staged = wheels.stage(work.wheels, hashes, settings)
    names = {_target(job, number): job.work.tag for number, job in enumerate(jobs, start=1)}
    arguments, logins = split(settings.proxies)
    # Secrets for the steps, which must not store them. The address of an index may contain a password.
    indexes = {"PIP_INDEX_URL": settings.index_url, "PIP_EXTRA_INDEX_URL": " ".join(settings.extra_index_urls)}
    hidden = {name: value for name, value in {**indexes, _JOBS: str(compilers or "")}.items() if value} | logins
    secrets = [f"id={name},env={name}" for name in hidden]
    secrets += [f"id=ca,{plan_bake.csv_field(f'src={settings.ca_file}')}"] if settings.ca_file else []
    # BuildKit keeps the proxy arguments out of the cache key and the history.
    contexts = {"find-links": str(work.wheels)} if staged else {}
    common: dict[str, Any] = {"args": arguments, "secret": secrets, "contexts": contexts}
    addresses = {
        each for job in jobs for target in job.targets.values() for each in target.get("contexts", {}).values()
    }
    replaced: dict[str, str] = {}
    bases: dict[str, str] = {}
    for address in sorted(each for each in addresses if each.startswith("file:")):  # BuildKit cannot reach these
        replaced[address] = _from_mirror(project, address, work.path / f"tree-{len(replaced)}")
    config = configuration.load_configuration(project)
    cache = config.required_registry() if config.cache else ""
    while True:
        targets = _targets(jobs, common, replaced, bases, cache)
        bake_file = plan_bake.dump_bake({"target": _with_logins(targets, work, logins)})
        files.write_plain_file(work.path / engine_bake.BAKE_FILE, bake_file.encode())
        try:
            baked = engine_bake.bake_targets(
                workspace.engine,
                work.path,
                names=names,
                log_path=log,
                on_event=workspace.report,
                environ={**workspace.environment, **hidden},
                pushed={target: job.push_to for target, job in zip(names, jobs, strict=True) if job.push_to},
            )
        except TreeGoneError as error:
            folder = work.path / f"tree-{len(replaced)}"
            replaced[error.address] = _from_mirror(project, error.address, folder, error)
            url, _, commit = error.address.partition("#")
            workspace.report(Message(f"{url} did not provide {commit[:12]}; using the mirror instead"))
        except BaseGoneError as error:
            # BuildKit looks up a context by the short name that Docker shows.
            name = images.familiar(error.reference)
            copy = None if name in bases else _mirrored_base(workspace, error)
            if copy is None:
                raise
            bases[name] = copy
        else:
            return tuple(baked[name] for name in names), log


def _mirrored_base(workspace: Workspace, gone: BaseGoneError) -> str | None:
    """The copy of a base that `builder mirror` made, as a build context; None without a copy."""
    from builder.numbers import named_registry

    try:
        copy = named_registry.mirrored(workspace, gone.reference)
    except TransferError:
        return None
    if copy:
        where = copy.partition("://")[2]
        workspace.report(Message(f"{gone.message.splitlines()[0]}\nbuilding on the copy {where}"))
    return copy


def _from_mirror(project: Project, address: str, folder: Path, gone: TreeGoneError | None = None) -> str:
    """Checks out the tree that BuildKit cannot fetch, and returns its folder. Raises BuildFailedError without a
    mirror."""
    from builder.sources import mirror

    url, _, commit = address.partition("#")
    try:
        mirror.check_out(mirror.locate(project.mirrors, url), commit, folder)
    except SourceError as error:
        raise BuildFailedError(
            f"{gone.message}\n{error.message}" if gone else error.message,
            log=gone.log if gone else "",
            hint="check the network; if the commit was deleted upstream, only the mirror (.builder/mirrors) of a "
            "machine that pinned it still has it",
        ) from None
    # BuildKit applies it to a folder, but not to a git repository.
    (folder / ".dockerignore").unlink(missing_ok=True)
    return str(folder)


def _targets(
    jobs: Sequence[BakeJob],
    common: Mapping[str, Any],
    replaced: Mapping[str, str],
    bases: Mapping[str, str],
    cache: str,
) -> dict[str, Any]:
    """The targets of all jobs, made distinct by a number, with the ``common`` arguments, secrets and contexts; some
    contexts are ``replaced`` by folders, and the ``bases`` come from elsewhere. If ``cache`` names a registry, each job
    has a cache of its own there."""
    targets: dict[str, Any] = {}
    for number, job in enumerate(jobs, start=1):
        renamed = {
            name: _target(job, number) if name == plan_bake.TARGET else f"{name}-below-{number}" for name in job.targets
        }
        for name, target in job.targets.items():
            contexts = {
                key: f"target:{renamed[source.removeprefix('target:')]}"
                if source.startswith("target:")
                else replaced.get(source, source)
                for key, source in target.get("contexts", {}).items()
            }
            folder = str((job.work.directory / target["context"]).resolve())
            packages = [plan_bake.packages_secret(folder)] if "secret" in target else []
            targets[renamed[name]] = {
                **target,
                "context": folder,
                "contexts": {**contexts, **bases, **common["contexts"]},
                "secret": [*packages, *common["secret"]],
                "args": {**target.get("args", {}), **common["args"]},
            }
        if cache:  # the build continues if the registry does not answer
            place = f"type=registry,ref={cache}/{job.definition.lower()}:buildcache"
            own = {"cache-from": [place], "cache-to": [f"{place},mode=max,ignore-error=true"]}
            targets[renamed[plan_bake.TARGET]] |= own
    return targets


def _with_logins(targets: dict[str, Any], work: WorkFolder, logins: Mapping[str, str]) -> dict[str, Any]:
    if not logins:
        return targets
    changed = {}
    for name, target in targets.items():
        own = (Path(target["context"]) / target["dockerfile"]).read_text(encoding="utf-8")
        dockerfile = work.path.resolve() / f"{name}.Dockerfile"
        files.write_plain_file(dockerfile, mounted(own, logins).encode())
        changed[name] = {**target, "dockerfile": str(dockerfile)}
    return changed


def _target(job: BakeJob, number: int) -> str:
    return f"{re.sub('[^A-Za-z0-9_-]', '_', job.definition)}-{number}"


def _own_index_hashes(job: BakeJob) -> dict[str, frozenset[str]]:
    """The hashes of the packages from each extra index, by the folder where the template looks for wheels."""
    hashes = {}
    for name, target in job.targets.items():
        definition = job.definition if name == plan_bake.TARGET else name
        for file in sorted((job.work.directory / target["context"] / "python").glob("index-*.txt")):
            text = file.read_text(encoding="utf-8", errors="replace")
            hashes[f"{definition}-{file.stem}"] = frozenset(re.findall(r"--hash=sha256:([0-9a-f]{64})", text))
    return hashes


@dataclass(frozen=True)
class BakedImage:
    """An image in the engine that BuildKit has built, under the temporary tag of its ``work`` folder. ``host_platform``
    is the platform of the engine; ``log`` is the file with the whole output."""

    planned: PlannedImage
    work: WorkFolder
    result: BakeResult
    details: images.ImageDetails
    host_platform: str
    log: str


@contextmanager
def baked_images(
    workspace: Workspace, planned: Sequence[PlannedImage], registry_address: str | None, compilers: int | None
) -> Iterator[list[BakedImage]]:
    """Bakes the planned images, and shared steps only once; yields the results. At the end of the block, an image
    without a number is removed.

    If another BuildKit than the engine's own builds, the engine loads the whole images. With ``registry_address``, they
    go through that registry instead, and only missing layers are transferred. ``compilers`` as for `bake_images`.
    Raises BuildFailedError if a step fails, and UsageError or ImageStateError if a base image cannot be used.
    """
    from builder.building import work_folder
    from builder.numbers import named_registry

    engine = workspace.engine
    host_platform = machine.require_supported(engine).platform
    work_folder.remove_stale(workspace)
    for image in planned:
        _require_local_base(engine, image.plan)
        work_folder.require_writable(workspace.project, image.plan.repository)
    with ExitStack() as stack:
        jobs = []
        for image in planned:
            plan = image.plan
            work = stack.enter_context(work_folder.create(workspace, plan.repository, plan.files))
            push_to = f"{registry_address}/{plan.repository}" if registry_address and engine.builds_elsewhere else ""
            jobs.append(BakeJob(plan.definition.name, plan.targets, work, push_to))
        results, log = bake_images(workspace, jobs, compilers=compilers)
        baked = []
        for image, job, result in zip(planned, jobs, results, strict=True):
            store_step_times(workspace.project, result.steps)
            if job.push_to:
                named_registry.pull_by_digest(engine, job.push_to, result.id, job.work.tag, workspace.report)
            details = images.inspect_image(engine, job.work.tag)
            if details is None:
                raise ImageStateError("the image was removed from the engine after the build", hint="build again")
            log_file = workspace.project.relative(log)
            baked.append(BakedImage(image, job.work, result, details, host_platform, log_file))
        yield baked


def _require_local_base(engine: Endpoint, plan: Plan) -> None:
    """Raises UsageError if another BuildKit requires a base that only this engine has; ImageStateError if that base
    differs from its pin, because its tag has moved."""
    from builder.engine import installed

    pin = plan.chain[0].pins.base
    if pin is None or not pin.resolved.startswith(installed.LOCAL):
        return
    again = f"`builder lock {plan.chain[0].definition.name} --update base` pins the base again"
    if engine.builds_elsewhere:
        here = f"{pin.requested}, which is pinned to an image of this engine"
        message = f"the buildx instance `{engine.instance}` cannot see {here}"
        hint = (
            f"{again}, if a registry has it; otherwise push it to one, and use its name there in image.yaml; "
            "or build in this engine: without `--builder`, and without `builder` in builder.yaml"
        )
        raise UsageError(message, hint=hint)
    fingerprint = installed.local_fingerprint(engine, pin.requested)
    if fingerprint != pin.resolved.removeprefix(installed.LOCAL):
        here = f"this engine has {fingerprint} under that name" if fingerprint else "this engine has no such image"
        message = f"the base image {pin.requested} is pinned as {pin.resolved}, an image without a registry; {here}"
        loads = f"load the pinned image (`docker load`), or build the image again, after which {again}"
        hint = again if fingerprint else loads
        raise ImageStateError(message, hint=hint)


# The outlook of a build estimates its duration, its compilers and its disk space before it starts.

_GB = 1_000_000_000
_WORTH_TELLING = 10 * _GB
_TITLE = re.compile(r"<<'EOF'\n# (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Expectation:
    """An amount that a build is expected to take, and the origin of the estimate."""

    amount: float
    origin: str


@dataclass(frozen=True)
class BuildOutlook:
    """The outlook of the build of one image: the jobs of each source that may have to be compiled; the expected seconds
    and bytes, None if unknown; and the folder of the engine's images with its free bytes, empty and None if the folder
    is not on this machine."""

    definition: str
    jobs: tuple[CompileJobs, ...] = ()
    seconds: Expectation | None = None
    disk: Expectation | None = None
    data_root: str = ""
    free: int | None = None

    @property
    def lines(self) -> tuple[str, ...]:
        costs = []
        if self.seconds:
            costs.append(f"{words.duration_text(self.seconds.amount)} ({self.seconds.origin})")
        if self.disk:
            free = "" if self.free is None else f"; {self.data_root} has {words.size_text(self.free)} free"
            costs.append(f"{words.size_text(int(self.disk.amount))} of disk ({self.disk.origin}{free})")
        expected = (f"expected: {', '.join(costs)}",) if costs else ()
        return (*map(str, self.jobs), *expected)


def build_outlooks(
    workspace: Workspace, request: BuildRequest, planned: Sequence[PlannedImage]
) -> tuple[BuildOutlook, ...]:
    """Returns the outlook of each planned image. For an existing image, the outlook is empty."""
    is_ahead = [request.force or image.comparison.existing is None for image in planned]
    there = machine.read_build_machine(workspace.engine) if any(is_ahead) else None
    building_machine, data_root = (rules.BuildMachine(*there[:3]), there[3]) if there else (rules.BuildMachine(), "")
    free, compilers = machine.free_disk(data_root), build_jobs(request.settings)
    return tuple(
        BuildOutlook(
            definition=image.plan.definition.name,
            jobs=rules.of_plan(image.plan, image.kept_steps, building_machine, compilers),
            seconds=_seconds(workspace.project, image),
            disk=_disk(image),
            data_root=data_root,
            free=free,
        )
        if ahead
        else BuildOutlook(image.plan.definition.name)
        for image, ahead in zip(planned, is_ahead, strict=True)
    )


def require_room(outlooks: Sequence[BuildOutlook]) -> None:
    """Raises ConflictError if the engine's disk probably has no room for all images together."""
    expected = [outlook for outlook in outlooks if outlook.disk and outlook.free is not None]
    if not expected:
        return
    needed = sum(int(outlook.disk.amount) for outlook in expected if outlook.disk)
    free, data_root = expected[0].free or 0, expected[0].data_root
    if needed <= free:
        return
    names = " and ".join(outlook.definition for outlook in expected)
    origins = ", ".join(dict.fromkeys(outlook.disk.origin for outlook in expected if outlook.disk))
    raise ConflictError(
        f"building {names} needs {words.size_text(needed)} of disk space ({origins}), but {data_root} has only "
        f"{words.size_text(free)} free. Nothing was built",
        hint="make room with `builder prune` and `docker buildx prune`; to build anyway, add `--ignore-disk` to"
        " `builder build`",
    )


def _seconds(project: Project, image: PlannedImage) -> Expectation | None:
    """The total duration of the steps that may have to run; unknown if a compiling step never ran here."""
    parts = rules.changed_parts(image.plan, image.kept_steps)
    titles = [title for part in parts for title in _TITLE.findall(part.files["Dockerfile"].content.decode())]
    compiling, times = set(filter(compiles, titles)), load_step_times(project).seconds
    if compiling and compiling <= times.keys():
        return Expectation(sum(times.get(title, 0.0) for title in titles), "as long as its steps took before")
    minutes = sum(part.definition.first_build.minutes or 0 for part in parts)
    return Expectation(minutes * 60.0, "from image.yaml") if minutes else None


def _disk(image: PlannedImage) -> Expectation | None:
    """The space that image.yaml gives for the first build; for a later build, at least the size of the previous number.
    A few gigabytes are not reported."""
    parts = rules.changed_parts(image.plan, image.kept_steps)
    if not parts:
        return None
    figures = sum(part.definition.first_build.disk_gb or 0 for part in parts) * _GB
    repository = image.lock.images.get(image.plan.repository)
    if figures and not image.kept_steps:
        expected = Expectation(figures, "from image.yaml")
    elif repository and repository.numbers:
        last = max(repository.numbers)
        expected = Expectation(repository.numbers[last].size, f"the size of {image.plan.repository}:{last}")
    else:
        return None
    return expected if expected.amount >= _WORTH_TELLING else None
