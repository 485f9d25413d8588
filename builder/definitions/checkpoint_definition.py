"""A checkpoint definition, ``checkpoints/NAME/checkpoint.yaml``, lists the steps that make new weights from existing
ones.

This page reads and checks definitions. It reads no tensors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from builder.base import yaml_file
from builder.base.errors import Location, Problem, UsageError, require_no_problems
from builder.base.project import Project, below_project
from builder.base.values import dataclass, field
from builder.base.words import did_you_mean
from builder.definitions.fields import checked, read_text


@dataclass(frozen=True)
class TensorSelection:
    """Tensors by patterns of their names, and optionally by their dtype."""

    patterns: tuple[str, ...] = ("*",)
    exceptions: tuple[str, ...] = ()
    dtype: str | None = None


@dataclass(frozen=True)
class TakeStep:
    """Copies tensors of a source, with the names that ``rename`` gives them, and other files of the source that match
    ``files``. If ``files`` is None, the first step of this kind copies all files, and later steps copy none."""

    source: str
    selection: TensorSelection
    rename: Mapping[str, str] = field(default_factory=dict)
    files: tuple[str, ...] | None = None
    expect: int | None = None


@dataclass(frozen=True)
class ReplaceStep:
    """Replaces tensors by the selected tensors of a source with the same name and shape, each with its companions,
    except ``unmatched`` ones."""

    source: str
    selection: TensorSelection
    companions: tuple[str, ...] = ()
    expect: int | None = None
    unmatched: int | None = None


@dataclass(frozen=True)
class AddStep:
    """Adds a whole file of a source, with the names in the file's header. The step adds nothing if an existing tensor
    matches the patterns ``unless``, for example because the source's index lists the file."""

    source: str
    file: str
    unless: tuple[str, ...] = ()
    expect: int | None = None


@dataclass(frozen=True)
class ConfigStep:
    """Changes a JSON file by a merge patch (RFC 7396)."""

    file: str
    patch: Mapping[str, Any]


@dataclass(frozen=True)
class VerifyStep:
    """Checks the result: the number of tensors in total, by pattern and by dtype; shapes by pattern; digests of
    files."""

    tensors: int | None = None
    size: int | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    dtypes: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


CheckpointStep = TakeStep | ReplaceStep | AddStep | ConfigStep | VerifyStep


FOLDER = "checkpoints"
FILE = "checkpoint.yaml"
NAME = re.compile(r"(?!.*--)[a-z0-9][a-z0-9._-]{0,63}")
SHARD_SIZE = 5_000_000_000


@dataclass(frozen=True)
class CheckpointSource:
    """A model on the Hub with the requested revision, or a folder on this machine."""

    model: str | None
    revision: str = "main"
    folder: str | None = None

    def __str__(self) -> str:
        return f"hf: {self.model}@{self.revision}" if self.model else f"folder: {self.folder}"


@dataclass(frozen=True)
class CheckpointDefinition:
    """A parsed definition. The result is served and paired under the id ``model``. ``folder`` is the folder of the
    results as written; None means the Hugging Face cache. ``shard_size`` is the maximum size of a file in bytes."""

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
        return yaml_file.location_of(path, self.text, self.file)


def checkpoint_names(project: Project) -> tuple[str, ...]:
    paths = sorted((project.root / FOLDER).glob(f"*/{FILE}"))
    return tuple(path.parent.name for path in paths if NAME.fullmatch(path.parent.name))


def load_checkpoint(project: Project, text: str) -> CheckpointDefinition:
    """Reads the definition called ``text``, which may be its folder. Raises UsageError if it does not
    exist, FileProblemsError if it is invalid."""
    name = text.removeprefix("checkpoint:").removeprefix("./").removeprefix(f"{FOLDER}/").rstrip("/")
    existing = checkpoint_names(project)
    if name not in existing:
        suggestion = did_you_mean(name, existing, code=True)
        hint = f"`{FOLDER}/NAME/{FILE}` defines a checkpoint; `builder schema checkpoint` lists its keys"
        hint = f"existing checkpoints: {', '.join(existing)}" if existing else hint
        raise UsageError(f"no checkpoint is called `{name}`{suggestion and f'; {suggestion}'}", hint=hint)
    path = below_project(project.root, project.root / FOLDER / name) / FILE
    file = f"{FOLDER}/{name}/{FILE}"
    return parse_checkpoint(read_text(path, file, project.root), name, file)


def parse_checkpoint(text: str, name: str, file: str) -> CheckpointDefinition:
    """Reads a definition from its text. Raises FileProblemsError with all problems."""
    data = checked(text, file, "checkpoint")
    require_no_problems(_problems(data, text, file))
    output = data.get("output") or {}
    size: str = output.get("shard_size", "")
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
        shard_size=int(size[:-2].strip()) * (10**9 if size.endswith("GB") else 10**6) if size else SHARD_SIZE,
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
    expect = step.get("expect")
    match step:
        case {"take": source}:
            files = tuple(step["files"]) if "files" in step else None
            return TakeStep(source, _selection(step), step.get("rename", {}), files, expect)
        case {"replace": source}:
            companions = tuple(step.get("companions", ()))
            return ReplaceStep(source, _selection(step), companions, expect, step.get("unmatched"))
        case {"add": source}:
            return AddStep(source, step["file"], tuple(step.get("unless", ())), expect)
        case {"config": patch}:
            return ConfigStep(step.get("file", "config.json"), patch)
    demands = step["verify"]
    shapes = {pattern: tuple(shape) for pattern, shape in demands.get("shapes", {}).items()}
    maps = {key: demands.get(key, {}) for key in ("counts", "dtypes", "files")}
    return VerifyStep(demands.get("tensors"), demands.get("bytes"), shapes=shapes, **maps)


# Problems of a checkpoint definition that its schema cannot find.

_SELECTING = {"select", "except", "dtype", "expect"}
_KEYS: Mapping[str, set[str]] = {
    "take": {"rename", "files", *_SELECTING},
    "replace": {"companions", "unmatched", *_SELECTING},
    "add": {"file", "unless", "expect"},
    "config": {"file"},
    "verify": set(),
}
_OF_A_SOURCE = ("take", "replace", "add")


def _problems(data: Mapping[str, Any], text: str, file: str) -> list[Problem]:
    steps = data["steps"]
    wrong: list[tuple[yaml_file.YamlPath, str]] = []
    if "take" not in steps[0]:
        wrong.append((("steps", 0), "the first step must take a source: `take: SOURCE`"))
    for number, step in enumerate(steps):
        wrong += ((("steps", number, *path), message) for path, message in _of_step(step, data["sources"]))
    used = {step.get(verb) for step in steps for verb in _OF_A_SOURCE}
    wrong += ((("sources", name), f"no step uses the source `{name}`") for name in data["sources"] if name not in used)
    return sorted(Problem(yaml_file.location_of(path, text, file), message) for path, message in wrong)


def _of_step(step: Mapping[str, Any], sources: Mapping[str, Any]) -> Iterator[tuple[yaml_file.YamlPath, str]]:
    verbs = [key for key in step if key in _KEYS]
    if len(verbs) != 1:
        both = f"; this step has {' and '.join(verbs)}" if verbs else ""
        yield (), f"a step has exactly one of {', '.join(_KEYS)}{both}"
        return
    verb = verbs[0]
    for key in sorted(step.keys() - {verb} - _KEYS[verb]):
        yield (key,), f"`{key}` has no effect with `{verb}`"
    if verb in _OF_A_SOURCE and step[verb] not in sources:
        suggestion = did_you_mean(step[verb], sources, code=True)
        yield (verb,), f"`{step[verb]}` is not one of the sources{suggestion and f'; {suggestion}'}"
    if verb == "add" and not step.get("file", "").endswith(".safetensors"):
        yield (), "`add` requires a `file`: the name of a .safetensors file in its source"
    for old, new in (step.get("rename") or {}).items():
        if old.count("*") != new.count("*") or old.count("*") > 1:
            yield ("rename", old), "a rename has one * on each side, or none"
