"""Python requirements in image.yaml, checked by the standard's reference parser (PEP 508).

The parser takes 13 ms to import, so it runs only before pins are resolved: pinned requirements were checked then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.definitions.reading import read_text
from builder.errors import FileProblemsError, Problem
from builder.yaml import yaml_file

if TYPE_CHECKING:
    from builder.definitions.image import ImageDefinition
    from builder.project import Project


def check(project: Project, definition: ImageDefinition) -> None:
    """Raises FileProblemsError with every requirement in the definition's image.yaml that is not valid."""
    from packaging.requirements import InvalidRequirement, Requirement

    wrong: dict[yaml_file.Path, str] = {}
    for where, text in _written(definition).items():
        try:
            Requirement(text)
        except InvalidRequirement as error:
            wrong[where] = str(error).splitlines()[0]
    if wrong:
        path = project.dockerfiles / definition.name / "image.yaml"
        file = project.relative(path)
        locations = yaml_file.locations(read_text(path, file, project.root), file)
        located = ((yaml_file.location_of(where, locations, file), message) for where, message in wrong.items())
        raise FileProblemsError(tuple(Problem(place, f"not a requirement: {message}") for place, message in located))


def _written(definition: ImageDefinition) -> dict[yaml_file.Path, str]:
    """Every requirement of the definition, by its path in the file."""
    wants = definition.python
    lists = {"packages": wants.packages, "build": wants.build} if wants else {}
    return {
        **{("sources", name, "wheel"): source.requirement for name, source in definition.wheel_sources.items()},
        **{("python", key, number): text for key, texts in lists.items() for number, text in enumerate(texts)},
    }
