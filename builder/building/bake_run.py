"""One run of BuildKit over build directories, with the user's certificates, package indexes, wheels and proxies."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.building import proxy_secrets, step_times
from builder.distribution import remote_builder
from builder.engine.buildkit import bake as engine_bake
from builder.errors import BuildFailedError, SourceError, TreeGoneError
from builder.events import Message
from builder.plan import bake as plan_bake
from builder.sources import environment
from builder.sources.wheels import local_wheels
from builder.storage import plain_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builder.building.work_folder import WorkFolder
    from builder.events import Report
    from builder.project import Project
    from builder.workspace import Workspace

# Read by _parts/wheels.j2; a secret, because those are no part of what BuildKit knows a step by.
_JOBS = "BUILD_JOBS"
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass(frozen=True)
class BakeJob:
    """An image to build: its build directory, the name of its definition, its targets as a plan has them, and the work
    folder whose tag the result gets. The bake file in the directory does not count. With ``push_to``, a repository of a
    registry, the result goes only there, by its digest."""

    directory: Path
    definition: str
    targets: Mapping[str, Any]
    work: WorkFolder
    push_to: str = ""


def bake(
    workspace: Workspace, jobs: Sequence[BakeJob], compilers: int | None = None
) -> tuple[tuple[engine_bake.BakeResult, ...], Path]:
    """Builds all jobs in one run, what they share only once; returns their results and the file of the whole log.
    ``compilers`` is how many a step may run at once, where not as many as fit.

    A source tree that its repository no longer provides is taken from the mirror. Raises BuildFailedError where a step
    fails.
    """
    workspace.report(step_times.load(workspace.project))
    settings = environment.read(workspace.environment)
    first = jobs[0].work
    log = _log_file(workspace.project, first)
    hashes = {folder: expected for job in jobs for folder, expected in _own_index_hashes(job).items()}
    staged = local_wheels.stage(first.wheels, hashes, settings)
    names = {_target(job, number): job.work.tag for number, job in enumerate(jobs, start=1)}
    arguments, logins = proxy_secrets.split(settings.proxies)
    pushed = {target: job.push_to for target, job in zip(names, jobs, strict=True) if job.push_to}
    replaced: dict[str, str] = {}
    while True:
        targets = plan_bake.dump({"target": _with_logins(_targets(jobs, replaced), first, logins)})
        plain_file.write(first.path / engine_bake.BAKE_FILE, targets.encode())
        try:
            baked = engine_bake.bake_targets(
                workspace.engine,
                first.path,
                names=names,
                secrets=(*_secrets(settings), *proxy_secrets.secrets(logins), *_compilers(compilers)),
                contexts={"find-links": str(first.wheels)} if staged else {},
                # BuildKit knows the proxy arguments by name and keeps them out of cache key and history.
                args=arguments,
                cache=remote_builder.cache_options(workspace.project, jobs[0].definition),
                log_path=log,
                on_event=workspace.report,
                environ={**workspace.environment, **_index_variables(settings), **logins, _JOBS: str(compilers or "")},
                pushed=pushed,
            )
        except TreeGoneError as error:
            folder = first.path / f"tree-{len(replaced)}"
            replaced[error.address] = _from_mirror(workspace.project, error, folder, workspace.report)
            continue
        return tuple(baked[name] for name in names), log


def _from_mirror(project: Project, gone: TreeGoneError, folder: Path, report: Report) -> str:
    """Checks out the tree that BuildKit could not fetch, and returns its folder. Raises BuildFailedError where no
    mirror holds it."""
    from builder.sources.git import trees

    url, _, commit = gone.address.partition("#")
    try:
        trees.check_out(project.mirrors, url, commit, folder)
    except SourceError as error:
        raise BuildFailedError(
            f"{gone.message}\n{error.message}",
            log=gone.log,
            hint="look at the network; a commit that is gone for good is only in the mirror (.builder/mirrors) of a "
            "machine that pinned it",
        ) from None
    # BuildKit applies it to a folder, but not to a repository.
    (folder / ".dockerignore").unlink(missing_ok=True)
    report(Message(f"{url} did not give {commit[:12]}: its files come from the mirror"))
    return str(folder)


def _targets(jobs: Sequence[BakeJob], replaced: Mapping[str, str]) -> dict[str, Any]:
    """The targets of all jobs, made distinct by a number; some contexts are ``replaced`` by folders."""
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
            folder = str((job.directory / target["context"]).resolve())
            secrets = {"secret": [plan_bake.packages_secret(folder)]} if "secret" in target else {}
            more = {**secrets, **({"contexts": contexts} if contexts else {})}
            targets[renamed[name]] = {**target, "context": folder, **more}
    return targets


def _with_logins(targets: dict[str, Any], work: WorkFolder, logins: Mapping[str, str]) -> dict[str, Any]:
    """The targets with Dockerfiles that give proxies with a login to each step."""
    if not logins:
        return targets
    changed = {}
    for name, target in targets.items():
        own = (Path(target["context"]) / target["dockerfile"]).read_text(encoding="utf-8")
        dockerfile = work.path.resolve() / f"{name}.Dockerfile"
        plain_file.write(dockerfile, proxy_secrets.mounted(own, logins).encode())
        changed[name] = {**target, "dockerfile": str(dockerfile)}
    return changed


def _target(job: BakeJob, number: int) -> str:
    """A target name that is valid for bake, and unique among the jobs."""
    return f"{re.sub('[^A-Za-z0-9_-]', '_', job.definition)}-{number}"


def _own_index_hashes(job: BakeJob) -> dict[str, frozenset[str]]:
    """The hashes of the packages that come from an index of their own, by the folder in which the template looks for
    them: local wheels may take its place."""
    hashes = {}
    for name, target in job.targets.items():
        # A name that leads elsewhere is none of ours, and no template looks for it.
        definition = (job.definition if name == plan_bake.TARGET else name).replace("/", "_")
        for file in sorted((job.directory / target["context"] / "python").glob("index-*.txt")):
            text = file.read_text(encoding="utf-8", errors="replace")
            hashes[f"{definition}-{file.stem}"] = frozenset(_HASH.findall(text))
    return hashes


def _index_variables(settings: environment.UserSettings) -> dict[str, str]:
    extra = " ".join(settings.extra_index_urls)
    variables = {"PIP_INDEX_URL": settings.index_url, "PIP_EXTRA_INDEX_URL": extra}
    return {name: value for name, value in variables.items() if value}


def _secrets(settings: environment.UserSettings) -> tuple[engine_bake.Secret, ...]:
    """The secrets that the steps may use and must not keep; an index's address may contain a password."""
    files = [engine_bake.Secret("ca", src=str(settings.ca_file))] if settings.ca_file else []
    return (*files, *(engine_bake.Secret(name, env=name) for name in _index_variables(settings)))


def _compilers(count: int | None) -> tuple[engine_bake.Secret, ...]:
    return (engine_bake.Secret(_JOBS, env=_JOBS),) if count else ()


def _log_file(project: Project, work: WorkFolder) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    return project.state / "logs" / f"{stamp}-{work.name}.log"
