"""Names in a serve command that vLLM has to know: parsers and load formats, held against those of a vLLM."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from builder.definitions.recipes import option_places, option_values
from builder.errors import Problem
from builder.suggestions import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from builder.definitions.recipes.image_facts import ImageFacts
    from builder.definitions.recipes.option_places import UsedOption
    from builder.definitions.recipes.recipe import Recipe

METHOD = "speculative method"
_SPECULATIVE = "speculative-config"
_TOOLS = "tool-call-parser"
# Further names come from a file that the command names, or from a package.
_PLUGINS = {_TOOLS: "tool-parser-plugin", "reasoning-parser": "reasoning-parser-plugin"}


def problems(
    recipe: Recipe, words: Sequence[str], facts: ImageFacts, label: str, choices: Mapping[str, frozenset[str]]
) -> Iterator[Problem]:
    """The names in ``words``, the command, that the vLLM called ``label`` does not know. ``choices`` are those that it
    knows, by option (``tool-call-parser``); what a mod may add is left alone."""
    if not facts.is_known:
        return
    options = {option_values.name_of(used.option): used for used in option_places.options(words)}
    switches = {option_values.name_of(word) for word in words if word.startswith("--")}
    for name, known_names in choices.items():
        used = options.get(_SPECULATIVE if name == METHOD else name)
        value = used.value if used else None
        if used and name == METHOD:
            value = _method(value or "")
        if used is None or not value or "$" in value or value in known_names:
            continue
        # vLLM looks at the parser of tools only where it is used.
        if name == _TOOLS and "enable-auto-tool-choice" not in switches:
            continue
        if _PLUGINS.get(name) in options or facts.brings(value) or _has_package(facts, value):
            continue
        suggestion = did_you_mean(value, known_names, code=True)
        there = suggestion or f"it knows: {', '.join(sorted(known_names))}"
        yield Problem(
            option_places.of_value(recipe, used), f"{label} knows no {_called(name, used)} `{value}`; {there}"
        )


def _called(name: str, used: UsedOption) -> str:
    return "speculative method" if name == METHOD else used.option


def _method(config: str) -> str:
    """The method in the value of ``--speculative-config``; empty where it has none."""
    try:
        value = json.loads(config)
    except ValueError:
        return ""
    method = value.get("method") if isinstance(value, dict) else None
    return method if isinstance(method, str) else ""


def _has_package(facts: ImageFacts, name: str) -> bool:
    """True if a package that the image asks for has the name in its own."""
    plain = name.replace("_", "-").lower()
    pythons = [definition.python for definition in facts.definitions if definition.python]
    return any(plain in package.replace("_", "-").lower() for python in pythons for package in python.packages)
