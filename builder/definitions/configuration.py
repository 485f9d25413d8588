"""A project's builder.yaml names its registry, its nodes and its own settings.

Bench profiles, container options and required evidence come first, since builder.yaml contains all three.
The reader of builder.yaml follows, then edits of its text, then the project's own probes.
An edit leaves the rest of the file as the user wrote it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from builder.base import files, records, yaml_file
from builder.base.errors import FileProblemsError, Location, Problem, UsageError, require_no_problems
from builder.base.project import Project, below_project
from builder.base.values import dataclass, field, replace
from builder.base.words import did_you_mean
from builder.definitions.fields import checked, env_text, read_text

# The profiles of `builder bench`.


@dataclass(frozen=True)
class BenchProfile:
    """A way of measuring throughput in ``minutes`` at most. Each prompt of ``pp`` tokens after a context of ``depth``
    tokens is answered with ``tg`` tokens (``exact``: no fewer), by ``concurrency`` requests at a time, ``runs`` times
    after one to warm up. ``thinking`` leaves a model's thinking on; ``coherence`` asks for France's capital first."""

    name: str
    pp: tuple[int, ...] = (2048,)
    tg: tuple[int, ...] = (128,)
    depth: tuple[int, ...] = (0,)
    concurrency: tuple[int, ...] = (1,)
    runs: int = 3
    exact: bool = True
    thinking: bool = False
    coherence: bool = True
    minutes: int = 30

    def within(self, context: int) -> BenchProfile:
        """The profile without the depths that do not fit into a context of this many tokens."""
        # The chat template and the adjusted prompt length need some more tokens.
        longest = max(self.pp) + max(self.tg) + 64
        return replace(self, depth=tuple(depth for depth in self.depth if depth + longest <= context))


BUILT_IN = (
    BenchProfile("quick", minutes=10),
    # The community's table. Its depths are from https://github.com/eugr/llama-benchy; spark-arena-v1 of
    # https://github.com/spark-arena/recipe-registry has its prompt, answer and concurrency, and goes on to depth 100000
    # and concurrency 10, with prefix caching.
    BenchProfile("community", depth=(0, 4096, 8192, 16384, 32768), concurrency=(1, 2, 5), exact=False, minutes=240),
    BenchProfile("deep", (128, 4096), (256, 1024), (0, 32768, 131072), concurrency=(1, 4, 8), exact=False, minutes=480),
)


def _profiles(data: Mapping[str, Any]) -> tuple[BenchProfile, ...]:
    """The built-in profiles, and the profiles in ``bench:`` of builder.yaml, which may replace them."""
    profiles = {profile.name: profile for profile in BUILT_IN}
    for name, settings in data.items():
        lists = {key: settings[key] for key in ("pp", "tg", "depth", "concurrency") if key in settings}
        lists = {key: tuple(value) if isinstance(value, list) else (value,) for key, value in lists.items()}
        profiles[name] = BenchProfile(name, **{**settings, **lists})
    return tuple(profiles.values())


@dataclass(frozen=True)
class RequestedOptions:
    """The options as written: ``SRC:DST[:ro]``, ``NAME=VALUE`` or ``NAME`` for the value in the environment,
    ``PORT:INSIDE``, and a size such as ``100g``."""

    volumes: tuple[str, ...] = ()
    env: tuple[str, ...] = field(default=(), repr=False)
    publish: tuple[str, ...] = ()
    earlyoom: bool | None = None
    memory: str = ""


NOTHING_REQUESTED = RequestedOptions()


# The evidence that a model requires before an image serves it: ``requires:`` in a recipe or in builder.yaml, such as
# ``{prove: pass, probe: [tools-long], bench: {tg at 32768: ">= 95 % of current"}, same: "within 0.5 %"}``.

KEYS = ("prove", "probe", "bench", "same")
# The figures of a benchmark; probes may print other figures.
FIGURES = ("tg", "pp", "ttfr", "acceptance", "memory_floor", "kv_tokens", "startup")
_NUMBER = r"[0-9]{1,12}(?:\.[0-9]{1,6})?"
_WITHIN = re.compile(rf"within\s+({_NUMBER})\s*%")
_FIGURE = re.compile(r"([a-z][a-z0-9_]*)(?: at ([0-9]{1,9}))?(?:, concurrency ([1-9][0-9]{0,4}))?")
_CONDITION = re.compile(rf"(>=|<=)\s*({_NUMBER})\s*(%\s*of\s+current)?")


@dataclass(frozen=True)
class RequiredFigure:
    """A bound for the mean of one figure of a benchmark: at least or at most ``limit``, or this percentage of the
    current image's figure."""

    name: str
    depth: int | None
    concurrency: int | None
    at_least: bool
    limit: float
    of_current: bool

    @property
    def figure(self) -> str:
        """The figure as written: ``tg at 32768``."""
        depth = "" if self.depth is None else f" at {self.depth}"
        return f"{self.name}{depth}" + (f", concurrency {self.concurrency}" if self.concurrency else "")

    @property
    def condition(self) -> str:
        """The bound as written: ``>= 95 % of current``."""
        limit = f"{self.limit:.6f}".rstrip("0").rstrip(".")
        return f"{'>=' if self.at_least else '<='} {limit}{' % of current' if self.of_current else ''}"

    def __str__(self) -> str:
        return f"{self.figure} {self.condition}"


@dataclass(frozen=True)
class RequiredEvidence:
    """The evidence that an image requires before it serves a model: passed proof and probes, figures within their
    bounds, and a perplexity of forced texts that differs from the current image by at most the share ``same``."""

    prove: bool = False
    probes: tuple[str, ...] = ()
    figures: tuple[RequiredFigure, ...] = ()
    same: float | None = None

    def __bool__(self) -> bool:
        return self != NOTHING_REQUIRED

    def joined(self, other: RequiredEvidence) -> RequiredEvidence:
        """The requirements of both."""
        return RequiredEvidence(
            self.prove or other.prove,
            tuple(dict.fromkeys((*self.probes, *other.probes))),
            tuple(dict.fromkeys((*self.figures, *other.figures))),
            min((each for each in (self.same, other.same) if each is not None), default=None),
        )


NOTHING_REQUIRED = RequiredEvidence()


def parsed(data: dict[str, Any] | None) -> RequiredEvidence:
    """Reads a mapping without `problems`."""
    data = data or {}
    figures = (_figure(figure, condition) for figure, condition in (data.get("bench") or {}).items())
    return RequiredEvidence(
        prove="prove" in data,
        probes=tuple(dict.fromkeys(data.get("probe") or ())),
        figures=tuple(figure for figure in figures if isinstance(figure, RequiredFigure)),
        same=float(within[1]) / 100 if (within := _WITHIN.fullmatch(data.get("same") or "")) else None,
    )


def problems(data: object, path: yaml_file.YamlPath, text: str, file: str) -> Iterator[Problem]:
    """The problems in the mapping at ``path`` of ``file`` that the schema does not find: unknown figures, and invalid
    conditions."""
    required = data if isinstance(data, dict) else {}
    same, bench = required.get("same"), required.get("bench")
    if isinstance(same, str) and not _WITHIN.fullmatch(same):
        place = yaml_file.location_of((*path, "same"), text, file)
        yield Problem(place, f"`{same}` is not a valid condition, such as `within 0.5 %`")
    for figure, condition in bench.items() if isinstance(bench, dict) else ():
        if isinstance(condition, str) and isinstance(complaint := _figure(figure, condition), str):
            yield Problem(yaml_file.location_of((*path, "bench", figure), text, file), complaint)


def _figure(figure: str, condition: str) -> RequiredFigure | str:
    """The required figure, or the reason why the text is not one."""
    name = _FIGURE.fullmatch(figure)
    if name is None:
        return f"`{figure}` is not a valid figure, such as `tg`, `tg at 32768` or `tg at 32768, concurrency 4`"
    if name[1] not in FIGURES:
        nearest = did_you_mean(name[1], FIGURES, code=True) or f"known here: {', '.join(FIGURES)}"
        return f"no bench run measures `{name[1]}`; {nearest}"
    bound = _CONDITION.fullmatch(condition.strip())
    if bound is None:
        return f"`{condition}` is not a valid condition, such as `>= 40`, `<= 2000` or `>= 95 % of current`"
    depth, concurrency = (None if part is None else int(part) for part in (name[2], name[3]))
    return RequiredFigure(name[1], depth, concurrency, bound[1] == ">=", float(bound[2]), bound[3] is not None)


# The optional ``builder.yaml``: a project's registry, its nodes, and the buildx instance that builds its images.

FILE = "builder.yaml"


@dataclass(frozen=True)
class Node:
    """A machine that receives images. ``engine`` is an address (ssh://, tcp://, unix://) or the name of a docker
    context. ``models`` is the folder of its Hugging Face cache; ``address`` is its address for other nodes, if given.

    ``interface`` is the Ethernet interface of the link to other nodes. ``rdma`` are the RoCE devices on it: None if not
    configured, empty if there are none. ``env`` is for containers that serve together with other nodes."""

    name: str
    engine: str
    models: str | None = None
    address: str | None = None
    interface: str | None = None
    rdma: tuple[str, ...] | None = None
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Configuration:
    """The settings in builder.yaml. ``registry`` is HOST[:PORT][/PATH]; with ``cache`` it stores the build cache.
    ``builder`` names a buildx instance. ``container`` are the options of every serving container. ``reserve`` is the
    memory in bytes that servers leave free. ``node_timeout`` is the time in seconds for a node's answer.
    ``release_age`` is the minimum age of a release in days. ``commit_wheels`` is the index of vLLM's wheels for one
    commit, with the placeholder ``COMMIT``. ``mirror`` is the folder for copies of the images of others. ``requires``
    maps models to their evidence; the empty name means all models. ``silenced`` maps advisories to the user's
    reasons."""

    registry: str | None = None
    builder: str | None = None
    cache: bool = False
    nodes: tuple[Node, ...] = ()
    container: RequestedOptions = NOTHING_REQUESTED
    reserve: int = 8 << 30
    node_timeout: int = 10
    release_age: int = 7
    commit_wheels: str | None = None
    mirror: Path | None = None
    bench: tuple[BenchProfile, ...] = BUILT_IN
    requires: Mapping[str, RequiredEvidence] = field(default_factory=dict)
    mod_sources: Mapping[str, str] = field(default_factory=dict)
    silenced: Mapping[str, str] = field(default_factory=dict)
    recipe_registries: Mapping[str, str] = field(default_factory=dict)

    def profile(self, name: str) -> BenchProfile:
        profiles = {profile.name: profile for profile in self.bench}
        if name not in profiles:
            hint = f"profiles: {', '.join(profiles)}; your own profiles are under `bench:` in {FILE}"
            raise UsageError(f"no profile is called `{name}`", hint=hint)
        return profiles[name]

    def required_of(self, model: str | None) -> RequiredEvidence:
        """The evidence that a model requires, including the requirements for all models."""
        of_all = self.requires.get("", NOTHING_REQUIRED)
        return of_all.joined(self.requires.get(model, NOTHING_REQUIRED)) if model else of_all

    def node(self, name: str) -> Node:
        nodes = {node.name: node for node in self.nodes}
        if name not in nodes:
            hint = (
                f"its nodes: {', '.join(nodes)}" if nodes else f"add the node under `nodes`: `{name}: ssh://USER@HOST`"
            )
            raise UsageError(f"{FILE} has no node `{name}`", hint=hint)
        return nodes[name]

    def required_registry(self) -> str:
        if self.registry is None:
            raise UsageError("no registry is set", hint=f"write `registry: HOST:PORT/PATH` into {FILE}")
        return self.registry


def load_configuration(project: Project) -> Configuration:
    """The project's configuration, empty without a builder.yaml. Raises FileProblemsError if it is invalid."""
    path = project.root / FILE
    if not os.path.lexists(path):  # a link that leads nowhere is a mistake
        return Configuration()
    text = read_text(path, FILE, project.root)
    data = document(text)
    plain = ("registry", "builder", "cache", "node_timeout", "release_age", "commit_wheels")
    mappings = ("mod_sources", "silenced", "recipe_registries")
    settings = {key: data[key] for key in (*plain, *mappings) if data.get(key) is not None}
    if "reserve" in data:  # 8g, 500m or 0
        size = str(data["reserve"])
        settings["reserve"] = int(size.rstrip("mg")) << {"m": 20, "g": 30}.get(size[-1], 0)
    if "mirror" in data:
        settings["mirror"] = project.root / Path(data["mirror"]).expanduser()
    env = (data.get("env") or {}).items()
    return Configuration(
        **settings,
        nodes=tuple(_node(name, each) for name, each in data.get("nodes", {}).items()),
        container=RequestedOptions(
            volumes=tuple(data.get("volumes") or ()),
            env=tuple(name if value is None else f"{name}={env_text(value)}" for name, value in env),
            publish=tuple(map(str, data.get("publish") or ())),
            earlyoom=data.get("earlyoom"),
            memory=data.get("memory", ""),
        ),
        bench=_profiles(data.get("bench") or {}),
        requires=_requires(data["requires"], text) if data.get("requires") else {},
    )


def document(text: str) -> dict[str, Any]:
    """The keys of builder.yaml with this text; empty if it has only comments. Raises FileProblemsError."""
    from urllib.parse import urlsplit

    is_bare = all(not line.strip() or line.lstrip().startswith("#") for line in text.splitlines())
    data = {} if is_bare else checked(text, FILE, "builder")
    wrong = []
    for name, settings in data.get("nodes", {}).items():
        engine = settings if isinstance(settings, str) else settings["engine"]
        try:
            _ = urlsplit(engine).port  # ports and IPv6 addresses, which a pattern cannot check
        except ValueError as error:
            location = yaml_file.location_of(("nodes", name), text, FILE)
            wrong.append(Problem(location, f"`{engine}` is not an address such as ssh://USER@HOST: {error}"))
    require_no_problems(wrong)
    return data


def _requires(data: dict[str, Any], text: str) -> dict[str, RequiredEvidence]:
    """The requirements of each model; requirements without a model apply to all. Raises FileProblemsError."""
    required = {"": {key: value for key, value in data.items() if key in KEYS}}
    required |= {key: value or {} for key, value in data.items() if key not in KEYS}
    wrong: list[Problem] = []
    for model, value in required.items():
        wrong += problems(value, ("requires", model) if model else ("requires",), text, FILE)
    require_no_problems(wrong)
    return {model: parsed(value) for model, value in required.items()}


def _node(name: str, settings: str | dict[str, Any]) -> Node:
    if isinstance(settings, str):
        return Node(name, settings)
    env = {variable: env_text(value) for variable, value in (settings.get("env") or {}).items()}
    return records.record(Node, {"name": name, **settings, "env": env})


def address_of(node: Node) -> str:
    """The address of this node for other nodes. Raises UsageError if it is unknown."""
    from urllib.parse import urlsplit

    address = node.address or (urlsplit(node.engine).hostname if "://" in node.engine else None)
    if not address:
        hint = f"write the address into {FILE}: `{node.name}: {{engine: {node.engine}, address: 10.0.0.1}}`"
        raise UsageError(f"the address at which other nodes reach {node.name} is not known", hint=hint)
    return address


# Edits the text of ``builder.yaml``: other parts of the text stay unchanged.


@dataclass(frozen=True)
class ConfigurationChange:
    """The text of builder.yaml before and after an edit; empty if the file does not exist."""

    before: str
    after: str

    @property
    def changed(self) -> bool:
        """True if the edit changes builder.yaml."""
        return self.before != self.after

    def difference(self) -> tuple[str, ...]:
        import difflib

        before, after = self.before.splitlines(), self.after.splitlines()
        return tuple(difflib.unified_diff(before, after, f"{FILE} (current)", f"{FILE} (new)", lineterm=""))


def present_text(project: Project) -> str:
    """The text of builder.yaml, empty if there is none. Raises FileProblemsError if it is not text."""
    path = project.root / FILE
    return read_text(path, FILE) if os.path.lexists(path) else ""


def write_change(project: Project, change: ConfigurationChange) -> None:
    """Writes the edited builder.yaml. Raises UsageError if the file has changed since, or cannot be written."""
    if present_text(project) != change.before:
        raise UsageError(f"{FILE} changed in the meantime, so it was not written", hint="run the command again")
    try:
        files.write_atomically(project.root / FILE, change.after.encode())
    except OSError as error:
        raise UsageError(f"{FILE} cannot be written: {error.strerror}") from None


def with_node_settings(text: str, settings: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns ``text`` with these settings of nodes set or added. Comments are kept, unless the layout is so unusual
    that the file must be rewritten."""
    data = yaml_file.load(text, FILE) or {}
    nodes = dict(data.get("nodes") or {})
    changes: dict[yaml_file.YamlPath, Any] = {}
    for name, values in settings.items():
        before = nodes.get(name)
        if isinstance(before, dict):
            changes |= {("nodes", name, key): value for key, value in values.items() if before.get(key) != value}
            nodes[name] = {**before, **values}
        else:
            changes["nodes", name] = nodes[name] = {**({"engine": before} if before else {}), **values}
    expected = {**data, "nodes": nodes}
    return yaml_file.with_values(text, changes, expected) or yaml_file.dump(expected)


def with_environment(text: str, variables: Mapping[str, str | None]) -> str:
    """Returns ``text`` with these variables set or added under ``env``. Comments are kept."""
    data = yaml_file.load(text, FILE) or {}
    expected = {**data, "env": {**(data.get("env") or {}), **variables}}
    changes: dict[yaml_file.YamlPath, Any] = {("env", name): value for name, value in variables.items()}
    return yaml_file.with_values(text, changes, expected) or yaml_file.dump(expected)


# Probes of a project: ``probes/NAME/probe.yaml``, a command that checks a served model.

FOLDER = "probes"
PROBE_FILE = "probe.yaml"
DEFAULT_SECONDS = 600
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LARGEST = 64 << 20


class ProbedFigure(NamedTuple):
    unit: str
    better: Literal["higher", "lower", ""]


@dataclass(frozen=True)
class OwnProbe:
    """A parsed probe. Its command runs in ``folder`` for at most ``seconds``; ``digest`` covers all files in the
    folder."""

    name: str
    folder: Path
    command: tuple[str, ...]
    seconds: int
    figures: Mapping[str, ProbedFigure]
    digest: str


def probe_names(project: Project) -> tuple[str, ...]:
    paths = sorted((project.root / FOLDER).glob(f"*/{PROBE_FILE}"))
    return tuple(path.parent.name for path in paths if NAME.fullmatch(path.parent.name))


def load_probe(project: Project, name: str) -> OwnProbe:
    """Reads the probe called ``name``. Raises UsageError if it does not exist, FileProblemsError if it is invalid."""
    if name not in probe_names(project):
        suggestion = did_you_mean(name, probe_names(project), code=True)
        hint = f"`{FOLDER}/{name}/{PROBE_FILE}` defines a probe; `builder schema probe` lists its keys"
        raise UsageError(f"no probe is called `{name}`{suggestion and f'; {suggestion}'}", hint=hint)
    folder = below_project(project.root, project.root / FOLDER / name)
    file = f"{FOLDER}/{name}/{PROBE_FILE}"
    data = checked(read_text(folder / PROBE_FILE, file, project.root), file, "probe")
    figures = data.get("figures", {})
    return OwnProbe(
        name=name,
        folder=folder,
        command=tuple(data["command"]),
        seconds=data.get("seconds", DEFAULT_SECONDS),
        figures={
            figure: ProbedFigure(settings["unit"], "" if settings["better"] == "neither" else settings["better"])
            for figure, settings in figures.items()
        },
        digest=_digest(folder, file),
    )


def _digest(folder: Path, file: str) -> str:
    """The digest over the names and contents of the files in a probe's folder. Python's caches are left out."""
    import hashlib

    whole = hashlib.sha256()
    paths = [path for path in sorted(folder.rglob("*")) if "__pycache__" not in path.parts and not path.is_dir()]
    for path in paths:
        try:
            # `Path.resolve` raises RuntimeError for a link to itself (before Python 3.13).
            content = files.read_plain_file(os.path.realpath(path), _LARGEST)
        except OSError as error:
            message = f"{path.relative_to(folder)} cannot be read: {error.strerror or error}"
            raise FileProblemsError((Problem(Location(file), message),)) from None
        whole.update(f"{path.relative_to(folder)}\0{hashlib.sha256(content).hexdigest()}\n".encode(errors="replace"))
    return f"sha256:{whole.hexdigest()}"
