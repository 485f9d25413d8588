"""Problems of a checkpoint definition that its schema cannot tell: steps that are of two kinds or of none, keys that
mean nothing to a step, and sources that are not there or not used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builder.errors import Problem
from builder.suggestions import did_you_mean
from builder.yaml import yaml_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_SELECTING = {"select", "except", "dtype", "expect"}
_KEYS: Mapping[str, set[str]] = {
    "take": {"rename", "files", *_SELECTING},
    "replace": {"companions", "unmatched", *_SELECTING},
    "add": {"file", "unless", "expect"},
    "cast": _SELECTING,
    "quantize": {"block", "scale", "scale_dtype", *_SELECTING},
    "config": {"file"},
    "verify": set(),
}
_OF_A_SOURCE = ("take", "replace", "add")


def verb_of(step: Mapping[str, Any]) -> str:
    """The word that a step as written is named after; empty where there is none."""
    return next((key for key in step if key in _KEYS), "")


def problems(data: Mapping[str, Any], text: str, file: str) -> Iterator[Problem]:
    """The problems in ``data``, read from ``text``, each at its place in ``file``."""
    places = yaml_file.locations(text, file)

    def at(path: yaml_file.Path, message: str) -> Problem:
        return Problem(yaml_file.location_of(path, places, file), message)

    steps = data["steps"]
    if verb_of(steps[0]) != "take":
        yield at(("steps", 0), "the first step takes something: `take: SOURCE`")
    for number, step in enumerate(steps):
        yield from (at(("steps", number, *path), message) for path, message in _of_step(step, data["sources"]))
    used = {step.get(verb) for step in steps for verb in _OF_A_SOURCE}
    for name in data["sources"]:
        if name not in used:
            yield at(("sources", name), f"no step uses the source `{name}`")


def _of_step(step: Mapping[str, Any], sources: Mapping[str, Any]) -> Iterator[tuple[yaml_file.Path, str]]:
    verbs = [key for key in step if key in _KEYS]
    if len(verbs) != 1:
        yield (), f"one step is one of {', '.join(_KEYS)}" + (f", and not {' and '.join(verbs)}" if verbs else "")
        return
    verb = verbs[0]
    for key in sorted(step.keys() - {verb} - _KEYS[verb]):
        yield (key,), f"`{key}` means nothing to `{verb}`"
    if verb in _OF_A_SOURCE and step[verb] not in sources:
        suggestion = did_you_mean(step[verb], sources, code=True)
        yield (verb,), f"`{step[verb]}` is none of the sources" + (f"; {suggestion}" if suggestion else "")
    if verb == "add" and not step.get("file", "").endswith(".safetensors"):
        yield (), "`add` names a `file` of its source that ends with .safetensors"
    if step.get("quantize") == "int8-rows" and "block" in step:
        yield ("block",), "`block` means nothing to int8-rows: its scales are of rows"
    for old, new in (step.get("rename") or {}).items():
        if old.count("*") != new.count("*") or old.count("*") > 1:
            yield ("rename", old), "one * on both sides, or none"
