"""Image definitions: ``dockerfiles/NAME/image.yaml`` says what is wanted, ``Dockerfile.j2`` beside it how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.definitions.reading import read_checked, read_text
from builder.errors import UsageError

if TYPE_CHECKING:
    from builder.project import Project

Value = str | int | float | bool


@dataclass(frozen=True)
class Index:
    """A package index that serves the packages named and no others."""

    url: str
    packages: tuple[str, ...]


@dataclass(frozen=True)
class PythonWants:
    """The Python packages asked for. ``version`` is the image's Python (``3.12``), ``glibc`` its C library (``2.39``),
    ``without`` names packages that are never installed though others ask for them."""

    version: str
    glibc: str
    packages: tuple[str, ...]
    without: tuple[str, ...] = ()
    indexes: tuple[Index, ...] = ()


@dataclass(frozen=True)
class ImageDefinition:
    """What an image is made from. ``wheels`` maps a source (``vllm``) to the requirement that it is taken from;
    ``template`` is the Dockerfile's text, ``parts`` the shared ones by the name that templates import them under."""

    name: str
    repository: str
    description: str
    platform: str
    base: str
    wheels: dict[str, str]
    python: PythonWants | None
    args: dict[str, Value]
    mods: tuple[str, ...]
    template: str
    parts: dict[str, str]


def names(project: Project) -> tuple[str, ...]:
    """The names of all definitions in the project, sorted."""
    return tuple(sorted(path.parent.name for path in project.dockerfiles.glob("*/image.yaml")))


def load(project: Project, name: str, host_platform: str) -> ImageDefinition:
    """The definition ``name``; ``host_platform`` stands in for ``platform: host``.

    Raises UsageError where there is no such definition, FileProblemsError where its file is wrong.
    """
    folder = project.dockerfiles / name
    path = folder / "image.yaml"
    if not path.is_file():
        known = names(project)
        import difflib

        near = difflib.get_close_matches(name, known, n=1)
        raise UsageError(
            f"no image definition `{name}` in {project.dockerfiles}",
            hint=f"did you mean {near[0]}?" if near else f"there are: {', '.join(known) or 'none'}",
        )
    file = project.relative(path)
    data = read_checked(path, file, "image")
    wheels = {source: wanted["wheel"] for source, wanted in data.get("sources", {}).items()}
    python = _python(data["python"]) if "python" in data else None
    platform = host_platform if data["platform"] == "host" else data["platform"]
    template = folder / "Dockerfile.j2"
    return ImageDefinition(
        name=name,
        repository=data["repository"],
        description=data["description"],
        platform=platform,
        base=data["base"],
        wheels=wheels,
        python=python,
        args=dict(data.get("args", {})),
        mods=tuple(data.get("mods", ())),
        template=read_text(template, project.relative(template)),
        parts={
            f"_parts/{part.name}": read_text(part, project.relative(part))
            for part in sorted((project.dockerfiles / "_parts").glob("*.j2"))
        },
    )


def repository_of(project: Project, name: str) -> str:
    """What the images of the definition ``name`` are called."""
    path = project.dockerfiles / name / "image.yaml"
    repository: str = read_checked(path, project.relative(path), "image")["repository"]
    return repository


def of_repository(project: Project, repository: str) -> str | None:
    """The name of the definition whose images are called ``repository``, or None."""
    return next((name for name in names(project) if repository_of(project, name) == repository), None)


def _python(data: dict[str, Any]) -> PythonWants:
    return PythonWants(
        version=data["version"],
        glibc=data.get("glibc", "2.39"),
        packages=tuple(data["packages"]),
        without=tuple(data.get("without", ())),
        indexes=tuple(Index(i["url"], tuple(i["packages"])) for i in data.get("indexes", ())),
    )
