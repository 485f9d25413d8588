"""Makes a plan from definitions and pins: the Dockerfile, the bake file, the labels, the Python lock, the warnings.

Docker can build the resulting build directory without this program.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

from builder.base import records
from builder.base.errors import FileProblemsError, Location, Problem
from builder.base.values import dataclass, replace
from builder.definitions.fields import canonical
from builder.definitions.mod import HOST_MOUNTS, Mod, read_script_facts
from builder.definitions.source_patches import LOCAL_CHANGES, SourcePatch
from builder.lock import checking, layout
from builder.lock.model import GitPin, IncludedPin, LockedPackage, Pins, SourcePin, Version
from builder.plan import plan_model, rules
from builder.plan.plan_model import WORKSPACE, ImageCheck, Plan, StagedFile, Step, files_hash, input_hash

if TYPE_CHECKING:
    import jinja2

    from builder.definitions.image import ArgumentValue, ImageDefinition
    from builder.definitions.recipe import Recipe

# Scripts that build steps source, at the paths that the Dockerfile mounts.
_APT = "parts/apt.sh"
_SCRIPTS = (_APT, "parts/bake-mod.sh", "parts/step.sh")
BASE_PACKAGES = "base packages"
# The date if no pin has a date: zip files cannot store an earlier one.
EARLIEST = "1980-01-01T00:00:00Z"


@dataclass(frozen=True)
class ImageInputs:
    """The inputs of one image of a chain: its definition, its pins, the vendored patches by SHA-256, and its mods."""

    definition: ImageDefinition
    pins: Pins
    diffs: Mapping[str, bytes]
    mods: tuple[Mod, ...]


def make_plan(
    inputs: ImageInputs, parent: Plan | None = None, recipe: Recipe | None = None, models: tuple[str, ...] = ()
) -> Plan:
    definition, pins, mods = inputs.definition, inputs.pins, inputs.mods
    chain = [*((plan.definition, plan.pins) for plan in (parent.chain if parent else ())), (definition, pins)]
    base = parent.definition.name if parent else base_reference(pins)
    own_versions = {name: Version(pin.version, pin.commit) for name, pin in sorted(pins.sources.items())}
    versions = {**(parent.versions if parent else {}), **own_versions}
    dates = [pin.date for _, each in chain for pin in each.sources.values() if isinstance(pin, GitPin)]
    dates += [each.base.created for _, each in chain if each.base]
    dates += [each.python.newest for _, each in chain if each.python]
    created = max([EARLIEST, *dates])
    epoch = int(datetime.fromisoformat(created).timestamp())
    all_mods = (*(parent.mods if parent else ()), *mods)
    args: dict[str, ArgumentValue] = {}
    packages: dict[str, str] = {}
    for each, own_pins in chain:
        args |= each.args
        packages |= rules.pinned_versions(each, own_pins)
    metadata = _metadata(base_reference(chain[0][1]), args, versions, created)
    content = _content(inputs, base, versions, rules.installed_versions(all_mods, packages), metadata)
    parent_steps = (Step(f"{base}: {step.name}", step.takes) for step in (parent.steps if parent else ()))
    steps = (*parent_steps, *_steps(inputs, base, content))
    pins_by_name = {each.name: own_pins for each, own_pins in chain}
    image_labels = write_labels(
        definition, input_hash(steps), all_mods, versions, base, created, recipe, models, pins_by_name
    )
    parents = [(plan.definition.name, plan.epoch, plan.pins, plan.files) for plan in (parent.chain if parent else ())]
    targets: dict[str, Any] = {}
    for folder, date, own_pins, own_files in (*parents, ("", epoch, pins, content)):
        trees = {name: f"{pin.git}#{pin.commit}" for name, pin in own_pins.sources.items() if isinstance(pin, GitPin)}
        records_packages, above = plan_model.PACKAGES in own_files, next(reversed(targets), None)
        target = bake_target(definition.platform, date, trees, above, records_packages=records_packages, folder=folder)
        targets[folder or TARGET] = target if folder else {**target, "labels": image_labels}
    files = _files_of_parents(parent) if parent else {}
    scripts = {(mod.name, file.path): file.content.decode(errors="replace") for mod in mods for file in mod.files}
    checks = (
        ImageCheck(mod.name, check, scripts[mod.name, check.run] if check.run else None)
        for mod in mods
        for check in mod.checks
    )
    return Plan(
        definition=definition,
        pins=pins,
        parent=parent,
        mods=all_mods,
        steps=steps,
        files={**content, **files, FILE: bake_file(targets), plan_model.PLAN: steps_file(steps)},
        targets=targets,
        versions=versions,
        checks=(*(parent.checks if parent else ()), *checks),
        epoch=epoch,
        warnings=(
            *(parent.warnings if parent else ()),
            *_local_sources(definition, pins),
            *_unused_base(definition, base, content["Dockerfile"]),
            *collect_warnings(parent.mods if parent else (), mods, recipe),
        ),
    )


def base_reference(pins: Pins) -> str:
    """The base image for FROM: a digest, or only a tag if the image exists only in this engine."""
    if pins.base is None:
        raise ValueError("the base is not pinned")
    local = pins.base.resolved.startswith("local:")
    return pins.base.requested if local else f"{pins.base.requested}@{pins.base.resolved}"


def steps_file(steps: tuple[Step, ...]) -> StagedFile:
    """The plan file with the steps. The build directory keeps it, to show later what has changed."""
    listed = [{"name": step.name, "takes": step.takes} for step in steps]
    return StagedFile(f"{json.dumps({'steps': listed}, indent=2, ensure_ascii=False)}\n".encode())


def _content(
    inputs: ImageInputs, base: str, versions: dict[str, Version], packages: Mapping[str, str], metadata: StagedFile
) -> dict[str, StagedFile]:
    """The files of the build directory. ``versions`` are the sources of the whole chain; ``packages`` are all its
    pinned versions, by canonical name."""
    definition, pins, mods = inputs.definition, inputs.pins, inputs.mods
    groups = package_groups(definition)
    sources = {name: _template_source(name, pin) for name, pin in sorted(pins.sources.items())}
    template_mods = [_template_mod(mod, versions, packages) for mod in mods]
    text = render_dockerfile(definition, base, groups, sources, template_mods)
    mounted = [path for path in _SCRIPTS if f"source={path}" in text and f"_{path}" in definition.parts]
    git = [(name, pin) for name, pin in sorted(pins.sources.items()) if isinstance(pin, GitPin)]
    diffs = {_patch_file(name, patch): inputs.diffs[patch.sha256] for name, pin in git for patch in pin.patches}
    return {
        "Dockerfile": StagedFile(text.encode()),
        "build-metadata.yaml": metadata,
        **(requirement_files(pins, groups) if pins.python else {}),
        **{path: StagedFile(definition.parts[f"_{path}"].encode()) for path in mounted},
        **({plan_model.PACKAGES: StagedFile(b"")} if _APT in mounted else {}),
        **{f"patches/{file}": StagedFile(diff) for file, diff in diffs.items()},
        **{f"mods/{mod.name}/{path}": file for mod in mods for path, file in staged_files(mod).items()},
    }


def _template_source(name: str, pin: SourcePin) -> dict[str, Any]:
    """A source for templates. ``kind`` is git, wheel or base. For git, ``context`` names the build context with its
    tree. ``patches`` maps each file in ``patches/`` to the number of folders to strip from its paths. ``epoch`` is the
    date of the commit in seconds, and ``gib_per_job`` the memory of one compiler process."""
    git = pin if isinstance(pin, GitPin) else None
    return {
        "kind": "git" if git else "base" if isinstance(pin, IncludedPin) else "wheel",
        "version": pin.version,
        "commit": pin.commit,
        "context": source_context(name) if git else "",
        "patches": {_patch_file(name, patch): patch.strip for patch in git.patches} if git else {},
        "epoch": int(datetime.fromisoformat(git.date).timestamp()) if git else 0,
        "gib_per_job": rules.GIB_PER_JOB[name] if git else 0,
    }


def _patch_file(source: str, patch: SourcePatch) -> str:
    return f"{source}-{patch.stem}.patch"


def _files_of_parents(parent: Plan) -> dict[str, StagedFile]:
    """The build directories of all parent images, each in a folder named after the image."""
    name, above = parent.definition.name, {plan.definition.name for plan in parent.chain[:-1]}
    own = {path: file for path, file in parent.files.items() if path not in {FILE, plan_model.PLAN}}
    return {path if path.partition("/")[0] in above else f"{name}/{path}": file for path, file in own.items()}


def _steps(inputs: ImageInputs, base: str, content: dict[str, StagedFile]) -> tuple[Step, ...]:
    definition, pins = inputs.definition, inputs.pins
    steps = []
    if definition.base:
        image, resolved = (pins.base.requested, pins.base.resolved) if pins.base else (definition.base, base)
        steps.append(Step("base", {"image": image, "content": resolved, "platform": definition.platform}))
    if pins.base and pins.base.packages:
        steps.append(Step(BASE_PACKAGES, {package.name: package.version for package in pins.base.packages}))
    for name, pin in sorted(pins.sources.items()):
        takes = {"version": pin.version, **({"commit": pin.commit} if pin.commit else {})}
        patches = pin.patches if isinstance(pin, GitPin) else ()
        steps.append(Step(name, {**takes, **{patch.label: f"sha256:{patch.sha256}" for patch in patches}}))
    for title, closure in (("python packages", pins.python), ("build packages", pins.build)):
        if closure:
            steps.append(Step(title, {package.name: requirement_identity(package) for package in closure.packages}))
    texts = {"text": "Dockerfile", **{path: path for path in _SCRIPTS if path in content}}
    for step, parts in (("Dockerfile", texts), ("build-metadata.yaml", {"text": "build-metadata.yaml"})):
        steps.append(Step(step, {key: hashlib.sha256(content[f].content).hexdigest() for key, f in parts.items()}))
    # The files of a mod are also an input of their own, because a build directory contains only the files.
    mods = ((mod.name, {"content": mod.content_hash, "files": files_hash(staged_files(mod))}) for mod in inputs.mods)
    return (*steps, *(Step(f"mod {name}", takes) for name, takes in mods))


def staged_files(mod: Mod) -> dict[str, StagedFile]:
    staged = {file.path: StagedFile(file.content, file.executable) for file in (*mod.files, *mod.fetched)}
    if missing := [copy.source for copy in mod.copies if copy.is_remote and copy.staged not in staged]:
        raise ValueError(f"not fetched before planning: {missing}")
    return staged


def _metadata(
    base: str, args: Mapping[str, ArgumentValue], versions: Mapping[str, Version], created: str
) -> StagedFile:
    """The keys that existing tools read from an image, for its whole chain. JSON strings are valid YAML."""
    vllm, flashinfer = versions.get("vllm"), versions.get("flashinfer")
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


# Rendering a definition's Dockerfile template.


def render_dockerfile(
    definition: ImageDefinition,
    base: str,
    groups: tuple[PackageGroup, ...],
    sources: Mapping[str, Mapping[str, Any]],
    mods: Sequence[Mapping[str, Any]],
) -> str:
    """Renders the Dockerfile. Raises FileProblemsError with the line of an error, or if the template omits a mod."""
    own = _template_name(definition.name)
    environment = _environment({**definition.parts, own: definition.template})
    values = {
        "definition": definition.name,
        "description": definition.description,
        "platform": definition.platform,
        "arch": definition.platform.removeprefix("linux/"),
        "base": base,
        "args": definition.args,
        "python": {"version": definition.python.version if definition.python else "", "groups": groups},
        "sources": sources,
        "versions": {name: source["version"] for name, source in sources.items()},
        "mods": mods,
        "workspace": WORKSPACE,
    }
    with _located_errors(own):
        text = environment.get_template(own).render(values)
    if missing := [mod["name"] for mod in mods if f"\n# mod {mod['name']}\n" not in text]:
        raise _problem(
            Location(own), f"the template does not bake mod {', '.join(missing)}; call `bake` of _parts/mods.j2"
        )
    return re.sub(r"\n{3,}", "\n\n", text)


# An expression in a template may raise any Python error: Jinja computes constants when it parses.
_FAILURES = (TypeError, ValueError, ArithmeticError, LookupError, RecursionError, MemoryError, SyntaxError)


@contextmanager
def _located_errors(file: str) -> Iterator[None]:
    """Turns the errors of the template ``file`` into a FileProblemsError with the location."""
    import jinja2

    failures: tuple[type[Exception], ...] = (jinja2.TemplateError, *_FAILURES)
    try:
        yield
    except jinja2.TemplateSyntaxError as error:
        raise _problem(Location(_file(error.name or file), error.lineno), error.message) from None
    except jinja2.TemplateNotFound as error:
        raise _problem(Location(file), f"the template includes {error.name}, which does not exist") from None
    except failures as error:
        frames = ((frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__))
        locations = [Location(_file(name), line) for name, line in frames if name.endswith(".j2")]
        raise _problem([Location(file), *locations][-1], error) from None


def _problem(location: Location, message: object) -> FileProblemsError:
    return FileProblemsError((Problem(location, f"template: {str(message) or type(message).__name__}"),))


def require_parsed(definition: ImageDefinition) -> None:
    """Raises FileProblemsError for the first template or part of ``definition`` that Jinja cannot parse."""
    own = _template_name(definition.name)
    environment = _environment({**definition.parts, own: definition.template})
    for name in (*definition.parts, own):
        if name.endswith(".j2"):
            with _located_errors(_file(name)):
                environment.get_template(name)


def mod_script(parts: Mapping[str, str], mod: Mod) -> str:
    text = '{% import "_parts/mods.j2" as parts_mods %}{{ parts_mods.bake(mods, workspace, "base") }}'
    with _located_errors("dockerfiles/_parts/mods.j2"):
        template = _environment(parts).from_string(text)
        baked = template.render(mods=[_template_mod(mod, {}, {})], workspace=WORKSPACE)
    return "".join(re.findall(r"<<'EOF'\n(.*?\n)EOF\n", baked, re.DOTALL))


def _environment(texts: Mapping[str, str]) -> jinja2.Environment:
    """The templates, by the names under which they import each other. They may come with a clone, so a sandbox keeps
    them away from this program and the machine."""
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        # Errors need file names, which a DictLoader does not have.
        loader=jinja2.FunctionLoader(lambda name: (texts[name], name, None) if name in texts else None),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # a Dockerfile is not HTML; values are quoted by the `sh` filter
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,
    )
    environment.filters["sh"] = lambda value: shlex.quote(str(value))
    # A value for ENV. In double quotes, ENV expands variables and backslashes.
    environment.filters["env"] = lambda value: '"' + re.sub(r'([\\"$])', r"\\\1", value) + '"'
    return environment


def _template_mod(mod: Mod, pinned: Mapping[str, Version], packages: Mapping[str, str]) -> dict[str, Any]:
    """A mod for templates; `_content` describes the arguments. ``has_files``: the build directory has a folder for the
    mod. ``changes_files``: the mod does more than set ``env``. ``host_mounts`` are covered by folders of the host while
    the image serves."""
    return {
        "name": mod.name,
        "run": mod.run,
        "seconds": mod.seconds,
        "may_be_empty": mod.may_be_empty,
        "network": mod.network,
        "has_files": bool(mod.files or mod.fetched),
        "changes_files": bool(mod.run or mod.packages or mod.copies or mod.patches),
        "packages": mod.packages,
        "copies": [replace(copy, source=copy.staged) for copy in mod.copies],
        "patches": [
            {"file": p.file, "package": p.package, "strip": p.strip, "pinned": _pinned(pinned.get(p.package))}
            for p in mod.patches
            if p.fits(packages.get(canonical(p.package), ""))
        ],
        "env": list(mod.env.items()),
        "host_mounts": HOST_MOUNTS,
    }


def _pinned(version: Version | None) -> str:
    if version is None:
        return ""
    return f"pinned: {version.version}" + (f", commit {version.commit}" if version.commit else "")


def _template_name(definition: str) -> str:
    return f"dockerfiles/{definition}/Dockerfile.j2"


def _file(name: str) -> str:
    """The path of a template. The names of shared parts are relative to the folder of all templates."""
    return name if name.startswith("dockerfiles/") else f"dockerfiles/{name}"


# The bake file of a build directory, which ``docker buildx bake`` builds without this program.

TARGET = "image"
FILE = plan_model.BAKE


def bake_target(
    platform: str, epoch: int, trees: Mapping[str, str], parent: str | None, *, records_packages: bool, folder: str = ""
) -> dict[str, Any]:
    """A target that builds the build directory, or the ``folder`` of a parent image in it. The parent image is another
    target of the same file. ``trees`` are the git sources, each as ``URL#COMMIT``.

    With ``records_packages``, the distribution's packages of the earlier build are installed again. Their list is a
    secret, because secrets do not change the cache key of a step. Attestations are off: they would change the digest of
    each build."""
    contexts = {source_context(name): tree for name, tree in sorted(trees.items())}
    if parent:
        contexts[parent] = f"target:{parent}"
    return {
        "context": folder or ".",
        "dockerfile": "Dockerfile",
        **({"contexts": contexts} if contexts else {}),
        "platforms": [platform],
        "args": {"SOURCE_DATE_EPOCH": str(epoch)},
        **({"secret": [packages_secret(folder)]} if records_packages else {}),
        "attest": [{"type": "provenance", "disabled": "true"}, {"type": "sbom", "disabled": "true"}],
    }


def packages_secret(folder: str) -> str:
    """The secret with the distribution's packages. Its file is in ``folder``, which may be absolute."""
    source = f"src={folder}/{plan_model.PACKAGES}" if folder else f"src={plan_model.PACKAGES}"
    return f"id=distribution-packages,{csv_field(source)}"


def csv_field(text: str) -> str:
    """Quotes a field of an option that buildx parses as CSV."""
    return '"' + text.replace('"', '""') + '"' if any(mark in text for mark in ',"\n') else text


def source_context(source: str) -> str:
    return f"{source}-source"


def bake_groups() -> dict[str, Any]:
    """The groups of a bake file. By default, the last image of the chain is built."""
    return {"default": {"targets": [TARGET]}}


def bake_file(targets: Mapping[str, Any]) -> StagedFile:
    return StagedFile(f"{dump_bake({'group': bake_groups(), 'target': targets})}\n".encode())


def dump_bake(document: Mapping[str, Any]) -> str:
    """Returns a bake file that means exactly ``document``. In any string or key, bake would evaluate ``${`` and ``%{``
    as an expression, which may read the environment."""
    return json.dumps(_with_strings(document, lambda text: re.sub(r"([$%])(?=\{)", r"\1\1", text)), indent=2)


def load_bake(text: str) -> Any:
    """Parses the output of `dump_bake`. Raises ValueError if it is not JSON, contains an expression, or repeats a key:
    bake would use both values."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = dict(pairs)
        if len(keys) != len(pairs):
            raise ValueError("a key is repeated")
        return keys

    def literal(text: str) -> str:
        if re.search(r"(?<!\$)\$\{|(?<!%)%\{", text):
            raise ValueError("it contains an expression, such as ${…}")
        return re.sub(r"([$%])\1(?=\{)", r"\1", text)

    return _with_strings(json.loads(text, object_pairs_hook=once), literal)


def _with_strings(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _with_strings(item, change) for key, item in value.items()}
    return [_with_strings(item, change) for item in value] if isinstance(value, list) else value


# The labels describe an image. They are read back if images.lock was lost. The hashes of packages are in the build
# directory: they are too large for a label, because the engine sends all labels with every listing.

REPOSITORY = "org.opencontainers.image.title"
INPUT_HASH = "builder.input-hash"


@dataclass(frozen=True)
class ImageLabels:
    """The parsed labels of an image. ``pins`` are by definition, without Python packages."""

    repository: str
    definition: str
    input_hash: str
    mods: dict[str, str]
    versions: dict[str, Version]
    recipe: str | None
    revision: str | None
    models: tuple[str, ...]
    pins: dict[str, Pins]


def write_labels(
    definition: ImageDefinition,
    input_hash: str,
    mods: tuple[Mod, ...],
    versions: dict[str, Version],
    base: str,
    created: str,
    recipe: Recipe | None,
    models: tuple[str, ...],
    pins: Mapping[str, Pins],
) -> dict[str, str]:
    bare = {name: Pins(own.base and replace(own.base, packages=()), own.sources) for name, own in sorted(pins.items())}
    labels = {
        REPOSITORY: definition.repository,
        "org.opencontainers.image.description": definition.description,
        "org.opencontainers.image.created": created,
        "org.opencontainers.image.base.name": definition.base or "",
        "builder.definition": definition.name,
        INPUT_HASH: input_hash,
        "builder.base": base,
        "builder.mods": json.dumps({mod.name: mod.content_hash for mod in mods}),
        "builder.sources": json.dumps({name: [v.version, v.commit] for name, v in sorted(versions.items())}),
        "builder.pins": json.dumps(
            {name: layout.pins_data(name, definition.platform, own) for name, own in bare.items()}
        ),
        "builder.recipe": recipe.file if recipe else "",
        "builder.revision": (recipe.revision if recipe else "") or "",
        "builder.models": json.dumps(models),
    }
    return {name: value for name, value in labels.items() if value}


def read_labels(labels: Mapping[str, str]) -> ImageLabels | None:
    """Reads the labels of an image; None for an image that this program did not build, or whose labels are invalid."""
    try:
        pins = json.loads(labels.get("builder.pins", "{}"), parse_int=str)
        return ImageLabels(
            repository=labels[REPOSITORY],
            definition=labels["builder.definition"],
            input_hash=labels[INPUT_HASH],
            mods=records.parse(labels["builder.mods"], dict[str, str]),
            versions={
                name: Version(*each)
                for name, each in records.parse(labels["builder.sources"], dict[str, tuple[str, str | None]]).items()
            },
            recipe=labels.get("builder.recipe"),
            revision=labels.get("builder.revision"),
            models=records.parse(labels["builder.models"], tuple[str, ...]),
            pins={
                name: layout.pins_of(name, "", own, lambda *_: None)
                for name, own in pins.items()
                if checking.is_a("pins", own)
            },
        )
    except (KeyError, ValueError, AttributeError, RecursionError):
        return None


# The Python lock of a build: requirement files for pip and uv. Unlike pylock.toml, they have hashes and no addresses,
# so the same lock works with every index mirror and with local wheels.


@dataclass(frozen=True)
class PackageGroup:
    """The packages of one index. ``name`` is also the folder of the local wheels that replace them."""

    name: str
    file: str
    url: str
    packages: tuple[str, ...]


def package_groups(definition: ImageDefinition) -> tuple[PackageGroup, ...]:
    """A group for each index of the definition. The name of the definition distinguishes the groups of a chain."""
    indexes = definition.python.indexes if definition.python else ()
    return tuple(
        PackageGroup(f"{definition.name}-index-{n}", f"index-{n}.txt", index.url, index.packages)
        for n, index in enumerate(indexes, start=1)
    )


def requirement_files(pins: Pins, grouped: tuple[PackageGroup, ...]) -> dict[str, StagedFile]:
    """The requirement files in ``python/``: for uv itself, for each group, for all others, and for building."""
    file_of = {name: group.file for group in grouped for name in group.packages} | {"uv": "uv.txt"}
    lines: dict[str, list[str]] = {"uv.txt": [], "packages.txt": [], **{group.file: [] for group in grouped}}
    for package in pins.python.packages if pins.python else ():
        lines[file_of.get(package.name, "packages.txt")].append(layout.requirement_line(package))
    if pins.build:
        # The build stage also installs packages that have their own file from that file.
        own = (package for package in pins.build.packages if package.name not in file_of)
        lines["build.txt"] = list(map(layout.requirement_line, own))
    return {f"python/{name}": StagedFile("".join(entry).encode()) for name, entry in lines.items()}


def read_requirements(text: str) -> tuple[LockedPackage, ...]:
    """Reads a file of `requirement_files`. Raises ValueError if it was edited by hand."""
    packages = []
    for number, line in enumerate(text.splitlines(), 1):
        package = layout.parse_requirement(line)
        if package is None:
            raise ValueError(f"line {number} is not a line that builder writes")
        packages.append(package)
    return tuple(packages)


def requirement_identity(package: LockedPackage) -> str:
    """The input of a step for a package: its version for display, and a digest of all its files."""
    return f"{package.version} {hashlib.sha256(' '.join(package.hashes).encode()).hexdigest()[:12]}"


# Warnings before a build.


def _local_sources(definition: ImageDefinition, pins: Pins) -> Iterator[str]:
    for name, source in definition.git_sources.items():
        pin = pins.sources.get(name)
        if source.checkout and isinstance(pin, GitPin):
            changed = any(patch.name == LOCAL_CHANGES for patch in pin.patches)
            if changed or pin.git == source.git:
                why = "has uncommitted changes" if changed else "is at a commit that none of its remotes has"
                yield f"others cannot repeat this build from image.yaml: the checkout {source.checkout} of {name} {why}"


def _unused_base(definition: ImageDefinition, base: str, dockerfile: StagedFile) -> Iterator[str]:
    if base not in dockerfile.content.decode():
        template = _template_name(definition.name)
        yield f"the image is not built on its pinned base {base}: write `FROM {{{{ base }}}}` into {template}"


def _replaced_files(parent_mods: tuple[Mod, ...], mods: tuple[Mod, ...]) -> Iterator[str]:
    """A warning for each mod file that replaces a file of another mod, unless `after` declares the order."""
    latest: dict[str, str] = {}
    for mod in (*parent_mods, *mods):
        files = {file.path for file in mod.files}
        for copy in mod.copies:
            into = re.fullmatch(r"(.*/)?\.|.*/", copy.to)
            name = posixpath.basename(copy.staged) if into else ""
            place = posixpath.normpath(posixpath.join(WORKSPACE, copy.to, name))
            owner = latest.get(place, mod.name)
            if copy.is_remote or copy.source in files:
                if owner != mod.name and mod in mods and owner not in mod.after:
                    yield f"mod {mod.name} replaces {place}, which mod {owner} puts there"
                latest[place] = mod.name


def collect_warnings(parent_mods: tuple[Mod, ...], mods: tuple[Mod, ...], recipe: Recipe | None) -> tuple[str, ...]:
    """The warnings about the ``mods`` of an image and its parents, and about its recipe: unpinned and ignored parts,
    and variables that a later mod sets to another value. The last value wins."""
    messages = []
    for mod in mods:
        if not mod.described:
            messages.append(f"mod {mod.name} has no mod.yaml: its downloads, if any, are not pinned")
        elif mod.run and mod.network:
            messages.append(f"mod {mod.name} runs {mod.run} with the network: its downloads are not pinned")
        if (facts := read_script_facts(mod)) and facts.instead:
            messages.append(f"mod {mod.name}: {facts.instead}")
        if mod.packages:
            messages.append(f"mod {mod.name} installs {' '.join(mod.packages)}: pinned by version, not by hash")
    latest: dict[str, tuple[str, str]] = {}
    for mod in (*parent_mods, *mods):
        for name, value in mod.env.items():
            before, owner = latest.get(name, (value, mod.name))
            if before != value and mod in mods:
                messages.append(
                    f"mod {mod.name} sets {name} to {value!r} instead of {before!r}, which mod {owner} sets"
                )
            latest[name] = (value, mod.name)
    messages += _replaced_files(parent_mods, mods)
    if recipe and recipe.ignored_build_args:
        ignored = " ".join(recipe.ignored_build_args)
        messages.append(f"{recipe.file}: build_args have no effect here and are ignored: {ignored}")
    return tuple(messages)
