"""Mods that are tried without a build: a server's containers apply them before they serve.

A container waits after its start until each mod was applied in it by the script that bakes it, and passed its checks.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shlex
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from builder.base.errors import BuildFailedError, UsageError
from builder.base.events import Message, task
from builder.building import mod_choice, verification
from builder.definitions import image, mod
from builder.engine import containers, installed
from builder.plan import making, rules
from builder.plan.plan_model import WORKSPACE, ImageCheck
from builder.serving.running import TRIED
from builder.sources import git

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.base.project import Project
    from builder.definitions.container import ContainerSettings
    from builder.definitions.mod import Mod
    from builder.engine.client import Endpoint
    from builder.engine.containers import Container
    from builder.numbers.workspace import Workspace
    from builder.serving.preparation import PlannedContainer
    from builder.serving.running import RunningServer

_FOLDER = PurePosixPath("/run/builder")  # where a build has what a step needs
_APPLIED = "/run/builder-tried"
# Once the mark is there, the server takes the place of the shell, also when the engine restarts the container.
_WAIT = """\
trap 'exit 143' TERM INT
[ -e "$0" ] || echo "waiting until builder has applied the mods that are tried"
until [ -e "$0" ]; do sleep 0.1; done
trap - TERM INT
cd "$1"
shift
exec "$@"
"""
# For that of step.sh: the layer of a container is not empty as that of a step is, so that every folder has to be looked
# at; and what is mounted into it belongs to the machine.
_FIND_CHANGED = """
find_changed() {
    set -- -cnewer "$step_work/began" "$@"
    for step_mount in $(cut -d ' ' -f 5 /proc/self/mountinfo); do
        if [ "$step_mount" != / ]; then set -- -path "$step_mount" -prune -o "$@"; fi
    done
    find / -xdev \\( -path /run/builder -o -path /root/.cache/uv \\) -prune -o "$@"
}
"""
_SLACK = 600.0  # seconds for all but the script of a mod: patches, packages, bytecode


def load_tried(workspace: Workspace, engine: Endpoint, names: Sequence[str], image_name: str) -> tuple[Mod, ...]:
    """The mods ``names`` in the order in which they are applied to an image of ``engine``, with the files that they
    fetch. Raises FileProblemsError for an unknown mod, and for one that does not fit the others or what is installed;
    UsageError for one that can only act on the machine, or where the project cannot bake any."""
    project = workspace.project
    mods = mod.load_all(project, dict.fromkeys(map(mod.name_of, names)))
    _parts(project)
    for each in mods:
        if (facts := mod.read_script_facts(each)) and facts.instead:
            raise UsageError(f"mod {each.name} cannot be applied to an image: {facts.instead}")
        if each.run and not each.network:
            workspace.report(Message(f"mod {each.name} has the server's network here, and none in a build"))
    software = installed.read_installed(
        engine, image_name, {"builder.reading": f"{os.getpid()}-{secrets.token_hex(4)}"}
    )
    pinned = {**software.packages, "python": software.python}
    pinned |= {name: package.version for name, package in software.sources.items()}
    mods = rules.arrange_steps([rules.ImageMods(image_name, mods, pinned)], mod.mod_names(project))[0]
    mod.require_templates(mods)
    return mod_choice.fetch_mod_files(workspace, (mods,))[0]


def _parts(project: Project) -> dict[str, str]:
    parts = image.shared_parts(project)
    if lacking := {"_parts/mods.j2", "_parts/bake-mod.sh", "_parts/step.sh"} - parts.keys():
        raise UsageError(
            f"a mod is applied as builds bake it, and the project has no dockerfiles/{min(lacking)}",
            hint="`builder init` in an empty folder writes the shared parts",
        )
    return parts


def waiting(settings: ContainerSettings, mods: Sequence[Mod]) -> ContainerSettings:
    """The same container, which serves once the ``mods`` were applied in it."""
    own = {name: value for each in mods for name, value in each.env.items()}
    return replace(
        settings,
        argv=("/bin/sh", "-c", _WAIT, _mark(mods), WORKSPACE, *settings.argv),
        env={**own, **settings.env},
        labels={**settings.labels, TRIED: json.dumps([each.name for each in mods])},
    )


def _mark(mods: Sequence[Mod]) -> str:
    content = json.dumps([(each.name, each.content_hash) for each in mods])
    return f"{_APPLIED}/{hashlib.sha256(content.encode()).hexdigest()[:12]}"


def apply_tried(
    workspace: Workspace, server: RunningServer, planned: Sequence[PlannedContainer], mods: Sequence[Mod]
) -> None:
    """Applies the mods in each container of a server that waits for them, and lets it serve. Raises BuildFailedError
    where one fails or does not pass its checks, as a build does."""
    settings = git.read_index_settings(workspace.environment)
    indexes = {"PIP_INDEX_URL": settings.index_url, "PIP_EXTRA_INDEX_URL": " ".join(settings.extra_index_urls)}
    environ = {**dict(settings.proxies), **{name: value for name, value in indexes.items() if value}}
    parts = _parts(workspace.project)
    # The head last, as it is started last.
    for member, container_plan in reversed(list(zip(server.members, planned, strict=True))):
        container = containers.Container(member.engine.endpoint, member.service.id)
        container.run(["mkdir", "-p", WORKSPACE], timeout=_SLACK)
        container = replace(container, entrypoint=("env", "-C", WORKSPACE))
        where = f" on {member.engine.node}" if member.engine.node else ""
        for each in mods:
            with task(workspace.report, f"mod {each.name}{where}"):
                _apply(container, each, parts, environ)
        for each in mods:
            _check(container, each, on_gpu=container_plan.settings.gpus)
        container.run(["mkdir", "-p", _mark(mods)], timeout=_SLACK)


def _apply(container: Container, each: Mod, parts: dict[str, str], environ: dict[str, str]) -> None:
    script = making.mod_script(parts, each)
    if not script:
        return
    files = making.staged_files(each)
    staged = {_FOLDER / "mod" / path: file.content for path, file in files.items()}
    staged[_FOLDER / "bake-mod.sh"] = parts["_parts/bake-mod.sh"].encode()
    staged[_FOLDER / "step.sh"] = (parts["_parts/step.sh"] + _FIND_CHANGED).encode()
    container.run(["rm", "-rf", str(_FOLDER)], timeout=_SLACK)
    containers.put_file(container, staged)
    executable = [str(_FOLDER / "mod" / path) for path, file in files.items() if file.executable]
    first = f"chmod +x {shlex.join(executable)}\n" if executable else ""
    result = container.run(["/bin/sh", "-c", first + script], timeout=each.seconds + _SLACK, env=environ)
    if result.exit_code:
        raise BuildFailedError(
            f"mod {each.name} cannot be applied:\n{verification.last_lines(result.output)}",
            hint=f"nothing is left of this try; see mods/{each.name}",
        )
    container.run(["rm", "-rf", str(_FOLDER)], timeout=_SLACK)


def _check(container: Container, each: Mod, *, on_gpu: bool) -> None:
    texts = {file.path: file.content.decode(errors="replace") for file in each.files}
    for check in each.checks:
        if check.gpu and not on_gpu:
            continue
        seconds = verification.KERNEL_SECONDS if check.gpu else verification.CHECK_SECONDS
        image_check = ImageCheck(each.name, check, texts[check.run] if check.run else None)
        if failure := verification.check_failure(container, image_check, seconds):
            raise BuildFailedError(failure, hint=f"the mod did not do its work; see mods/{each.name}")
