"""Applies mods in the containers of a waiting server, in the same way as a build bakes them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from builder.base.errors import BuildFailedError, UsageError
from builder.base.events import task
from builder.building import mod_choice, verification
from builder.definitions import image
from builder.engine import containers
from builder.plan import making
from builder.plan.plan_model import WORKSPACE, ImageCheck
from builder.serving import preparation
from builder.sources import git

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.definitions.mod import Mod
    from builder.engine.containers import Container
    from builder.numbers.workspace import Workspace
    from builder.serving.preparation import PlannedContainer
    from builder.serving.running import RunningServer

_FOLDER = PurePosixPath("/run/builder")  # the folder with the files of a build step
# Replaces the function in step.sh. Unlike a build step, a container has a layer that is not empty, so every folder is
# searched. Mounted folders belong to the machine, and are left out.
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


def _parts(project: Project) -> dict[str, str]:
    parts = image.shared_parts(project)
    if lacking := {"_parts/mods.j2", "_parts/bake-mod.sh", "_parts/step.sh"} - parts.keys():
        message = f"applying a mod requires dockerfiles/{min(lacking)}, which the project does not have"
        hint = "`builder init` in an empty folder writes dockerfiles/_parts: copy that folder into the project"
        raise UsageError(message, hint=hint)
    return parts


def apply_tried(
    workspace: Workspace, server: RunningServer, planned: Sequence[PlannedContainer], mods: Sequence[Mod]
) -> None:
    """Applies the mods in each container of a waiting server, and lets the server start. Like a build, raises
    BuildFailedError if a mod fails or does not pass its checks."""
    settings = git.read_index_settings(workspace.environment)
    indexes = {"PIP_INDEX_URL": settings.index_url, "PIP_EXTRA_INDEX_URL": " ".join(settings.extra_index_urls)}
    environ = {**dict(settings.proxies), **{name: value for name, value in indexes.items() if value}}
    parts = _parts(workspace.project)
    mods = mod_choice.fetch_mod_files(workspace, (tuple(mods),))[0]
    applied = []
    for member, container_plan in zip(server.members, planned, strict=True):
        container = containers.Container(member.engine, member.service.id)
        container.run(["mkdir", "-p", WORKSPACE], timeout=_SLACK)
        container = replace(container, entrypoint=("env", "-C", WORKSPACE))
        applied.append(container)
        where = f" on {member.engine.node}" if member.engine.node else ""
        for each in mods:
            with task(workspace.report, f"mod {each.name}{where}"):
                _apply(container, each, parts, environ)
        for each in mods:
            _check(container, each, on_gpu=container_plan.settings.gpus)
    # All at once, because they wait for each other only for a limited time; the head is last.
    for container in reversed(applied):
        container.run(["mkdir", "-p", preparation.tried_mark(mods)], timeout=_SLACK)


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
        message = f"mod {each.name} cannot be applied:\n{verification.last_lines(result.output)}"
        raise BuildFailedError(message, hint=f"this attempt was undone; see mods/{each.name}")
    container.run(["rm", "-rf", str(_FOLDER)], timeout=_SLACK)


def _check(container: Container, each: Mod, *, on_gpu: bool) -> None:
    texts = {file.path: file.content.decode(errors="replace") for file in each.files}
    for check in each.checks:
        if check.gpu and not on_gpu:
            continue
        seconds = verification.KERNEL_SECONDS if check.gpu else verification.CHECK_SECONDS
        image_check = ImageCheck(each.name, check, texts[check.run] if check.run else None)
        if failure := verification.check_failure(container, image_check, seconds):
            raise BuildFailedError(failure, hint=f"the mod had no effect; see mods/{each.name}")
