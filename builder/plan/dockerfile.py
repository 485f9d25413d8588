"""Rendering a definition's Dockerfile template."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.errors import FileProblemsError, Place, Problem
from builder.plan.model import WORKSPACE

if TYPE_CHECKING:
    from builder.definitions.image import ImageDefinition
    from builder.definitions.mod import Mod
    from builder.plan.python import PackageGroup


@dataclass(frozen=True)
class TemplateSource:
    """A source as templates see it. ``kind`` is git or wheel; for git, ``context`` names the build context with its
    tree, ``patches`` the files in ``patches/`` to apply to it, and ``epoch`` is the commit's date in seconds."""

    kind: str
    version: str
    commit: str | None
    context: str = ""
    patches: tuple[str, ...] = ()
    epoch: int = 0


def render(
    definition: ImageDefinition,
    base: str,
    mods: tuple[Mod, ...],
    groups: tuple[PackageGroup, ...],
    sources: dict[str, TemplateSource],
) -> str:
    """The Dockerfile's text. Raises FileProblemsError with the template's line where it asks for what is not there."""
    import jinja2

    own = f"dockerfiles/{definition.name}/Dockerfile.j2"
    texts = {**definition.parts, own: definition.template}
    # Not a DictLoader: it has no file names, which errors need.
    load = jinja2.FunctionLoader(lambda name: (texts[name], name, None) if name in texts else None)
    environment = jinja2.Environment(
        loader=load,
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701  # a Dockerfile is not HTML; values are quoted by the `sh` filter
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,
    )
    environment.filters["sh"] = lambda value: shlex.quote(str(value))
    try:
        text = environment.get_template(own).render(
            definition=definition.name,
            description=definition.description,
            platform=definition.platform,
            arch=definition.platform.removeprefix("linux/"),
            base=base,
            args=definition.args,
            python={"version": definition.python.version if definition.python else "", "groups": groups},
            sources=sources,
            versions={name: source.version for name, source in sources.items()},
            mods=mods,
            workspace=WORKSPACE,
        )
    except jinja2.TemplateSyntaxError as error:
        place = Place(error.name or own, error.lineno)
        raise FileProblemsError((Problem(place, f"template: {error.message}"),)) from None
    except jinja2.TemplateNotFound as error:
        raise FileProblemsError((Problem(Place(own), f"template: there is no part {error.name}"),)) from None
    except jinja2.UndefinedError as error:
        raise FileProblemsError((Problem(_place(error, own), f"template: {error.message}"),)) from None
    return re.sub(r"\n{3,}", "\n\n", text)


def _place(error: Exception, own: str) -> Place:
    """The innermost line of a template in ``error``'s traceback."""
    place = Place(own)
    trace = error.__traceback__
    while trace:
        if trace.tb_frame.f_code.co_filename.endswith(".j2"):
            place = Place(trace.tb_frame.f_code.co_filename, trace.tb_lineno)
        trace = trace.tb_next
    return place
