"""Options of vLLM that take JSON, held against it: vLLM would refuse them only after it has started."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from builder.definitions.recipes import option_places
from builder.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.definitions.recipes.command import ServeCommand
    from builder.definitions.recipes.option_places import UsedOption
    from builder.definitions.recipes.recipe import Recipe

# Its value may be the text of a template, which begins with a brace, too.
_TEMPLATES = frozenset({"--chat-template", "--chat_template"})
_SHOWN = 60
# What Python's parser says, and what it means for the author.
_REASONS = (
    ("Expecting property name", "a name in double quotes belongs here"),
    ("Illegal trailing comma", "nothing follows this comma"),
    ("Expecting ',' delimiter", "a comma or the end belongs here"),
    ("Expecting ':' delimiter", "a colon belongs here"),
    ("Expecting value", "a value belongs here"),
    ("Extra data", "it ends before this"),
    ("Unterminated string", "the text that begins here has no closing quote"),
    ("Invalid control character", "a line break or tab inside a text"),
    ("Invalid \\", "a backslash that JSON does not know"),
)
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}


def problems(recipe: Recipe, rendered: ServeCommand) -> Iterator[Problem]:
    """The options whose value looks like JSON and is not valid, at the place of the fault in the file."""
    for used in option_places.options(rendered.words):
        value = used.value
        if value is None or not value.startswith("{") or used.option in _TEMPLATES:
            continue
        if rendered.is_script and re.search(r"[$`]", value):
            continue  # only the shell can tell
        try:
            json.loads(value)
        except json.JSONDecodeError as error:
            message = (
                f"the value of {used.option} is no JSON: {_reason(recipe, used, error)}: {_shown(value, error.pos)}"
            )
            yield Problem(option_places.of_value(recipe, used, error.pos), message)
        except RecursionError:
            yield Problem(option_places.of_option(recipe, used), f"the value of {used.option} is nested too deep")


def _reason(recipe: Recipe, used: UsedOption, error: json.JSONDecodeError) -> str:
    value, at = used.value or "", error.pos
    rest = value[at:]
    before = value[:at].rstrip()
    word = re.match(r"True|False|None", rest)
    if word:
        return f"JSON writes `{_PYTHON_WORDS[word[0]]}` for `{word[0]}`"
    if rest.startswith("'"):
        return "names and texts take double quotes, not single ones"
    if rest[:1] in {"}", "]"} and before.endswith(","):
        return f"a comma before the closing `{rest[0]}`"
    if not rest and used.goes_on:
        return "bash ends it at a space; put single quotes around the whole value"
    if not rest:
        return "it has no end; a bracket, brace or quote is not closed"
    if rest.startswith('\\"') or before.endswith("\\"):
        return "bash keeps a backslash inside single quotes; leave it out"
    if '"' not in value and '"' in recipe.command:
        return "bash has taken its quotes away; put single quotes around the whole value"
    return next((reason for begin, reason in _REASONS if error.msg.startswith(begin)), error.msg)


def _shown(value: str, at: int) -> str:
    """The part of ``value`` around the fault, on one line."""
    begin = max(0, min(at - _SHOWN // 2, len(value) - _SHOWN))
    part = value[begin : begin + _SHOWN].replace("\n", " ")
    return f"{'…' if begin else ''}{part}{'…' if begin + _SHOWN < len(value) else ''}"
