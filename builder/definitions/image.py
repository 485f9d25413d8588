"""An image definition is ``dockerfiles/NAME/image.yaml`` with the template Dockerfile.j2 beside it.

The definition comes first, then its chain of parents, Python requirements, and the settings of serving containers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.base import records, yaml_file
from builder.base.errors import FileProblemsError, Location, Problem, UsageError, require_no_problems
from builder.base.values import dataclass, field, replace
from builder.base.words import DEFINITION, RESERVED_REPOSITORY, did_you_mean, is_day
from builder.definitions import source_patches
from builder.definitions.fields import canonical, checked, read_text

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.definitions.source_patches import SourcePatch


# The ref that means the FlashInfer version that the pinned vLLM names, and its default repository.
FROM_VLLM = "from-vllm"
# The ref of a local checkout in images.lock.
CHECKOUT = "checkout"
_FLASHINFER = "https://github.com/flashinfer-ai/flashinfer.git"
# The values of `python.as_of` that are not dates: the date of the pinned vLLM, and no limit.
AS_OF_SOURCE, AS_OF_TODAY = "source", "today"
ArgumentValue = str | int | float | bool
# The packages that each source builds: building it satisfies a requirement for any of them.
PACKAGES_BUILT_FROM = {
    "vllm": ("vllm",),
    "flashinfer": ("flashinfer-python", "flashinfer-cubin", "flashinfer-jit-cache"),
}


@dataclass(frozen=True)
class Index:
    """An index for only the named packages (normalised). With ``local``, a local wheel of the user may replace them;
    otherwise, only the same file may."""

    url: str
    packages: tuple[str, ...]
    local: bool = True


@dataclass(frozen=True)
class PythonRequirements:
    """The Python packages that an image needs. ``version`` is its Python (``3.12``), ``glibc`` its C library
    (``2.39``). Packages in ``without`` are never installed, even if others require them. ``indexes`` include the
    indexes of the sources. ``build`` lists the packages for building the git sources. The date limit is the date of the
    pinned ``source``, ``today`` (no limit), or a date (``2026-06-01``)."""

    version: str
    glibc: str
    packages: tuple[str, ...]
    without: tuple[str, ...] = ()
    indexes: tuple[Index, ...] = ()
    build: tuple[str, ...] = ()
    as_of: str = AS_OF_SOURCE


@dataclass(frozen=True)
class WheelSource:
    """A source installed as a wheel: ``vllm==0.19.1``, or ``vllm`` for the newest at the time of pinning; optionally
    from its own ``index``, such as vLLM's index for each commit."""

    requirement: str
    index: str | None = None

    @property
    def package(self) -> str:
        return canonical(self.requirement.partition("==")[0])

    @property
    def requested(self) -> str:
        return f"{self.requirement} from {self.index}" if self.index else self.requirement


@dataclass(frozen=True)
class GitSource:
    """A source built from git at ``ref`` (a branch, tag or commit) with the ``patches`` on top; ``requirements`` are
    its files with run-time requirements. ``checkout`` is the folder of a local checkout, which is used at its present
    commit, with its changes."""

    git: str
    ref: str
    patches: tuple[SourcePatch, ...] = ()
    requirements: tuple[str, ...] = ()
    checkout: Path | None = None

    @property
    def follows_vllm(self) -> bool:
        return self.ref == FROM_VLLM


@dataclass(frozen=True)
class BaseSource:
    """A source in the base image (``vllm: base``): its version and commit come from the pinned base."""


Source = WheelSource | GitSource | BaseSource


@dataclass(frozen=True)
class FirstBuild:
    """The cost of a build without cached steps, if the definition gives it. ``disk`` is on the engine's disk, for the
    image and the build's caches."""

    minutes: int | None = None
    disk_gb: int | None = None


@dataclass(frozen=True)
class ImageDefinition:
    """A parsed image definition. The image is built on the image ``base``, or on the image of the definition
    ``parent``. ``template`` is the text of the Dockerfile template. ``parts`` are the shared templates and scripts, by
    the name under which they are imported. ``first_build`` is not an input of the image."""

    name: str
    repository: str
    description: str
    platform: str
    base: str | None
    parent: str | None
    sources: dict[str, Source]
    python: PythonRequirements | None
    args: dict[str, ArgumentValue]
    mods: tuple[str, ...]
    template: str
    parts: dict[str, str]
    first_build: FirstBuild = FirstBuild()

    @property
    def wheel_sources(self) -> dict[str, WheelSource]:
        return {name: source for name, source in self.sources.items() if isinstance(source, WheelSource)}

    @property
    def base_sources(self) -> tuple[str, ...]:
        return tuple(name for name, source in self.sources.items() if isinstance(source, BaseSource))

    @property
    def git_sources(self) -> dict[str, GitSource]:
        return {name: source for name, source in self.sources.items() if isinstance(source, GitSource)}


def definition_names(project: Project) -> tuple[str, ...]:
    """The sorted names of all definitions in the project, without hidden folders and names that are invalid in
    images.lock."""
    folders = (path.parent.name for path in project.dockerfiles.glob("[!.-]*/image.yaml"))
    return tuple(sorted(name for name in folders if name.isprintable() and re.fullmatch(DEFINITION, name)))


def load_image(project: Project, name: str, host_platform: str) -> ImageDefinition:
    """Reads the definition ``name``; ``host_platform`` replaces ``platform: host``. Raises UsageError if the
    definition does not exist, FileProblemsError if its file is invalid."""
    folder = project.dockerfiles / name
    if not (folder / "image.yaml").is_file():
        existing = definition_names(project)
        hint = did_you_mean(name, existing) or f"existing definitions: {', '.join(existing) or 'none'}"
        raise UsageError(f"no image definition `{name}` in {project.dockerfiles}", hint=hint)
    data = _read(project, name)
    written = data.get("sources", {})
    sources = {source: _source(project, folder, given) for source, given in written.items()}
    require_no_problems(Problem(location(project, name, *at), message) for at, message in _problems(data, sources))
    if written.get("flashinfer") == {"version": FROM_VLLM} and isinstance(sources["vllm"], WheelSource):
        sources["flashinfer"] = WheelSource("flashinfer-python")  # vLLM's wheel requires it at an exact version
    wheels = tuple(source for source in sources.values() if isinstance(source, WheelSource))
    template = folder / "Dockerfile.j2"
    return ImageDefinition(
        name=name,
        repository=data["repository"],
        description=data["description"],
        platform=host_platform if data["platform"] == "host" else data["platform"],
        base=data.get("base"),
        parent=data.get("from"),
        sources=sources,
        python=_python(data["python"], wheels) if "python" in data else None,
        args=dict(data.get("args", {})),
        mods=tuple(data.get("mods", ())),
        template=read_text(template, project.relative(template), project.root),
        parts=shared_parts(project),
        first_build=FirstBuild(**data.get("first_build", {})),
    )


def shared_parts(project: Project) -> dict[str, str]:
    """The shared templates and scripts of a project, by the names under which templates import them."""
    parts = [part for kind in ("*.j2", "*.sh") for part in sorted((project.dockerfiles / "_parts").glob(kind))]
    return {f"_parts/{part.name}": read_text(part, project.relative(part), project.root) for part in parts}


def _problems(data: dict[str, Any], sources: dict[str, Source]) -> Iterator[tuple[yaml_file.YamlPath, str]]:
    """The problems that the schema of image.yaml cannot find, each with its path."""
    written = data.get("sources", {})
    if re.fullmatch(RESERVED_REPOSITORY, data["repository"]):
        yield ("repository",), f"{data['repository']} is reserved for images that are being made: choose another name"
    if ("base" in data) == ("from" in data):
        yield (), "exactly one of `base` (a registry image) and `from` (another definition) is required"
    for name in (name for name, source in sources.items() if "from" in data and source == BaseSource()):
        message = f"takes {name} from a base image, but this image is built on the definition {data['from']}"
        yield ("sources", name), f"`{name}: base` {message}: remove `{name}`"
    for name, source in sources.items():
        if "version" in written[name] and (message := _version_problem(name, written)):
            yield ("sources", name, "version"), message
        if isinstance(source, GitSource) and (twice := source_patches.repeated(source.patches)):
            key = "patches" if "patches" in written[name] else "pulls"
            yield (
                ("sources", name, key),
                f"{twice} is listed twice, or two files have the same name: remove or rename one",
            )
    wheel = next((source for source in sources.values() if isinstance(source, WheelSource)), None)
    if wheel and "python" not in data:
        yield (), f"{wheel.requirement} is a Python package: set the version of Python under `python`"
    yield from _wrong_days(data)
    yield from _repeated_packages(data, sources)


def _wrong_days(data: dict[str, Any]) -> Iterator[tuple[yaml_file.YamlPath, str]]:
    written = {("python", "as_of"): data.get("python", {}).get("as_of", ""), ("base",): data.get("base", "")}
    for path, text in written.items():
        day = text.rpartition("@")[2]
        if re.fullmatch(r"\d{4}-\d{2}-\d{2}", day) and not is_day(day):
            yield path, f"{day} is not a date"


def _repeated_packages(data: dict[str, Any], sources: dict[str, Source]) -> Iterator[tuple[yaml_file.YamlPath, str]]:
    """The packages that are to come from two indexes."""
    wheels = (source for source in sources.values() if isinstance(source, WheelSource) and source.index)
    owners = {wheel.package: f"the `index` of the source {wheel.package}" for wheel in wheels}
    for number, index in enumerate(data.get("python", {}).get("indexes", ())):
        for place, package in enumerate(index["packages"]):
            if other := owners.get(canonical(package)):
                path = ("python", "indexes", number, "packages", place)
                yield path, f"{package} already comes from {other}"
            owners[canonical(package)] = f"the index {index['url']}"


def _version_problem(name: str, written: dict[str, Any]) -> str:
    """The reason why the source ``name`` cannot follow the pinned vLLM, or nothing."""
    if name != "flashinfer":
        return f"{FROM_VLLM} works only for flashinfer: give {name} a `ref`"
    if "ref" in written[name]:
        return f"`ref` and `version: {FROM_VLLM}` cannot be combined"
    if not isinstance(written.get("vllm"), dict):
        return f"{FROM_VLLM} requires a `vllm` source from git or a wheel: give a `ref` instead"
    return ""


def _read(project: Project, name: str) -> dict[str, Any]:
    path = project.dockerfiles / name / "image.yaml"
    return checked(read_text(path, project.relative(path), project.root), project.relative(path), "image")


def repository_of(project: Project, name: str) -> str:
    return str(_read(project, name)["repository"])


def _repositories(project: Project) -> Iterator[tuple[str, str | FileProblemsError]]:
    """Each definition with its repository, or with the error if it cannot be read."""
    for name in definition_names(project):
        try:
            yield name, repository_of(project, name)
        except FileProblemsError as error:
            yield name, error


def definition_repositories(project: Project) -> tuple[str, ...]:
    return tuple(each for _, each in _repositories(project) if isinstance(each, str))


def unreadable(project: Project) -> dict[str, FileProblemsError]:
    """The definitions that `definition_repositories` leaves out, each with its error."""
    return {name: each for name, each in _repositories(project) if isinstance(each, FileProblemsError)}


def location(project: Project, name: str, *path: str | int) -> Location:
    yaml = project.dockerfiles / name / "image.yaml"
    file = project.relative(yaml)
    return yaml_file.location_of(path, read_text(yaml, file, project.root), file)


def of_repository(project: Project, repository: str) -> str | None:
    """The name of the definition whose images belong to ``repository``, or None. Raises FileProblemsError if no
    readable definition matches, and some definition cannot be read."""
    error: FileProblemsError | None = None
    for name, each in _repositories(project):
        if each == repository:
            return name
        if isinstance(each, FileProblemsError):
            error = error or each
    if error:
        raise error
    return None


def _source(project: Project, folder: Path, data: dict[str, Any] | str) -> Source:
    if isinstance(data, str):
        return BaseSource()
    if "wheel" in data:
        return WheelSource(data["wheel"], data.get("index"))
    checkout = Path(os.path.realpath(project.root / Path(data["path"]).expanduser())) if "path" in data else None
    address = checkout.as_uri() if checkout else data.get("git", _FLASHINFER)
    return GitSource(
        address,
        CHECKOUT if checkout else data.get("version") or data["ref"],
        source_patches.requested_patches(project.root, folder, address, data),
        tuple(data.get("requirements", () if {"git", "path"} & data.keys() else ("requirements.txt",))),
        checkout,
    )


def _python(data: dict[str, Any], wheels: tuple[WheelSource, ...]) -> PythonRequirements:
    indexes = [Index(i["url"], tuple(map(canonical, i["packages"]))) for i in data.get("indexes", ())]
    indexes += [Index(wheel.index, (wheel.package,), local=False) for wheel in wheels if wheel.index]
    # Each requirement becomes a line of a file, where other white space could not be read again.
    lists = {key: [" ".join(text.split()) for text in data.get(key, ())] for key in ("packages", "build")}
    wants = records.record(PythonRequirements, {"glibc": "2.39", **data, **lists, "indexes": []})
    return replace(wants, indexes=tuple(indexes))


# The chain of a definition and its parents (``from:``), and the overrides of a command.

BUILD_JOBS = "build_jobs"


@dataclass(frozen=True)
class Overrides:
    """Values on the command line that replace values in the files: the platform, and arguments of the template."""

    platform: str | None = None
    args: Mapping[str, str] = field(default_factory=dict)


def load_chain(
    project: Project, name: str, host_platform: str, overrides: Overrides | None = None
) -> tuple[ImageDefinition, ...]:
    """Reads the definition ``name`` and its parents, outermost parent first, each with its ``overrides``.
    Raises FileProblemsError if a parent does not exist, has another platform, or is its own ancestor; UsageError for an
    override that no definition accepts; and the errors of `load_image`."""
    chain, overrides = _chain(project, name, host_platform), overrides or Overrides()
    arguments = {key for definition in chain for key in definition.args}
    if unknown := [key for key in overrides.args if key not in arguments]:
        hint = f"its arguments: {', '.join(sorted(arguments)) or 'none'}"
        raise UsageError(f"{name} has no argument `{unknown[0]}`", hint=hint)
    return tuple(_overridden(definition, overrides) for definition in chain)


def build_jobs(settings: Mapping[str, str]) -> int | None:
    """The number of compilers in ``--set``, if given. Raises UsageError for an invalid value."""
    text = settings.get(BUILD_JOBS)
    if text is not None and not re.fullmatch("[1-9][0-9]{0,3}", text):
        raise UsageError(f"`--set {BUILD_JOBS}={text}`: expected a whole number from 1 to 9999")
    return int(text) if text else None


def _overridden(definition: ImageDefinition, overrides: Overrides) -> ImageDefinition:
    build_jobs(overrides.args)
    own = {key: yaml_file.load(value, "--set") for key, value in overrides.args.items() if key in definition.args}
    for key, value in own.items():
        # A line break would begin another instruction of the Dockerfile.
        if not isinstance(value, ArgumentValue) or re.search(r"[\x00-\x08\x0a-\x1f\x7f]", str(value)):
            shown = f"{key}={overrides.args[key]}"
            raise UsageError(f"`--set {shown}`: expected a single value on one line, not a list or mapping")
    # The number does not change the image: it is an argument only for templates that contain it in their own text.
    if BUILD_JOBS not in definition.template:
        own.pop(BUILD_JOBS, None)
    return replace(definition, platform=overrides.platform or definition.platform, args={**definition.args, **own})


def _chain(project: Project, name: str, host_platform: str) -> tuple[ImageDefinition, ...]:
    chain = [load_image(project, name, host_platform)]
    while chain[0].parent:
        child, parent, message, hint = chain[0], chain[0].parent, "", ""
        if parent not in definition_names(project):
            message = f"there is no definition `{parent}`"
            hint = f"definitions here: {', '.join(definition_names(project))}"
        elif parent in {definition.name for definition in chain}:
            message, hint = f"`{parent}` is itself built on this definition", "remove one of the `from` keys"
        else:
            chain.insert(0, load_image(project, parent, host_platform))
            if chain[0].platform != child.platform:
                message = f"{child.name} is for {child.platform}, but {parent} is for {chain[0].platform}"
                hint = "give both definitions the same `platform`"
        if message:
            problem = Problem(location(project, child.name, "from"), f"`from`: {message}")
            raise FileProblemsError((problem,), hint=hint)
    return tuple(chain)


# Python requirements in image.yaml. Their parser takes 13 ms to import, so it runs only before pins are resolved.


def check(project: Project, definition: ImageDefinition) -> None:
    """Raises FileProblemsError with every requirement in the definition's image.yaml that is not valid."""
    from packaging.requirements import InvalidRequirement, Requirement

    wants = definition.python
    lists = {"packages": wants.packages, "build": wants.build} if wants else {}
    without = set(map(canonical, wants.without)) if wants else set()
    written: list[tuple[yaml_file.YamlPath, str]] = []
    written += ((("sources", name, "wheel"), each.requirement) for name, each in definition.wheel_sources.items())
    written += ((("python", key, number), text) for key, texts in lists.items() for number, text in enumerate(texts))
    wrong = []
    for path, text in written:
        try:
            left_out = canonical(Requirement(text).name) in without
            message = f"`{text}` is never installed: the package is also under `without`" if left_out else ""
        except InvalidRequirement as error:
            message = f"`{text}` is not a valid requirement: {str(error).splitlines()[0]}"
        if message:
            wrong.append(Problem(location(project, definition.name, *path), message))
    require_no_problems(wrong)


# The settings of containers that serve from an image.

# The argument of `_parts/on_base.j2` that keeps the entrypoint of the base.
KEEP_ENTRYPOINT = "keep_entrypoint"


@dataclass(frozen=True)
class ServeSettings:
    """The settings under ``serve:``: ``gpus`` (all or none), Docker's ``network`` and ``ipc`` modes, and the size of
    the shared memory if ``ipc`` is private. With ``keep_entrypoint``, the image's entrypoint runs the command."""

    gpus: str = "all"
    network: str = "host"
    ipc: str = "host"
    shm_size: str = "16g"
    keep_entrypoint: bool = False


def serve_settings(project: Project, definition: str) -> ServeSettings:
    """The settings for images of ``definition``: its own, then the inherited settings of its parents. A definition that
    no longer exists adds nothing. Raises FileProblemsError for an invalid file."""
    settings: dict[str, Any] = {}
    seen: set[str] = set()
    name = definition
    while name and name not in seen and (project.dockerfiles / name / "image.yaml").is_file():
        seen.add(name)
        data = _read(project, name)
        args = data.get("args", {})
        kept = {KEEP_ENTRYPOINT: bool(args[KEEP_ENTRYPOINT])} if KEEP_ENTRYPOINT in args else {}
        settings = {**data.get("serve", {}), **kept, **settings}
        name = data.get("from", "")
    return ServeSettings(**settings)
