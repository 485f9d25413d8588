"""The parsers and load formats of a pinned vLLM, read from its files."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from builder.base.errors import BuilderError, FileProblemsError, SourceError
from builder.base.values import dataclass
from builder.definitions import command, recipe_problems
from builder.lock.model import GitPin, Lock, Pins
from builder.pins import vendored
from builder.sources import mirror, wheels

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.definitions.image import ImageDefinition
    from builder.definitions.recipe import Recipe
    from builder.pins.packages import Package


# By option: the file in vLLM (0.20 to 0.32) that registers its values, and the mapping or type with the values there.
_PLACES = {
    "tool-call-parser": ("vllm/tool_parsers/__init__.py", "_TOOL_PARSERS_TO_REGISTER"),
    "reasoning-parser": ("vllm/reasoning/__init__.py", "_REASONING_PARSERS_TO_REGISTER"),
    "load-format": ("vllm/model_executor/model_loader/__init__.py", "_LOAD_FORMAT_TO_MODEL_LOADER"),
    recipe_problems.METHOD: ("vllm/config/speculative.py", "SpeculativeMethod"),
}
_PATHS = tuple(path for path, _ in _PLACES.values())
_PACKAGE = "vllm"


@dataclass(frozen=True)
class VllmChoices:
    """The values that the vLLM ``label`` accepts, by option without dashes, if they can be read."""

    label: str
    values: Mapping[str, frozenset[str]]


def of_package(package: Package) -> VllmChoices:
    """Reads the choices of a pinned vLLM. Fetches its files if necessary. Raises SourceError."""
    patches = b"\n".join(patch.diff for patch in package.tree.prior)
    return VllmChoices(package.label, _values(package.tree.read(_PATHS), patches))


def require_known(project: Project, recipe: Recipe, package: Package) -> None:
    """Raises FileProblemsError if the pinned vLLM lacks a parser or load format of ``recipe``: the image would be
    useless. If vLLM cannot be read, the server's start decides."""
    try:
        choices = of_package(package)
    except SourceError:
        return
    facts = recipe_problems.image_facts(project, recipe)
    words = command.render_command(recipe, {}).words
    problems = tuple(recipe_problems.unknown_names(recipe, words, choices.label, choices.values, facts))
    if problems:
        raise FileProblemsError(problems)


def at_hand(project: Project, lock: Lock, chain: Sequence[ImageDefinition]) -> VllmChoices | None:
    """Reads the choices of the vLLM that ``lock`` pins for the image of ``chain``, without the network: from a mirror,
    or from the cache of wheels. None if its files are not on this machine."""
    for definition in reversed(chain):
        for pins in lock.pins.get(definition.name, {}).values():
            try:
                choices = _of_pins(project, definition, pins)
            except BuilderError:
                continue
            if choices:
                return choices
    return None


def _of_pins(project: Project, definition: ImageDefinition, pins: Pins) -> VllmChoices | None:
    pin = pins.sources.get(_PACKAGE)
    if isinstance(pin, GitPin):
        files = mirror.read_present(mirror.locate(project.mirrors, pin.git), pin.commit, _PATHS)
        patches = b"\n".join(vendored.load_vendored(project, definition.name, pins, {}).values())
        return VllmChoices(f"vLLM {pin.version}", _values(files, patches)) if files else None
    name = definition.wheel_sources[_PACKAGE].package if _PACKAGE in definition.wheel_sources else _PACKAGE
    for locked in pins.python.packages if pins.python else ():
        if locked.name == name:
            cached = (wheels.read_cached(project.state / "wheels", sha256, _PATHS) for sha256 in locked.hashes)
            files = next(filter(None, cached), {})
            return VllmChoices(f"vLLM {locked.version}", _values(files, b"")) if files else None
    return None


def _values(files: Mapping[str, bytes], patches: bytes) -> dict[str, frozenset[str]]:
    # A patch to the file may register more values.
    values = {
        option: _names(files.get(path, b""), name)
        for option, (path, name) in _PLACES.items()
        if path.encode() not in patches
    }
    return {option: names for option, names in values.items() if names}


def _names(source: bytes, name: str) -> frozenset[str]:
    """The keys of the mapping ``name`` in ``source``, or the texts of the ``Literal`` type ``name``, which may refer to
    other such types. Empty for any other form."""
    assigned: dict[str, ast.expr | None] = {}
    try:
        for node in ast.parse(source).body:
            match node:
                case ast.Assign([ast.Name(target)], value) | ast.AnnAssign(ast.Name(target), _, value):
                    assigned[target] = value
        return _texts(assigned.get(name), assigned)
    except (SyntaxError, ValueError, RecursionError):
        return frozenset()


def _texts(value: ast.expr | None, assigned: Mapping[str, ast.expr | None]) -> frozenset[str]:
    match value:
        case ast.Constant(value=str(text)):
            return frozenset({text})
        case ast.Name(id=name):
            return _texts(assigned.get(name), assigned)
        case ast.Dict(parts) | ast.Subscript(ast.Name("Literal"), ast.Tuple(parts)):
            collected = [_texts(part, assigned) for part in parts]
            return frozenset().union(*collected) if all(collected) else frozenset()
        case ast.Subscript(ast.Name("Literal"), part):
            return _texts(part, assigned)
    return frozenset()
