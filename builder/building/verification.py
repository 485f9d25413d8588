"""The fourth step of a build checks that the image contains everything in its plan.

The GPU checks run only if the engine has a GPU. The record of the image names that GPU."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from builder.base import files, words
from builder.base.errors import BuildFailedError, FileProblemsError, ImageStateError, Location, UsageError
from builder.base.events import Message, Report, task
from builder.definitions import chat_template, command, image, mod, recipe, recipe_problems
from builder.engine import containers, images, installed, machine
from builder.engine.client import Endpoint, EngineHTTPError
from builder.lock.model import NumberedImage, shown_base, shown_mods, shown_pulls, shown_versions
from builder.plan import plan_model
from builder.plan.plan_model import WORKSPACE, ImageCheck, Plan

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.building.bake import BakedImage
    from builder.definitions.recipe import Recipe
    from builder.engine.containers import Container
    from builder.engine.installed import GpuFacts
    from builder.numbers.workspace import Workspace


# The names of the checks that belong to no mod. The check of a mod has the name of the mod.
VERSION, IMPORT, TEMPLATE, GPU = "vllm-version", "vllm-import", "chat-template", "gpu"
# Importing vLLM may read several gigabytes from a cold disk; the check of a mod only reads a file.
IMPORT_SECONDS = 600
CHECK_SECONDS = 120

# dockerfiles/_parts/apt.sh writes it there.
_PACKAGES = "/usr/share/builder/distribution-packages"
_VERSION = "import importlib.metadata; print(importlib.metadata.version('vllm'))"


def verify_image(workspace: Workspace, baked: BakedImage, without: Mapping[str, str]) -> NumberedImage:
    """Checks a baked image, and returns its record. ``without`` maps the checks that the user skips to the reasons.
    Raises BuildFailedError if another check fails."""
    engine, planned, plan = workspace.engine, baked.planned, baked.planned.plan
    _require_pinned_base(engine, baked)
    unchecked = _left_out(plan, without)
    templates = expected_templates(workspace.project, plan, planned.recipe)
    labels = baked.work.labels
    _keep_record(engine, baked)
    run_checks(engine, baked.work.tag, plan, labels, baked.host_platform, workspace.report, templates, unchecked)
    gpu = None if GPU in unchecked else _run_gpu_checks(workspace, baked, unchecked)
    # The last image of the chain decides which transformers the image has.
    brought = (each for part in plan.chain for each in (part.pins.base, part.pins.python) if each)
    packages = {package.name: package.version for each in brought for package in each.packages}
    return NumberedImage(
        built=words.now(),
        definition=plan.definition.name,
        platform=plan.definition.platform,
        fingerprint=images.fingerprint(baked.details),
        input_hash=plan.input_hash,
        size=images.disk_size(engine, baked.work.tag),
        recipe=planned.recipe.file if planned.recipe else None,
        versions=shown_versions(plan.versions),
        mods=shown_mods({mod.name: mod.content_hash for mod in plan.mods}),
        pulls=shown_pulls(part.pins for part in plan.chain),
        base=shown_base(plan.chain[0].pins.base),
        transformers=packages.get("transformers", ""),
        builder=engine.instance if engine.builds_elsewhere else None,
        gpu=gpu,
        unchecked=unchecked,
    )


def _keep_record(engine: Endpoint, baked: BakedImage) -> None:
    """Adds to the build directory what a rebuild requires: the distribution's packages that the build installed, and
    the layers of the image, to compare them."""
    files.write_plain_file(
        baked.work.directory / plan_model.LAYERS, "".join(f"{layer}\n" for layer in baked.details.layers).encode()
    )
    parts = [path for path in baked.planned.plan.files if path.rpartition("/")[2] == plan_model.PACKAGES]
    if not parts:
        return
    index = containers.read_image_file(engine, baked.work.tag, _PACKAGES, baked.work.labels, plan_model.LARGEST_FILE)
    if index:
        installed_at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        for path in parts:
            files.write_plain_file(baked.work.directory / path, f"# installed {installed_at}\n".encode() + index)


def _require_pinned_base(endpoint: Endpoint, baked: BakedImage) -> None:
    """Raises BuildFailedError if the image was not built on its pinned base. A digest is compared with the digests that
    BuildKit reports. The layers of a base that exists only in this engine must be the lowest layers of the image."""
    pin, materials = baked.planned.plan.chain[0].pins.base, baked.result.materials
    if pin is None:
        return
    if pin.resolved.startswith(installed.LOCAL):
        base = images.inspect_image(endpoint, pin.requested)
        holds = base is not None and baked.details.layers[: len(base.layers)] == base.layers
    else:
        holds = pin.resolved in {material.digest for material in materials}
    if not holds:
        used = ", ".join(f"{material.uri} {material.digest}" for material in materials) or "nothing"
        message = f"the image was not built on the pinned base {pin.requested} {pin.resolved}; BuildKit used {used}"
        raise BuildFailedError(message, hint="the base was replaced during the build: build again")


def run_checks(
    endpoint: Endpoint,
    image: str,
    plan: Plan,
    labels: dict[str, str],
    host_platform: str,
    report: Report,
    templates: Mapping[str, Location],
    without: Collection[str] = (),
) -> None:
    """Runs the checks of ``plan`` and its parents, except ``without``, in one container of ``image`` without a network,
    and looks for the ``templates``. If the engine emulates the platform of the image (with QEMU), vLLM is not imported;
    without emulation, no check runs. Skipped checks are reported. Raises BuildFailedError with the names of all failed
    checks."""
    if not plan.checks and not templates and "vllm" not in plan.versions:
        return
    platform = plan.definition.platform
    with (
        task(report, "checking the image"),
        containers.running(endpoint, image, labels=labels, workdir=WORKSPACE, memory=0) as container,
    ):
        if platform != host_platform and not containers.can_execute(container):
            report(Message(f"checks not run: this engine is {host_platform} and does not emulate {platform}"))
            return
        python = installed.find_python(container) or "python3"
        if "vllm" in plan.versions and VERSION not in without:
            pinned = plan.versions["vllm"].version
            result = container.run([python, "-c", _VERSION], timeout=CHECK_SECONDS)
            there = "" if result.exit_code else result.last_line
            if there.partition("+")[0] != pinned.partition("+")[0]:
                contained = f"vLLM {there}" if there else "no package vllm"
                message = f"check {VERSION}: the image contains {contained}, but {pinned} is pinned"
                raise _failed(message, "", [VERSION])
        if "vllm" in plan.versions and IMPORT not in without and platform != host_platform:
            report(Message(f"vLLM not imported: on an emulated {platform}, the import takes more than ten minutes"))
        elif "vllm" in plan.versions and IMPORT not in without:
            result = container.run([python, "-c", "import vllm"], timeout=IMPORT_SECONDS)
            if result.exit_code:
                message = f"check {IMPORT}: vLLM cannot be imported in the image:\n{last_lines(result.output)}"
                raise _failed(message, "", [IMPORT])
        if TEMPLATE not in without:
            _require_templates(container, templates)
        wanted = (check for check in plan.checks if not check.check.gpu and check.owner not in without)
        failures = {check: text for check in wanted if (text := check_failure(container, check, CHECK_SECONDS))}
    if failures:
        owners = dict.fromkeys(check.owner for check in failures)
        folders = ", ".join(f"mods/{owner}" for owner in owners)
        hint = f"a mod had no effect in this image, or a later mod undid it; see {folders}"
        raise _failed("\n".join(failures.values()), hint, owners)


def _left_out(plan: Plan, without: Mapping[str, str]) -> dict[str, str]:
    """The checks in ``without`` that the image of ``plan`` has, with their reasons."""
    names = {VERSION, IMPORT, TEMPLATE, GPU, *(check.owner for check in plan.checks)}
    return {name: reason for name, reason in without.items() if name in names}


def require_known(plans: Collection[Plan], without: Mapping[str, str]) -> None:
    """Raises UsageError if a name in ``without`` is not a check of any image."""
    if unknown := [name for name in without if not any(_left_out(plan, {name: ""}) for plan in plans)]:
        own = dict.fromkeys(check.owner for plan in plans for check in plan.checks)
        message = f"`--without-check {unknown[0]}`: the image has no check with this name"
        raise UsageError(message, hint=f"its checks are {', '.join([VERSION, IMPORT, TEMPLATE, GPU, *own])}")


def _failed(message: str, hint: str, names: Iterable[str]) -> BuildFailedError:
    """The error for an image whose checks ``names`` fail. Its end says how to build the image anyway."""
    options = " ".join(f"--without-check {name}" for name in dict.fromkeys(names))
    wrong = f"if the image is right and the check is wrong on this machine, build with `{options} --note WHY`"
    return BuildFailedError(message, hint=f"{hint}; {wrong}" if hint else wrong)


def last_lines(output: str) -> str:
    return "\n".join(f"  {line}" for line in output.rstrip().splitlines()[-10:])


def check_failure(container: Container, image_check: ImageCheck, seconds: float) -> str:
    """The failure of a check in a container; empty if it passes."""
    check = image_check.check
    if image_check.script is not None:
        argv, failure = ["bash", "-c", image_check.script], f"{check.run} fails"
    elif check.contains and "\n" in check.contains:
        # grep would search for each line separately, and find an empty line everywhere.
        compare = 'case $(cat -- "$2"; echo .) in *"$1"*) ;; *) exit 1 ;; esac'
        argv = ["sh", "-c", compare, "sh", check.contains, str(check.file)]
        failure = f"{check.file} lacks {check.contains!r}"
    elif check.contains:
        argv = ["grep", "-qF", "-e", check.contains, "--", str(check.file)]
        failure = f"{check.file} lacks {check.contains!r}"
    else:
        argv, failure = ["test", "-e", str(check.file)], f"{check.file} does not exist"
    result = container.run(argv, timeout=seconds, env={"WORKSPACE_DIR": WORKSPACE})
    if not result.exit_code:
        return ""
    return f"check of mod {image_check.owner}: {failure}\n{last_lines(result.output)}".rstrip()


# The first call compiles a mod's kernels.
KERNEL_SECONDS = 1800


def _run_gpu_checks(workspace: Workspace, baked: BakedImage, without: Collection[str]) -> str | None:
    """Checks an image on the engine's GPU, except for ``without``, and returns the name of the GPU. If nothing can be
    checked, reports the reason and returns None. Raises BuildFailedError with the names of all failed checks."""
    plan = baked.planned.plan
    if "vllm" not in plan.versions or plan.definition.platform != baked.host_platform:
        return None
    settings = image.serve_settings(workspace.project, plan.definition.name)
    if settings.gpus != "all":
        return None
    if not machine.has_nvidia(workspace.engine):
        workspace.report(Message("checks on a GPU not run: this engine has no GPU"))
        return None
    entrypoint = tuple(baked.details.config.get("Entrypoint", ())) if settings.keep_entrypoint else ()
    plan = replace(plan, checks=tuple(each for each in plan.checks if each.owner not in without))
    return check_gpu(workspace.engine, baked.work.tag, plan, baked.work.labels, workspace.report, entrypoint=entrypoint)


def check_gpu(
    endpoint: Endpoint,
    image: str,
    plan: Plan,
    labels: Mapping[str, str],
    report: Report,
    devices: containers.Devices = containers.ALL_GPUS,
    entrypoint: tuple[str, ...] = (),
) -> str | None:
    """Checks ``image`` in a container with ``devices``, with commands for ``entrypoint``, like `_run_gpu_checks`."""
    report(Message("checking the image on the GPU"))
    try:
        with containers.running(
            endpoint, image, labels=labels, workdir=WORKSPACE, devices=devices, memory=0, entrypoint=entrypoint
        ) as container:
            facts = installed.read_gpu(container, installed.find_python(container) or "python3")
            failing = [(GPU, problem) for problem in gpu_problems(facts, plan)]
            if facts.capability:
                wanted = (image_check for image_check in plan.checks if image_check.check.gpu)
                tried = ((check.owner, check_failure(container, check, KERNEL_SECONDS)) for check in wanted)
                failing += [(owner, problem) for owner, problem in tried if problem]
    except (EngineHTTPError, ImageStateError) as error:
        report(Message(f"checks on the GPU not run: {error.message}; `builder doctor` may show why"))
        return None
    if any("out of memory" in problem.lower() for _, problem in failing):
        report(
            Message("checks on the GPU not finished: the GPU ran out of memory; run `builder stop`, then build again")
        )
        return None
    if failing:
        hint = "fix the cause, then build again: finished layers are reused"
        message = "\n".join([f"check {GPU}, on the GPU of this machine:", *(text for _, text in failing)])
        raise _failed(message, hint, (name for name, _ in failing))
    return f"{facts.card}, compute capability {facts.capability}"


def gpu_problems(facts: GpuFacts, plan: Plan) -> Iterator[str]:
    for part, text in facts.failures.items():
        yield {
            "torch": f"torch cannot report the GPU: {text}",
            "import": f"vLLM cannot be imported: {text}",
            "kernel": f"vLLM's kernel rms_norm does not run: {text}",
        }.get(part, f"{part}: {text}")
    if not facts.capability and "torch" not in facts.failures:
        yield "torch.cuda.is_available() is false: torch is not built for CUDA, or the driver is too old for it"
    versions = {name: version.partition("+")[0] for name, version in facts.versions.items()}
    main, pinned = versions.get("flashinfer-python"), plan.versions.get("flashinfer")
    for name, version in versions.items():
        if main and version != main:
            yield f"{name} is {version}, but flashinfer-python is {main}: FlashInfer refuses kernels of another version"
    if pinned and main and pinned.version.partition("+")[0] != main:
        yield f"the image contains FlashInfer {main}, but {pinned.version} is pinned"


def expected_templates(project: Project, plan: Plan, own: Recipe | None) -> dict[str, Location]:
    """The chat templates that the image of ``plan`` must contain, each with the location that names it: for the recipe
    of the build, and for other recipes that use the image unchanged. The template of a recipe with more mods may come
    from these mods. Paths are relative to the server's folder."""
    baked = {mod.name for part in plan.chain for mod in part.mods}
    using = [
        each
        for _, each in recipe.readable_recipes(project)
        if each.repository == plan.repository and not each.number and {*map(mod.name_of, each.mods)} <= baked
    ]
    templates = {}
    for each in [*using, *([own] if own else [])]:
        # `recipes check` reports a recipe that cannot be served.
        with suppress(FileProblemsError, UsageError):
            rendered = command.render_command(each, {})
            used = recipe_problems.template_of_image(each, rendered)
            # A script may change the folder before it starts the server.
            if used and used.value and (not rendered.is_script or used.value.startswith("/")):
                templates[used.value] = command.of_value(each, used)
    return templates


def _require_templates(container: Container, templates: Mapping[str, Location]) -> None:
    """Raises BuildFailedError with every template that the image of ``container`` lacks, or that is not valid."""
    read = {path: container.run(["cat", "--", path], timeout=CHECK_SECONDS) for path in templates}
    lines = [f"{templates[path]}: the image has no chat template {path}" for path in read if read[path].exit_code]
    hint = "`files: [{from: TEMPLATE, to: .}]` in a mod.yaml adds a template, which a recipe can then name"
    if not lines:
        faults = {path: chat_template.fault(result.output.encode()) for path, result in read.items()}
        lines = [f"{templates[path]}: line {told[0]} of {path}: {told[1]}" for path, told in faults.items() if told]
        hint = "vLLM would refuse every request: check the mod whose script changes the template"
    if lines:
        raise _failed("\n".join([f"check {TEMPLATE}:", *lines]), hint, [TEMPLATE])
