"""Making a plan from definitions and pins."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from builder.lock.model import Version
from builder.lock.pins import GitPin, IncludedPin
from builder.plan import bake, compile_jobs, dockerfile, labels, layout, mod_rules, python, warnings
from builder.plan.model import WORKSPACE, ImageCheck, Plan, StagedFile, Step, files_hash, input_hash

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.definitions.image import ArgumentValue, ImageDefinition
    from builder.definitions.mods.mod import Mod
    from builder.definitions.recipes.recipe import Recipe
    from builder.lock.pins import Pins

# Scripts that steps source: staged where the Dockerfile mounts them.
_APT = "parts/apt.sh"
_SCRIPTS = (_APT, "parts/bake-mod.sh", "parts/step.sh")
BASE_PACKAGES = "base packages"
# The date if nothing that is pinned has one: zip files cannot store an earlier date.
EARLIEST = "1980-01-01T00:00:00Z"


@dataclass(frozen=True)
class ImageInputs:
    """The inputs of one image of a chain: its definition, its pins, the vendored patches by SHA-256, and its mods."""

    definition: ImageDefinition
    pins: Pins
    diffs: Mapping[str, bytes]
    mods: tuple[Mod, ...]


def make(
    inputs: ImageInputs, parent: Plan | None = None, recipe: Recipe | None = None, models: tuple[str, ...] = ()
) -> Plan:
    """Makes the plan of a build on top of ``parent``, the plan of the parent image."""
    definition, pins, mods = inputs.definition, inputs.pins, inputs.mods
    base = parent.definition.name if parent else base_reference(pins)
    parents = parent.chain if parent else ()
    all_pins = [*(plan.pins for plan in parents), pins]
    own_versions = {name: Version(pin.version, pin.commit) for name, pin in sorted(pins.sources.items())}
    versions = {**(parent.versions if parent else {}), **own_versions}
    definitions = [*(plan.definition for plan in parents), definition]
    args = {name: value for definition in definitions for name, value in definition.args.items()}
    created = max([EARLIEST, *(date for own_pins in all_pins for date in _dates(own_pins))])
    epoch = int(datetime.fromisoformat(created).timestamp())
    all_mods = (*(parent.mods if parent else ()), *mods)
    packages: dict[str, str] = {}
    for each, own_pins in zip(definitions, all_pins, strict=True):
        packages |= mod_rules.pinned_versions(each, own_pins)
    metadata = _metadata(base_reference(all_pins[0]), args, versions, created)
    content = _content(inputs, base, versions, mod_rules.installed_versions(all_mods, packages), metadata)
    steps = (*_parent_steps(parent), *_steps(inputs, base, content))
    files = {**content, **(_parent_files(parent) if parent else {})}
    trees = {name: f"{pin.git}#{pin.commit}" for name, pin in pins.sources.items() if isinstance(pin, GitPin)}
    own = bake.target(
        definition.platform,
        epoch,
        trees,
        parent.definition.name if parent else None,
        records_packages=layout.PACKAGES in content,
    )
    pins_by_name = {definition.name: own_pins for definition, own_pins in zip(definitions, all_pins, strict=True)}
    image_labels = labels.write(
        definition, input_hash(steps), all_mods, versions, base, created, recipe, models, pins_by_name
    )
    targets = {**(_parent_targets(parent) if parent else {}), bake.TARGET: {**own, "labels": image_labels}}
    return Plan(
        definition=definition,
        pins=pins,
        parent=parent,
        mods=all_mods,
        steps=steps,
        files={**files, bake.FILE: bake.bake_file(targets), layout.PLAN: steps_file(steps)},
        targets=targets,
        versions=versions,
        checks=(*(parent.checks if parent else ()), *_checks(mods)),
        epoch=epoch,
        warnings=(*(parent.warnings if parent else ()), *warnings.collect(parent.mods if parent else (), mods, recipe)),
    )


def base_reference(pins: Pins) -> str:
    """The base image for FROM: by digest, or by tag alone if only this engine has it."""
    if pins.base is None:
        raise ValueError("the base is not pinned")
    if pins.base.resolved.startswith("local:"):
        return pins.base.requested
    return f"{pins.base.requested}@{pins.base.resolved}"


def steps_file(steps: tuple[Step, ...]) -> StagedFile:
    """The plan file: the steps as kept in the build directory, to tell later what has changed."""
    listed = [{"name": step.name, "takes": step.takes} for step in steps]
    return StagedFile(f"{json.dumps({'steps': listed}, indent=2, ensure_ascii=False)}\n".encode())


def _content(
    inputs: ImageInputs, base: str, versions: dict[str, Version], packages: Mapping[str, str], metadata: StagedFile
) -> dict[str, StagedFile]:
    definition, pins, mods = inputs.definition, inputs.pins, inputs.mods
    groups = python.groups(definition)
    sources = {name: _template_source(name, pins) for name in sorted(pins.sources)}
    template = dockerfile.inputs(definition, base, mods, groups, sources, versions, packages)
    text = dockerfile.render(template)
    mounted = [path for path in _SCRIPTS if f"source={path}" in text and f"_{path}" in definition.parts]
    return {
        "Dockerfile": StagedFile(text.encode()),
        "build-metadata.yaml": metadata,
        **(python.files(pins, groups) if pins.python else {}),
        **{path: StagedFile(definition.parts[f"_{path}"].encode()) for path in mounted},
        **({layout.PACKAGES: StagedFile(b"")} if _APT in mounted else {}),
        **{f"patches/{file}": StagedFile(inputs.diffs[sha256]) for file, sha256 in _patches(pins)},
        **{f"mods/{mod.name}/{path}": file for mod in mods for path, file in _staged(mod).items()},
    }


def _template_source(name: str, pins: Pins) -> dockerfile.TemplateSource:
    pin = pins.sources[name]
    if not isinstance(pin, GitPin):
        return dockerfile.TemplateSource("base" if isinstance(pin, IncludedPin) else "wheel", pin.version, pin.commit)
    epoch = int(datetime.fromisoformat(pin.date).timestamp())
    patches = tuple(_patch_file(name, pull.number) for pull in pin.pulls)
    return dockerfile.TemplateSource(
        "git", pin.version, pin.commit, bake.source_context(name), patches, epoch, compile_jobs.GIB_PER_JOB[name]
    )


def _patches(pins: Pins) -> list[tuple[str, str]]:
    """The vendored patches of all pull requests: file name in ``patches/``, and SHA-256."""
    git = [(name, pin) for name, pin in sorted(pins.sources.items()) if isinstance(pin, GitPin)]
    return [(_patch_file(name, pull.number), pull.sha256) for name, pin in git for pull in pin.pulls]


def _patch_file(source: str, number: int) -> str:
    return f"{source}-{number}.patch"


def _dates(pins: Pins) -> list[str]:
    dates = [pin.date for pin in pins.sources.values() if isinstance(pin, GitPin)]
    dates += [pins.base.created] if pins.base else []
    return [*dates, *([pins.python.newest] if pins.python and pins.python.newest else [])]


def _parent_steps(parent: Plan | None) -> tuple[Step, ...]:
    if parent is None:
        return ()
    return tuple(Step(f"{parent.definition.name}: {step.name}", step.takes) for step in parent.steps)


def _parent_files(parent: Plan) -> dict[str, StagedFile]:
    """The build directory of the parent image in a folder of its name, and those of its own parents beside it."""
    own_folder = f"{parent.definition.name}/"
    parents = {plan.definition.name for plan in parent.chain[:-1]}
    return {
        path if path.partition("/")[0] in parents else own_folder + path: file
        for path, file in parent.files.items()
        if path not in {bake.FILE, layout.PLAN}
    }


def _parent_targets(parent: Plan) -> dict[str, object]:
    """The targets of the parent images, without labels: only the finished image has them."""
    targets = {name: target for name, target in parent.targets.items() if name != bake.TARGET}
    own = {key: value for key, value in parent.targets[bake.TARGET].items() if key != "labels"}
    name = parent.definition.name
    secrets = {"secret": [bake.packages_secret(name)]} if "secret" in own else {}
    return {**targets, name: {**own, "context": name, **secrets}}


def _steps(inputs: ImageInputs, base: str, content: dict[str, StagedFile]) -> tuple[Step, ...]:
    definition, pins = inputs.definition, inputs.pins
    steps = []
    if definition.base:
        resolved = pins.base.resolved if pins.base else base
        steps.append(Step("base", {"image": definition.base, "content": resolved, "platform": definition.platform}))
    if pins.base and pins.base.packages:
        steps.append(Step(BASE_PACKAGES, {package.name: package.version for package in pins.base.packages}))
    for name, pin in sorted(pins.sources.items()):
        takes = {"version": pin.version, **({"commit": pin.commit} if pin.commit else {})}
        pulls = pin.pulls if isinstance(pin, GitPin) else ()
        steps.append(Step(name, {**takes, **{f"pull request {p.number}": f"sha256:{p.sha256}" for p in pulls}}))
    for title, closure in (("python packages", pins.python), ("build packages", pins.build)):
        if closure:
            steps.append(Step(title, {package.name: python.identity(package) for package in closure.packages}))
    texts = {"text": "Dockerfile", **{path: path for path in _SCRIPTS if path in content}}
    steps.append(Step("Dockerfile", {key: _sha256(content[file].content) for key, file in texts.items()}))
    steps.append(Step("build-metadata.yaml", {"text": _sha256(content["build-metadata.yaml"].content)}))
    steps += [_mod_step(mod) for mod in inputs.mods]
    return tuple(steps)


def _mod_step(mod: Mod) -> Step:
    """The step of a mod. Its files count on their own, too, because a build directory holds only those."""
    return Step(f"mod {mod.name}", {"content": mod.content_hash, "files": files_hash(_staged(mod))})


def _staged(mod: Mod) -> dict[str, StagedFile]:
    staged = {file.path: StagedFile(file.content, file.executable) for file in (*mod.files, *mod.fetched)}
    if missing := [copy.source for copy in mod.copies if copy.is_remote and copy.staged not in staged]:
        raise ValueError(f"not fetched before planning: {missing}")
    return staged


def _checks(mods: tuple[Mod, ...]) -> tuple[ImageCheck, ...]:
    scripts = {(mod.name, file.path): file.content.decode(errors="replace") for mod in mods for file in mod.files}
    return tuple(
        ImageCheck(mod.name, check, scripts[mod.name, check.run] if check.run else None)
        for mod in mods
        for check in mod.checks
    )


def _metadata(
    base: str, args: Mapping[str, ArgumentValue], versions: Mapping[str, Version], created: str
) -> StagedFile:
    """The keys that existing tools read from an image, for its whole chain; JSON strings are YAML, too."""
    vllm = versions.get("vllm")
    flashinfer = versions.get("flashinfer")
    metadata = {
        "build_date": created,
        "vllm_version": vllm.version if vllm else None,
        "vllm_commit": vllm.commit if vllm else None,
        "flashinfer_commit": flashinfer.commit if flashinfer else None,
        "gpu_arch": args.get("gpu_arch"),
        "base_image": base,
        "build_args": args,
        "workspace": WORKSPACE,
    }
    return StagedFile("".join(f"{key}: {json.dumps(value)}\n" for key, value in metadata.items()).encode())


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
