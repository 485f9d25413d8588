"""Image definitions: ``dockerfiles/NAME/image.yaml``, and the template ``Dockerfile.j2`` beside it."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Any

from builder.definitions.package_name import canonical
from builder.definitions.reading import read_checked, read_text
from builder.errors import FileProblemsError, Location, Problem, UsageError
from builder.name_patterns import DEFINITION
from builder.suggestions import did_you_mean
from builder.yaml import yaml_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.project import Project

# The ref of a FlashInfer that is the one which the pinned vLLM names, and where it comes from if nothing else is said.
FROM_VLLM = "from-vllm"
_FLASHINFER = "https://github.com/flashinfer-ai/flashinfer.git"
# The values of `python.as_of` that are no date: that of the pinned vLLM, and no limit.
AS_OF_SOURCE, AS_OF_TODAY = "source", "today"
ArgumentValue = str | int | float | bool
# The packages that each source is built into: building it satisfies a requirement for any of them.
PACKAGES_BUILT_FROM = {
    "vllm": ("vllm",),
    "flashinfer": ("flashinfer-python", "flashinfer-cubin", "flashinfer-jit-cache"),
}


@dataclass(frozen=True)
class Index:
    """A package index that serves the named packages (normalised) and no others. With ``local``, a wheel that the user
    keeps may be chosen in their place; without it, only where it is the same file."""

    url: str
    packages: tuple[str, ...]
    local: bool = True


@dataclass(frozen=True)
class PythonRequirements:
    """The Python packages that an image needs. ``version`` is its Python (``3.12``), ``glibc`` its C library
    (``2.39``). ``without`` names packages that are never installed even if others require them, ``indexes`` are the
    indexes of single packages, those of the sources included, and ``build`` lists what building the git sources takes.
    ``as_of`` says what is too new: ``source`` takes packages of the pinned source's own time, ``today`` the newest, a
    date (``2026-06-01``) those of that day."""

    version: str
    glibc: str
    packages: tuple[str, ...]
    without: tuple[str, ...] = ()
    indexes: tuple[Index, ...] = ()
    build: tuple[str, ...] = ()
    as_of: str = AS_OF_SOURCE


@dataclass(frozen=True)
class WheelSource:
    """A source installed as a wheel: ``vllm==0.19.1``, or ``vllm`` for the newest at the time of pinning; from an
    ``index`` of its own where one is given, such as the one that vLLM publishes for each commit."""

    requirement: str
    index: str | None = None

    @property
    def package(self) -> str:
        """The normalised name of the package."""
        return canonical(self.requirement.partition("==")[0])

    @property
    def requested(self) -> str:
        """The requirement as images.lock records it."""
        return f"{self.requirement} from {self.index}" if self.index else self.requirement


@dataclass(frozen=True)
class GitSource:
    """A source built from git at ``ref`` (a branch, tag or commit) with the pull requests ``pulls`` on top;
    ``requirements`` are the files in it that list what it needs to run. ``bases`` gives the branch, tag or commit that
    a pull request was opened for, where the definition names one."""

    git: str
    ref: str
    pulls: tuple[int, ...] = ()
    requirements: tuple[str, ...] = ()
    bases: Mapping[int, str] = field(default_factory=dict)

    @property
    def follows_vllm(self) -> bool:
        """True if its ref is the version that the pinned vLLM names."""
        return self.ref == FROM_VLLM


@dataclass(frozen=True)
class BaseSource:
    """A source that the base image brings (``vllm: base``): its version and commit are those of the pinned base."""


Source = WheelSource | GitSource | BaseSource


@dataclass(frozen=True)
class FirstBuild:
    """The cost of a build where nothing of it is there yet: ``minutes``, and ``disk_gb`` in the engine, for the image
    and the build's caches; None where the definition does not say."""

    minutes: int | None = None
    disk_gb: int | None = None


@dataclass(frozen=True)
class ImageDefinition:
    """An image definition as read. The image is built on the image ``base``, or on that of the definition ``parent``.
    ``sources`` maps a name (``vllm``) to its source; ``template`` is the text of the Dockerfile's template, ``parts``
    are the shared templates, by the name that others import them under, and the scripts that steps use.
    ``first_build`` is no input of the image."""

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
        """The sources that are installed as wheels."""
        return {name: source for name, source in self.sources.items() if isinstance(source, WheelSource)}

    @property
    def base_sources(self) -> tuple[str, ...]:
        """The names of the sources that the base image brings."""
        return tuple(name for name, source in self.sources.items() if isinstance(source, BaseSource))

    @property
    def git_sources(self) -> dict[str, GitSource]:
        """The sources that are built from git."""
        return {name: source for name, source in self.sources.items() if isinstance(source, GitSource)}


def names(project: Project) -> tuple[str, ...]:
    """The names of all definitions in the project, sorted; a hidden folder is none, nor one with a name that
    images.lock could not hold."""
    folders = (path.parent.name for path in project.dockerfiles.glob("[!.-]*/image.yaml"))
    return tuple(sorted(name for name in folders if name.isprintable() and re.fullmatch(DEFINITION, name)))


def load(project: Project, name: str, host_platform: str) -> ImageDefinition:
    """Reads the definition ``name``; ``host_platform`` takes the place of ``platform: host``.

    Raises UsageError where there is no such definition, FileProblemsError where its file is invalid.
    """
    folder = project.dockerfiles / name
    path = folder / "image.yaml"
    if not path.is_file():
        existing = names(project)
        raise UsageError(
            f"no image definition `{name}` in {project.dockerfiles}",
            hint=did_you_mean(name, existing) or f"there are: {', '.join(existing) or 'none'}",
        )
    file = project.relative(path)
    data = read_checked(path, file, "image", project.root)
    if ("base" in data) == ("from" in data):
        message = "either `base` (an image of a registry) or `from` (another definition) must be there, and not both"
        raise FileProblemsError((Problem(Location(file), message),))
    sources = {source: _source(source_data) for source, source_data in data.get("sources", {}).items()}
    if "from" in data and BaseSource() in sources.values():
        message = f"`base` means the base image, and this one is built on the definition {data['from']}: leave it out"
        raise FileProblemsError((Problem(location(project, name, "sources"), message),))
    _refuse_odd_versions(project, name, data.get("sources", {}))
    if data.get("sources", {}).get("flashinfer") == {"version": FROM_VLLM} and isinstance(sources["vllm"], WheelSource):
        sources["flashinfer"] = WheelSource("flashinfer-python")  # which vLLM's wheel requires by its version
    for source_name, source in sources.items():
        if isinstance(source, GitSource) and len(set(source.pulls)) < len(source.pulls):
            message = "a pull request stands there twice"
            raise FileProblemsError((Problem(location(project, name, "sources", source_name, "pulls"), message),))
    wheels = tuple(source for source in sources.values() if isinstance(source, WheelSource))
    if wheels and "python" not in data:
        message = f"{wheels[0].requirement} is installed with the Python packages: say for which Python in `python`"
        raise FileProblemsError((Problem(Location(file), message),))
    python = _python(data["python"], wheels) if "python" in data else None
    if python and not _is_day(python.as_of):
        message = f"there is no day {python.as_of}"
        raise FileProblemsError((Problem(location(project, name, "python", "as_of"), message),))
    platform = host_platform if data["platform"] == "host" else data["platform"]
    template = folder / "Dockerfile.j2"
    return ImageDefinition(
        name=name,
        repository=data["repository"],
        description=data["description"],
        platform=platform,
        base=data.get("base"),
        parent=data.get("from"),
        sources=sources,
        python=python,
        args=dict(data.get("args", {})),
        mods=tuple(data.get("mods", ())),
        template=read_text(template, project.relative(template), project.root),
        parts={
            f"_parts/{part.name}": read_text(part, project.relative(part), project.root)
            for kind in ("*.j2", "*.sh")
            for part in sorted((project.dockerfiles / "_parts").glob(kind))
        },
        first_build=FirstBuild(**data.get("first_build", {})),
    )


def _refuse_odd_versions(project: Project, name: str, sources: dict[str, Any]) -> None:
    """Raises FileProblemsError for a `version` that is not FlashInfer's, stands beside a ref, or follows no vLLM."""
    for source, data in sources.items():
        if not isinstance(data, dict) or "version" not in data:
            continue
        message = ""
        if source != "flashinfer":
            message = f"{FROM_VLLM} is for flashinfer: give {source} a `ref`"
        elif "ref" in data:
            message = f"either `ref` or `version: {FROM_VLLM}` can be there"
        elif not isinstance(sources.get("vllm"), dict):
            message = f"no vllm stands beside it as git or wheel, which {FROM_VLLM} could follow: give a `ref`"
        if message:
            raise FileProblemsError((Problem(location(project, name, "sources", source, "version"), message),))


def repository_of(project: Project, name: str) -> str:
    """The repository that the images of the definition ``name`` belong to."""
    path = project.dockerfiles / name / "image.yaml"
    repository: str = read_checked(path, project.relative(path), "image", project.root)["repository"]
    return repository


def repositories(project: Project) -> tuple[str, ...]:
    """The repositories of the definitions that can be read."""
    collected = []
    for name in names(project):
        with suppress(FileProblemsError):
            collected.append(repository_of(project, name))
    return tuple(collected)


def unreadable(project: Project) -> dict[str, FileProblemsError]:
    """The definitions that `repositories` leaves out, each with its error."""
    errors = {}
    for name in names(project):
        try:
            repository_of(project, name)
        except FileProblemsError as error:
            errors[name] = error
    return errors


def location(project: Project, name: str, *path: str | int) -> Location:
    """The location of a value in the image.yaml of the definition ``name``."""
    yaml = project.dockerfiles / name / "image.yaml"
    file = project.relative(yaml)
    return yaml_file.location_of(path, yaml_file.locations(read_text(yaml, file, project.root), file), file)


def of_repository(project: Project, repository: str) -> str | None:
    """The name of the definition whose images belong to ``repository``, or None. Raises FileProblemsError where none of
    those that can be read does, and one cannot be."""
    unreadable: list[FileProblemsError] = []
    for name in names(project):
        try:
            if repository_of(project, name) == repository:
                return name
        except FileProblemsError as error:
            unreadable.append(error)
    if unreadable:
        raise unreadable[0]
    return None


def _is_day(as_of: str) -> bool:
    """True for a day of the calendar, and for the two words that stand for one."""
    if as_of in {AS_OF_SOURCE, AS_OF_TODAY}:
        return True
    try:
        date.fromisoformat(as_of)
    except ValueError:
        return False
    return True


def _source(data: dict[str, Any] | str) -> Source:
    if isinstance(data, str):
        return BaseSource()
    if "wheel" in data:
        return WheelSource(data["wheel"], data.get("index"))
    pulls = [pull if isinstance(pull, dict) else {"number": pull} for pull in data.get("pulls", ())]
    follows = "version" in data
    return GitSource(
        data.get("git", _FLASHINFER) if follows else data["git"],
        data["version"] if follows else data["ref"],
        tuple(pull["number"] for pull in pulls),
        tuple(data.get("requirements", () if "git" in data else ("requirements.txt",))),
        {pull["number"]: pull["base"] for pull in pulls if "base" in pull},
    )


def _python(data: dict[str, Any], wheels: tuple[WheelSource, ...]) -> PythonRequirements:
    indexes = [Index(i["url"], tuple(map(canonical, i["packages"]))) for i in data.get("indexes", ())]
    indexes += [Index(wheel.index, (wheel.package,), local=False) for wheel in wheels if wheel.index]
    return PythonRequirements(
        version=data["version"],
        glibc=data.get("glibc", "2.39"),
        packages=tuple(data["packages"]),
        without=tuple(data.get("without", ())),
        indexes=tuple(indexes),
        build=tuple(data.get("build", ())),
        as_of=data.get("as_of", AS_OF_SOURCE),
    )
