"""The checks of a finished image that need a GPU: they run where the engine has one, and what ran is recorded."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from builder.building import mod_checks
from builder.definitions import serving
from builder.engine import containers, gpu_probe, images, installed
from builder.engine.client import versions
from builder.engine.client.errors import EngineHTTPError
from builder.errors import ImageStateError
from builder.events import Message
from builder.plan.model import WORKSPACE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from builder.building.baked_image import BakedImage
    from builder.engine.client.endpoint import Endpoint
    from builder.engine.gpu_probe import GpuFacts
    from builder.events import Report
    from builder.plan.model import Plan
    from builder.workspace import Workspace

# A mod's kernels are compiled by their first call.
KERNEL_SECONDS = 1800
_NO_MEMORY = "out of memory"
_ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")


def run(workspace: Workspace, baked: BakedImage, without: Collection[str]) -> str | None:
    """Checks an image on the engine's GPU, and returns which that is; None where nothing was checked, which is told.
    The checks ``without`` do not run.

    Raises BuildFailedError naming every check that fails.
    """
    plan = baked.planned.plan
    if "vllm" not in plan.versions or plan.definition.platform != baked.host_platform:
        return None
    settings = serving.of(workspace.project, plan.definition.name)
    if settings.gpus != "all":
        return None
    if not versions.has_nvidia(workspace.engine):
        workspace.report(Message("checks on a GPU not run: this engine has none"))
        return None
    details = images.inspect(workspace.engine, baked.work.tag) if settings.keep_entrypoint else None
    entrypoint = tuple(details.config.get("Entrypoint", ())) if details else ()
    plan = replace(plan, checks=tuple(each for each in plan.checks if each.owner not in without))
    return check(workspace.engine, baked.work.tag, plan, baked.work.labels, workspace.report, entrypoint=entrypoint)


def check(
    endpoint: Endpoint,
    image: str,
    plan: Plan,
    labels: Mapping[str, str],
    report: Report,
    devices: containers.Devices = containers.ALL_GPUS,
    entrypoint: tuple[str, ...] = (),
) -> str | None:
    """Checks ``image`` in a container that has ``devices``, by commands that ``entrypoint`` runs; else as `run`."""
    report(Message("checking the image on the GPU"))
    try:
        with containers.running(
            endpoint, image, labels=labels, workdir=WORKSPACE, devices=devices, memory=0, entrypoint=entrypoint
        ) as container:
            facts = gpu_probe.read(container, installed.find_python(container) or "python3")
            failing = [(mod_checks.GPU, problem) for problem in problems(facts, plan)]
            if facts.capability:
                wanted = (image_check for image_check in plan.checks if image_check.check.gpu)
                failures = mod_checks.failures(container, wanted, KERNEL_SECONDS)
                failing += [(failed.owner, problem) for failed, problem in failures.items()]
    except (EngineHTTPError, ImageStateError) as error:
        report(Message(f"checks on the GPU not run: {error.message}; `builder doctor` may say why"))
        return None
    if any(_NO_MEMORY in problem.lower() for _, problem in failing):
        report(
            Message("checks on the GPU not finished: it had no memory left; `builder stop` what is served, build again")
        )
        return None
    if failing:
        hint = "the layers are kept: mend what is named, and only what comes after it is built again"
        message = "\n".join([f"check {mod_checks.GPU}, on the GPU of this machine:", *(text for _, text in failing)])
        raise mod_checks.failed(message, hint, (name for name, _ in failing))
    return f"{facts.card}, compute capability {facts.capability}"


def problems(facts: GpuFacts, plan: Plan) -> Iterator[str]:
    """Everything that the facts tell against the image."""
    for part, text in facts.failures.items():
        yield {
            "torch": f"torch cannot be asked for the GPU: {text}",
            "import": f"vLLM cannot be imported: {text}",
            "kernel": f"vLLM's kernel rms_norm does not run: {text}",
        }.get(part, f"{part}: {text}")
    if not facts.capability:
        if "torch" not in facts.failures:
            yield "torch.cuda.is_available() is false: torch is none for CUDA, or the driver is older than it wants"
    elif not any(runs_on(architecture, facts.capability) for architecture in facts.architectures):
        named = ", ".join(facts.architectures) or "nothing"
        yield f"torch has kernels for {named}, and the card is {facts.card} ({facts.capability})"
    yield from _flashinfer(facts, plan)


def runs_on(architecture: str, capability: str) -> bool:
    """True if kernels for ``architecture`` (``sm_120``, ``sm_121a``, ``compute_90``) run on a card of ``capability``.

    Machine code runs on cards of its major version and at least its minor one; with ``a`` on that very card, with
    ``f`` on its family. PTX is compiled for any later card:
    https://docs.nvidia.com/cuda/cuda-c-programming-guide/#gpu-feature-availability
    """
    match = _ARCHITECTURE.fullmatch(architecture)
    if match is None:
        return False
    kind, major, minor, suffix = match[1], int(match[2]), int(match[3]), match[4]
    card = tuple(map(int, capability.split(".")))
    if suffix == "a":
        return (major, minor) == card
    if kind == "compute" and not suffix:
        return (major, minor) <= card
    return major == card[0] and minor <= card[1]


def _flashinfer(facts: GpuFacts, plan: Plan) -> Iterator[str]:
    from packaging.requirements import InvalidRequirement, Requirement

    have = {name: version.partition("+")[0] for name, version in facts.versions.items()}
    main = have.get("flashinfer-python")
    for name, version in have.items():
        if main and version != main:
            yield f"{name} is {version}, and flashinfer-python {main}: FlashInfer refuses kernels of another version"
    pinned = plan.versions.get("flashinfer")
    if pinned and main and pinned.version.partition("+")[0] != main:
        yield f"the image holds FlashInfer {main}, while {pinned.version} is pinned"
    for line in facts.wanted:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        version = have.get(requirement.name.lower().replace("_", "-"), "")
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if applies and version and not requirement.specifier.contains(version, prereleases=True):
            yield f"vLLM names {requirement.name}{requirement.specifier}, and the image holds {version}"
