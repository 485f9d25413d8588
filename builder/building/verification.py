"""The fourth step of a build: proof that the image holds what was planned."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from builder.engine import containers, images
from builder.errors import BuildFailedError
from builder.events import Message, Report
from builder.lock.model import NumberedImage
from builder.plan.model import WORKSPACE, ImageCheck, Plan

if TYPE_CHECKING:
    from builder.building.baked_image import BakedImage
    from builder.engine.buildkit.bake import BakeResult
    from builder.engine.client.endpoint import Endpoint
    from builder.workspace import Workspace

# Importing vLLM reads some gigabytes from a cold disk; a check of a mod is a look at a file.
IMPORT_SECONDS = 600
CHECK_SECONDS = 120

_VERSION = "import importlib.metadata; print(importlib.metadata.version('vllm'))"


def verify(workspace: Workspace, baked: BakedImage) -> NumberedImage:
    """Returns the record of a baked image that has passed every check. Raises BuildFailedError for one that has not."""
    engine, planned, plan = workspace.engine, baked.planned, baked.planned.plan
    require_pinned_base(engine, plan, baked.result, baked.details)
    run_checks(engine, baked.work.tag, plan, baked.work.labels, baked.host_platform, workspace.report)
    return NumberedImage(
        built=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        definition=plan.definition.name,
        platform=plan.definition.platform,
        fingerprint=images.fingerprint(baked.details),
        input_hash=plan.input_hash,
        size=images.disk_size(engine, baked.work.tag),
        recipe=planned.recipe.file if planned.recipe else None,
        versions=plan.versions,
        mods={mod.name: mod.content_hash for mod in plan.mods},
        builder=engine.instance if engine.builds_elsewhere else None,
    )


def require_pinned_base(endpoint: Endpoint, plan: Plan, baked: BakeResult, built: images.ImageDetails) -> None:
    """Raises BuildFailedError where the image stands on another base than the pinned one.

    A digest is compared with what BuildKit says it used; for a base that only this engine has, its layers must be the
    lowest ones of the image.
    """
    pin = plan.chain[0].pins.base
    if pin is None:
        return
    if pin.resolved.startswith("local:"):
        base = images.inspect(endpoint, pin.requested)
        holds = base is not None and built.layers[: len(base.layers)] == base.layers
    else:
        holds = pin.resolved in {material.digest for material in baked.materials}
    if not holds:
        used = ", ".join(f"{material.uri} {material.digest}" for material in baked.materials) or "nothing"
        raise BuildFailedError(
            f"the image is not built on the pinned base {pin.requested} {pin.resolved}; BuildKit used {used}",
            hint="the base was replaced during the build: build again",
        )


def run_checks(
    endpoint: Endpoint, image: str, plan: Plan, labels: dict[str, str], host_platform: str, report: Report
) -> None:
    """Runs every check of ``plan``, of the images below as well, in one container of ``image``, without a network.

    An image for another platform than the engine's is checked where the engine can run it all the same (by QEMU); that
    it cannot, and that vLLM is not imported then, is said. Raises BuildFailedError naming all that do not hold.
    """
    if not plan.checks and "vllm" not in plan.versions:
        return
    report(Message("checking the image"))
    platform = plan.definition.platform
    with containers.running(endpoint, image, labels=labels, workdir=WORKSPACE) as container:
        if platform != host_platform and not containers.can_execute(container):
            report(Message(f"checks not run: this engine is {host_platform}, and does not emulate {platform}"))
            return
        if "vllm" in plan.versions:
            _require_version(container, plan.versions["vllm"].version)
            if platform == host_platform:
                _import_vllm(container)
            else:
                report(Message(f"vLLM not imported: on an emulated {platform} that takes more than ten minutes"))
        failed = {wanted: said for wanted in plan.checks if (said := _failure(container, wanted))}
    if failed:
        owners = ", ".join(dict.fromkeys(f"mods/{wanted.owner}" for wanted in failed))
        raise BuildFailedError(
            "\n".join(failed.values()),
            hint=f"a mod did not do its work in this image, or one that is baked after it undid it; see {owners}",
        )


def _require_version(container: containers.Container, wanted: str) -> None:
    result = container.run(["python3", "-c", _VERSION], timeout=CHECK_SECONDS)
    said = "" if result.exit_code else result.output
    found = (said.strip().splitlines() or ["of no version"])[-1]
    if found.partition("+")[0] != wanted.partition("+")[0]:
        raise BuildFailedError(f"the image holds vLLM {found}, while {wanted} is pinned")


def _import_vllm(container: containers.Container) -> None:
    result = container.run(["python3", "-c", "import vllm"], timeout=IMPORT_SECONDS)
    if result.exit_code:
        raise BuildFailedError(f"vLLM cannot be imported in the image:\n{_last_lines(result.output)}")


def _failure(container: containers.Container, wanted: ImageCheck) -> str:
    """What to say of a check that does not hold, or nothing."""
    check = wanted.check
    if wanted.script is not None:
        argv, said = ["bash", "-c", wanted.script], f"{check.run} fails"
    elif check.contains:
        argv = ["grep", "-qF", "-e", check.contains, "--", str(check.file)]
        said = f"{check.file} lacks {check.contains!r}"
    else:
        argv, said = ["test", "-e", str(check.file)], f"{check.file} is not there"
    result = container.run(argv, timeout=CHECK_SECONDS, env={"WORKSPACE_DIR": WORKSPACE})
    if not result.exit_code:
        return ""
    return "\n".join(part for part in (f"check of mod {wanted.owner}: {said}", _last_lines(result.output)) if part)


def _last_lines(output: str) -> str:
    return "\n".join(f"  {line}" for line in output.rstrip().splitlines()[-10:])
