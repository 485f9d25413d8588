"""The chat templates that recipes expect in an image: each is there, and compiles with the image's own transformers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.building import mod_checks
from builder.definitions.mods import mod_reading
from builder.definitions.recipes import command, launch_problems, option_places, recipe
from builder.errors import FileProblemsError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from builder.definitions.recipes.recipe import Recipe
    from builder.engine.containers import Container
    from builder.errors import Location
    from builder.plan.model import Plan
    from builder.project import Project

# As transformers compiles them, in the version that the image has; an image without it is not asked.
_COMPILE = """\
import sys
try:
    from transformers.utils.chat_template_utils import _compile_jinja_template as compile_template
except Exception:
    sys.exit(0)
for path in sys.argv[1:]:
    try:
        with open(path, encoding="utf-8") as file:
            compile_template(file.read())
    except Exception as error:
        print("fault", path, getattr(error, "lineno", 1), " ".join(str(error).split()), sep="\\t")
"""
_SECONDS = 120


@dataclass(frozen=True)
class ExpectedTemplate:
    """A chat template that a recipe names: its ``path`` in the image, relative to the folder that the server starts in,
    and where the recipe says so."""

    path: str
    location: Location


def expected(project: Project, plan: Plan, own: Recipe | None) -> tuple[ExpectedTemplate, ...]:
    """The templates that the image of ``plan`` has to have: that of the recipe which is built, and those of all others
    that use the image as it is. A recipe with further mods brings its template by those."""
    baked = {mod.name for part in plan.chain for mod in part.mods}
    using = [
        each
        for _, each in recipe.readable(project)
        if each.repository == plan.repository and not each.number and {*map(mod_reading.name_of, each.mods)} <= baked
    ]
    recipes = {each.file: each for each in [*using, *([own] if own else [])]}
    return tuple(template for each in recipes.values() for template in _named(each))


def require_usable(container: Container, python: str, templates: Sequence[ExpectedTemplate]) -> None:
    """Raises BuildFailedError naming every template that is not in the image of ``container``, or is none."""
    paths = {template.path for template in templates}
    missing = {path for path in paths if container.run(["test", "-f", path], timeout=_SECONDS).exit_code}
    faults = _faults(container, python, sorted(paths - missing))
    wrong = [
        f"{template.location}: the image has no chat template {template.path}"
        if template.path in missing
        else f"{template.location}: {template.path} in the image is no chat template: {faults[template.path]}"
        for template in templates
        if template.path in missing or template.path in faults
    ]
    if wrong:
        raise mod_checks.failed(
            "\n".join([f"check {mod_checks.TEMPLATE}:", *wrong]),
            "`files: [{from: TEMPLATE, to: .}]` in the mod.yaml of a mod brings a template, and a recipe names it",
            [mod_checks.TEMPLATE],
        )


def _named(each: Recipe) -> Iterator[ExpectedTemplate]:
    try:
        rendered = command.render(each, {})
    except (FileProblemsError, UsageError):  # it cannot be served at all, which `recipes check` says
        return
    used = launch_problems.template_of_image(each, rendered)
    # A script may change the folder before it starts the server.
    if used and used.value and (not rendered.is_script or used.value.startswith("/")):
        yield ExpectedTemplate(used.value, option_places.of_value(each, used))


def _faults(container: Container, python: str, paths: Sequence[str]) -> dict[str, str]:
    if not paths:
        return {}
    result = container.run([python, "-c", _COMPILE, *paths], timeout=_SECONDS)
    rows = (line.split("\t", 3) for line in result.output.splitlines() if line.startswith("fault\t"))
    return {row[1]: f"line {row[2]}: {row[3]}" for row in rows if len(row) == 4}
