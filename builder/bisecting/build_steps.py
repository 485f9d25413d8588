"""The steps of a build by keys that are equal where BuildKit has their result already, to tell which of them another
build has to run."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

from builder.bisecting import tokens
from builder.plan import model

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from builder.plan.model import StagedFile

_FROM = re.compile(r"^FROM (?:--\S+ )*(?P<below>\S+)(?: AS (?P<own>\S+))?$", re.MULTILINE)
_STAGE = re.compile(r"(?:--mount=\S*\bfrom|--from)=(?P<name>[^,\s]+)")
_SOURCE = re.compile(r"--mount=(?P<options>\S*\bsource=(?P<path>[^,\s]+)\S*)")
_RUN = re.compile(r"^(?:RUN|COPY|ADD) .*", re.MULTILINE)
_COPY = re.compile(r"^(?:COPY|ADD) (?!.*--from=)", re.MULTILINE)


def titles(files: Mapping[str, StagedFile], targets: Mapping[str, Any]) -> dict[str, str]:
    """The title of each step that runs, as `building.step_times` has it, by its key."""
    steps: dict[str, str] = {}
    ends: dict[str, str] = {}
    for name, target in targets.items():
        folder = str(target["context"])
        inside = "" if folder == "." else f"{folder}/"
        own = {path.removeprefix(inside): file for path, file in files.items() if path.startswith(inside)}
        contexts = {
            key: ends.get(source.removeprefix("target:"), source) for key, source in target.get("contexts", {}).items()
        }
        for ends[name], title in _steps(own, contexts):
            if title:
                steps[ends[name]] = title
    return steps


def _steps(files: Mapping[str, StagedFile], contexts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yields the key of each instruction, with its title where it runs something."""
    stages = dict(contexts)
    stage = key = ""
    for text in tokens.instructions(files["Dockerfile"].content.decode()):
        if begun := _FROM.search(text):
            stage = begun["own"] or ""
            key = contexts.get(stage) or _hash("", stages.get(begun["below"], begun["below"]))
            title = ""
        else:
            key = _hash(key, text, *(stages.get(name, name) for name in _STAGE.findall(text)), *_mounted(text, files))
            title = tokens.title(text) or (run[0] if (run := _RUN.search(text)) else "")
        if stage and stage not in contexts:
            stages[stage] = key
        yield key, title


def _mounted(text: str, files: Mapping[str, StagedFile]) -> Iterator[str]:
    """Yields the digests of what an instruction takes from the build directory."""
    if _COPY.search(text):
        yield model.files_hash(files)
    for mount in _SOURCE.finditer(text):
        if "from=" not in mount["options"]:
            path = mount["path"].strip("/")
            yield model.files_hash(
                {name: file for name, file in files.items() if name == path or name.startswith(f"{path}/")}
            )


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def new_titles(steps: Mapping[str, str], *done: Mapping[str, str]) -> tuple[str, ...]:
    """The titles of the steps that none of the builds ``done`` has."""
    return tuple(title for key, title in steps.items() if not any(key in each for each in done))
