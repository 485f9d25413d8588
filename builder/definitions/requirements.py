"""Python requirements as people write them, checked by the standard's own parser (PEP 508).

The parser is asked only before pins are resolved: what is pinned was checked then, and it takes 13 ms to import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.errors import FileProblemsError, Problem
from builder.yaml import yaml_file

if TYPE_CHECKING:
    from builder.definitions.image import ImageDefinition
    from builder.project import Project


def check(project: Project, definition: ImageDefinition) -> None:
    """Raises FileProblemsError naming every requirement in the definition's image.yaml that no installer would take."""
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
        known = yaml_file.locations(path.read_text(encoding="utf-8-sig"), file)
        places = ((yaml_file.location_of(where, known, file), said) for where, said in wrong.items())
        raise FileProblemsError(tuple(Problem(place, f"not a requirement: {said}") for place, said in places))


def _written(definition: ImageDefinition) -> dict[yaml_file.Path, str]:
    """Every requirement of the definition, by its place in the file."""
    wants = definition.python
    lists = {"packages": wants.packages, "build": wants.build} if wants else {}
    return {
        **{("sources", name, "wheel"): source.requirement for name, source in definition.wheel_sources.items()},
        **{("python", key, number): text for key, texts in lists.items() for number, text in enumerate(texts)},
    }
