"""The fourth step of a build: the checks that the image holds what was planned."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from builder import timestamp
from builder.building import gpu_checks, mod_checks, recipe_templates
from builder.engine import container_files, containers, images, installed
from builder.errors import BuildFailedError
from builder.events import Message, Report, task
from builder.lock.model import NumberedImage
from builder.plan import layout
from builder.plan.model import WORKSPACE, Plan
from builder.storage import plain_file

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from builder.building.baked_image import BakedImage
    from builder.building.recipe_templates import ExpectedTemplate
    from builder.engine.buildkit.bake import BakeResult
    from builder.engine.client.endpoint import Endpoint
    from builder.workspace import Workspace

# Importing vLLM reads some gigabytes from a cold disk; a check of a mod looks at a file.
IMPORT_SECONDS = 600
CHECK_SECONDS = 120

# Where dockerfiles/_parts/apt.sh writes it.
_PACKAGES = "/usr/share/builder/distribution-packages"
_VERSION = "import importlib.metadata; print(importlib.metadata.version('vllm'))"


def verify(workspace: Workspace, baked: BakedImage, without: Mapping[str, str]) -> NumberedImage:
    """Returns the record of a baked image that has passed every check but those ``without``, which the user left out,
    each with the reason. Raises BuildFailedError for an image that has not."""
    engine, planned, plan = workspace.engine, baked.planned, baked.planned.plan
    require_pinned_base(engine, plan, baked.result, baked.details)
    unchecked = mod_checks.left_out(plan, without)
    templates = recipe_templates.expected(workspace.project, plan, planned.recipe)
    labels = baked.work.labels
    keep_record(engine, baked)
    run_checks(engine, baked.work.tag, plan, labels, baked.host_platform, workspace.report, templates, unchecked)
    gpu = None if mod_checks.GPU in unchecked else gpu_checks.run(workspace, baked, unchecked)
    return NumberedImage(
        built=timestamp.now(),
        definition=plan.definition.name,
        platform=plan.definition.platform,
        fingerprint=images.fingerprint(baked.details),
        input_hash=plan.input_hash,
        size=images.disk_size(engine, baked.work.tag),
        recipe=planned.recipe.file if planned.recipe else None,
        versions=plan.versions,
        mods={mod.name: mod.content_hash for mod in plan.mods},
        builder=engine.instance if engine.builds_elsewhere else None,
        gpu=gpu,
        unchecked=unchecked,
    )


def keep_record(engine: Endpoint, baked: BakedImage) -> None:
    """Writes into the build directory what it takes to build the image again, and to tell what differs then: the
    distribution's packages that it says it has installed, and its layers."""
    plain_file.write(
        baked.work.directory / layout.LAYERS, "".join(f"{layer}\n" for layer in baked.details.layers).encode()
    )
    parts = [path for path in baked.planned.plan.files if path.rpartition("/")[2] == layout.PACKAGES]
    if not parts:
        return
    index = container_files.read(engine, baked.work.tag, _PACKAGES, baked.work.labels, layout.LARGEST_FILE)
    if index:
        installed_at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        for path in parts:
            plain_file.write(baked.work.directory / path, f"# installed {installed_at}\n".encode() + index)


def require_pinned_base(endpoint: Endpoint, plan: Plan, baked: BakeResult, built: images.ImageDetails) -> None:
    """Raises BuildFailedError where the image was built on another base than the pinned one.

    A digest is compared with those that BuildKit reports; the layers of a base that only this engine has must be the
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
    endpoint: Endpoint,
    image: str,
    plan: Plan,
    labels: dict[str, str],
    host_platform: str,
    report: Report,
    templates: Sequence[ExpectedTemplate] = (),
    without: Collection[str] = (),
) -> None:
    """Runs every check of ``plan``, those of its parents included, in one container of ``image``, without a network,
    and looks for the ``templates``. The checks ``without`` do not run.

    An image for another platform than the engine's is checked where the engine can emulate it (by QEMU), and vLLM is
    not imported then; what is left out is reported. Raises BuildFailedError naming every check that fails.
    """
    if not plan.checks and not templates and "vllm" not in plan.versions:
        return
    platform = plan.definition.platform
    with (
        task(report, "checking the image"),
        containers.running(endpoint, image, labels=labels, workdir=WORKSPACE, memory=0) as container,
    ):
        if platform != host_platform and not containers.can_execute(container):
            report(Message(f"checks not run: this engine is {host_platform}, and does not emulate {platform}"))
            return
        python = installed.find_python(container) or "python3"
        if "vllm" in plan.versions and mod_checks.VERSION not in without:
            _require_version(container, python, plan.versions["vllm"].version)
        if "vllm" in plan.versions and mod_checks.IMPORT not in without:
            if platform == host_platform:
                _import_vllm(container, python)
            else:
                report(Message(f"vLLM not imported: on an emulated {platform} that takes more than ten minutes"))
        if mod_checks.TEMPLATE not in without:
            recipe_templates.require_usable(container, python, templates)
        wanted = (check for check in plan.checks if not check.check.gpu and check.owner not in without)
        failures = mod_checks.failures(container, wanted, CHECK_SECONDS)
    if failures:
        owners = dict.fromkeys(check.owner for check in failures)
        folders = ", ".join(f"mods/{owner}" for owner in owners)
        hint = f"a mod did not do its work in this image, or one that is baked after it undid it; see {folders}"
        raise mod_checks.failed("\n".join(failures.values()), hint, owners)


def _require_version(container: containers.Container, python: str, pinned: str) -> None:
    result = container.run([python, "-c", _VERSION], timeout=CHECK_SECONDS)
    output = "" if result.exit_code else result.output
    installed = (output.strip().splitlines() or ["of no version"])[-1]
    if installed.partition("+")[0] != pinned.partition("+")[0]:
        message = f"check {mod_checks.VERSION}: the image holds vLLM {installed}, while {pinned} is pinned"
        raise mod_checks.failed(message, "", [mod_checks.VERSION])


def _import_vllm(container: containers.Container, python: str) -> None:
    result = container.run([python, "-c", "import vllm"], timeout=IMPORT_SECONDS)
    if result.exit_code:
        output = mod_checks.last_lines(result.output)
        message = f"check {mod_checks.IMPORT}: vLLM cannot be imported in the image:\n{output}"
        raise mod_checks.failed(message, "", [mod_checks.IMPORT])
