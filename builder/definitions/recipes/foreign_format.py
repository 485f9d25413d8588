"""Recipes in formats of other launchers, told by their version and keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builder.errors import Problem
from builder.yaml import yaml_file

if TYPE_CHECKING:
    from collections.abc import Mapping

# The versions of sparkrun's own format: https://github.com/spark-arena/sparkrun
_SPARKRUN_VERSIONS = range(2, 5)
_VERSION_KEYS = ("recipe_version", "sparkrun_version", "version")
_REQUIRED = ("name", "container", "command")
# Keys of sparkrun's. A recipe of version 1 may have them, if it has what that version needs.
_OWN_KEYS = ("builder", "metadata", "runtime_config", "min_nodes")
# Runtimes of sparkrun that start `vllm serve`.
_VLLM = ("vllm", "eugr")


def problem(data: Mapping[str, Any], text: str, file: str) -> Problem | None:
    """The one problem of a recipe that is sparkrun's; None for any other."""
    for key in _VERSION_KEYS:
        version = _version(data.get(key))
        if version in _SPARKRUN_VERSIONS:
            return _of_sparkrun(key, f", version {version}", text, file)
    runtime = data.get("runtime")
    missing = any(key not in data for key in _REQUIRED)
    if runtime is None:
        own = next((key for key in _OWN_KEYS if key in data), None)
        return _of_sparkrun(own, "", text, file) if own and missing else None
    complete = not missing and _version(data.get("recipe_version", 1)) == 1
    # sparkrun reads recipes of version 1, too, and its users add its keys to them: such a recipe works here as well.
    if complete and str(runtime).startswith(_VLLM):
        return None
    return _of_sparkrun("runtime", f" (runtime {runtime})" if isinstance(runtime, str) else "", text, file)


def version_note(data: Mapping[str, Any], text: str, file: str) -> Problem | None:
    """A note on a version of the format that is not known here."""
    written = data.get("recipe_version")
    if written is None or _version(written) == 1:
        return None
    location = yaml_file.location_of(("recipe_version",), yaml_file.locations(text, file), file)
    return Problem(location, f"`recipe_version`: {written} is not known here; it is read as version 1")


def _version(value: object) -> int | None:
    try:
        return int(float(str(value)))
    except (ValueError, OverflowError):
        return None


def _of_sparkrun(key: str, which: str, text: str, file: str) -> Problem:
    location = yaml_file.location_of((key,), yaml_file.locations(text, file), file)
    message = f"this is a recipe of sparkrun{which}; builder reads version 1, that of spark-vllm-docker"
    return Problem(location, message)
