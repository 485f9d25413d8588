"""Checkpoint definitions: ``checkpoints/NAME/checkpoint.yaml``, weights that are made from others by recorded steps."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from builder.definitions import checkpoint_problems
from builder.definitions.checkpoint_steps import (
    AddStep,
    CastStep,
    CheckpointStep,
    ConfigStep,
    QuantizeStep,
    ReplaceStep,
    TakeStep,
    TensorSelection,
    VerifyStep,
)
from builder.definitions.reading import checked, read_text
from builder.errors import FileProblemsError, Location, UsageError
from builder.project import below
from builder.suggestions import did_you_mean
from builder.yaml import yaml_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.project import Project

FOLDER = "checkpoints"
FILE = "checkpoint.yaml"
NAME = re.compile(r"(?!.*--)[a-z0-9][a-z0-9._-]{0,63}")
SHARD_SIZE = 5_000_000_000

_UNITS = {"MB": 10**6, "GB": 10**9}
_SCALES = {"int8-rows": "weight_scale", "fp8-blocks": "weight_scale_inv"}


@dataclass(frozen=True)
class CheckpointSource:
    """A model of the Hub with the revision that is wanted of it, or a folder of this machine as it is written."""

    model: str | None
    revision: str = "main"
    folder: str | None = None

    def __str__(self) -> str:
        return f"hf: {self.model}@{self.revision}" if self.model else f"folder: {self.folder}"


@dataclass(frozen=True)
class CheckpointDefinition:
    """A definition as read. ``model`` is the id under which the result is served and paired, ``folder`` what its
    results lie in, as written (the Hugging Face cache where it is None), ``shard_size`` the most bytes of a file."""

    name: str
    file: str
    description: str
    model: str
    sources: Mapping[str, CheckpointSource]
    steps: tuple[CheckpointStep, ...]
    mods: tuple[str, ...] = ()
    license: str | None = None
    folder: str | None = None
    shard_size: int = SHARD_SIZE
    text: str = field(default="", repr=False, compare=False)

    def location(self, *path: str | int) -> Location:
        """The location of a value in the file."""
        return yaml_file.location_of(path, yaml_file.locations(self.text, self.file), self.file)


def names(project: Project) -> tuple[str, ...]:
    """The names of the project's checkpoints, sorted."""
    paths = sorted((project.root / FOLDER).glob(f"*/{FILE}"))
    return tuple(path.parent.name for path in paths if NAME.fullmatch(path.parent.name))


def load(project: Project, text: str) -> CheckpointDefinition:
    """Reads the definition called ``text``, which may be its folder. Raises UsageError where there is none,
    FileProblemsError for a bad one."""
    name = text.removeprefix("checkpoint:").removeprefix("./").removeprefix(f"{FOLDER}/").rstrip("/")
    existing = names(project)
    if name not in existing:
        suggestion = did_you_mean(name, existing, code=True)
        raise UsageError(
            f"no checkpoint is called `{name}`" + (f"; {suggestion}" if suggestion else ""),
            hint=f"there are: {', '.join(existing)}"
            if existing
            else f"`{FOLDER}/NAME/{FILE}` defines one; `builder schema checkpoint` tells what it holds",
        )
    path = below(project.root, project.root / FOLDER / name) / FILE
    file = f"{FOLDER}/{name}/{FILE}"
    return parse(read_text(path, file, project.root), name, file)


def parse(text: str, name: str, file: str) -> CheckpointDefinition:
    """Reads a definition from its text. Raises FileProblemsError with everything that is wrong in it."""
    data = checked(text, file, "checkpoint")
    problems = tuple(checkpoint_problems.problems(data, text, file))
    if problems:
        raise FileProblemsError(tuple(sorted(problems)))
    output = data.get("output") or {}
    return CheckpointDefinition(
        name=name,
        file=file,
        description=data["description"],
        model=data["model"],
        sources={key: _source(written) for key, written in data["sources"].items()},
        steps=tuple(map(_step, data["steps"])),
        mods=tuple((data.get("requires") or {}).get("mods") or ()),
        license=data.get("license"),
        folder=output.get("folder"),
        shard_size=_bytes(output["shard_size"]) if "shard_size" in output else SHARD_SIZE,
        text=text,
    )


def _source(written: Mapping[str, str]) -> CheckpointSource:
    if "folder" in written:
        return CheckpointSource(None, "", written["folder"])
    model, _, revision = written["hf"].partition("@")
    return CheckpointSource(model, revision or "main")


def _selection(step: Mapping[str, Any]) -> TensorSelection:
    return TensorSelection(tuple(step.get("select", ("*",))), tuple(step.get("except", ())), step.get("dtype"))


def _step(step: Mapping[str, Any]) -> CheckpointStep:
    verb, expect = checkpoint_problems.verb_of(step), step.get("expect")
    if verb == "take":
        files = tuple(step["files"]) if "files" in step else None
        return TakeStep(step["take"], _selection(step), dict(step.get("rename", {})), files, expect)
    if verb == "replace":
        companions = tuple(step.get("companions", ()))
        return ReplaceStep(step["replace"], _selection(step), companions, expect, step.get("unmatched"))
    if verb == "add":
        return AddStep(step["add"], step["file"], tuple(step.get("unless", ())), expect)
    if verb == "cast":
        return CastStep(step["cast"], _selection(step), expect)
    if verb == "quantize":
        kind = step["quantize"]
        rows, columns = step.get("block", (128, 128))
        scale, scale_dtype = step.get("scale", _SCALES[kind]), step.get("scale_dtype", "F32")
        return QuantizeStep(kind, _selection(step), (rows, columns), scale, scale_dtype, expect)
    if verb == "config":
        return ConfigStep(step.get("file", "config.json"), step["config"])
    demands = step["verify"]
    shapes = {pattern: tuple(shape) for pattern, shape in demands.get("shapes", {}).items()}
    maps = {key: dict(demands.get(key, {})) for key in ("counts", "dtypes", "files")}
    return VerifyStep(demands.get("tensors"), demands.get("bytes"), shapes=shapes, **maps)


def _bytes(text: str) -> int:
    return int(text[:-2].strip()) * _UNITS[text[-2:]]
