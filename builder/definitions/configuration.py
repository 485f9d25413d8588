"""A project's builder.yaml names its registry, its nodes and its own settings.

Bench profiles, container options and required evidence come first, since builder.yaml contains all three.
The reader of builder.yaml follows, then edits of its text, then the project's own probes.
An edit leaves the rest of the file as the user wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml

from builder.base import files, yaml_file
from builder.base.errors import FileProblemsError, Location, Problem, UsageError
from builder.base.project import below_project
from builder.base.words import did_you_mean
from builder.definitions.fields import checked, env_text, read_checked, read_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.base.project import Project


# The profiles of `builder bench`: those built in, and a project's own under ``bench:`` in builder.yaml.


@dataclass(frozen=True)
class BenchProfile:
    """A protocol of measuring throughput. Each prompt of ``pp`` tokens after a context of ``depth`` tokens is answered
    with ``tg`` tokens, by ``concurrency`` requests at a time, ``runs`` times after one to warm up.

    ``exact`` makes every answer as long as ``tg`` says. ``thinking`` leaves a model's thinking on; ``coherence`` first
    asks for the capital of France. It takes ``minutes`` at most."""

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
        """The profile without the depths for which a context of so many tokens has no room."""
        # The chat template and the adjustment of the prompt's length take some tokens more.
        longest = max(self.pp) + max(self.tg) + 64
        return replace(self, depth=tuple(depth for depth in self.depth if depth + longest <= context))


BUILT_IN = (
    BenchProfile("quick", minutes=10),
    # The community's table. Its depths are those of https://github.com/eugr/llama-benchy; spark-arena-v1 of
    # https://github.com/spark-arena/recipe-registry has its prompt, answer and concurrency, and goes on to depth 100000
    # and concurrency 10, with prefix caching.
    BenchProfile(
        "community",
        depth=(0, 4096, 8192, 16384, 32768),
        concurrency=(1, 2, 5),
        exact=False,
        minutes=240,
    ),
    BenchProfile(
        "deep",
        pp=(128, 4096),
        tg=(256, 1024),
        depth=(0, 32768, 131072),
        concurrency=(1, 4, 8),
        exact=False,
        minutes=480,
    ),
)


def of_project(data: Mapping[str, Any] | None) -> tuple[BenchProfile, ...]:
    """The profiles built in and those in ``bench:`` of builder.yaml, which may replace them."""
    own = {name: _profile(name, settings) for name, settings in (data or {}).items()}
    return tuple(({profile.name: profile for profile in BUILT_IN} | own).values())


def _profile(name: str, settings: Mapping[str, Any]) -> BenchProfile:
    lists = {"pp", "tg", "depth", "concurrency"}
    values: dict[str, Any] = {
        key: tuple(value if isinstance(value, list) else [value]) if key in lists else value
        for key, value in settings.items()
    }
    return BenchProfile(name, **values)


# The options of a container as written on the command line or in builder.yaml; `container_options` reads them.


@dataclass(frozen=True)
class RequestedOptions:
    """The options as they are written: ``SRC:DST[:ro]``, ``NAME=VALUE`` or ``NAME`` for the environment's own value,
    ``PORT:INSIDE``, and a size such as ``100g``. ``earlyoom`` is None where nothing is said."""

    volumes: tuple[str, ...] = ()
    env: tuple[str, ...] = field(default=(), repr=False)
    publish: tuple[str, ...] = ()
    earlyoom: bool | None = None
    memory: str = ""

    @property
    def is_empty(self) -> bool:
        return self == NOTHING_REQUESTED


NOTHING_REQUESTED = RequestedOptions()


# The evidence that a pairing requires before an image serves it: ``requires:`` of a recipe or of builder.yaml.
# requires: {prove: pass, probe: [tools-long], bench: {tg at 32768: ">= 95 % of current"}} This module reads what is
# written; if it is met, ``evidence.requirements`` tells.

KEYS = ("prove", "probe", "bench")
# The figures of a bench run; probes may print others.
FIGURES = ("tg", "pp", "ttfr", "acceptance", "memory_floor", "kv_tokens", "startup")
_NUMBER = r"[0-9]{1,12}(?:\.[0-9]{1,6})?"
_FIGURE = re.compile(r"([a-z][a-z0-9_]*)(?: at ([0-9]{1,9}))?(?:, concurrency ([1-9][0-9]{0,4}))?")
_CONDITION = re.compile(rf"(>=|<=)\s*({_NUMBER})\s*(%\s*of\s+current)?")


@dataclass(frozen=True)
class RequiredFigure:
    """A bound for one figure of a bench run: the mean of ``name`` at that depth and concurrency is at least (else at
    most) ``limit``, or that percentage of what the current image reaches."""

    name: str
    depth: int | None
    concurrency: int | None
    at_least: bool
    limit: float
    of_current: bool

    @property
    def figure(self) -> str:
        """The figure as it is written: ``tg at 32768``."""
        depth = "" if self.depth is None else f" at {self.depth}"
        return f"{self.name}{depth}" + (f", concurrency {self.concurrency}" if self.concurrency else "")

    @property
    def condition(self) -> str:
        """The bound as it is written: ``>= 95 % of current``."""
        return f"{'>=' if self.at_least else '<='} {_required_evidence_plain(self.limit)}" + (
            " % of current" if self.of_current else ""
        )

    def __str__(self) -> str:
        return f"{self.figure} {self.condition}"


@dataclass(frozen=True)
class RequiredEvidence:
    """The evidence that has to be recorded of an image before it serves a model: its proof passed, these probes passed,
    these figures within their bounds."""

    prove: bool = False
    probes: tuple[str, ...] = ()
    figures: tuple[RequiredFigure, ...] = ()

    def __bool__(self) -> bool:
        return self != NOTHING_REQUIRED

    def joined(self, other: RequiredEvidence) -> RequiredEvidence:
        """All that either of the two requires."""
        return RequiredEvidence(
            self.prove or other.prove,
            tuple(dict.fromkeys((*self.probes, *other.probes))),
            tuple(dict.fromkeys((*self.figures, *other.figures))),
        )


NOTHING_REQUIRED = RequiredEvidence()


def parsed(data: dict[str, Any] | None) -> RequiredEvidence:
    """Reads a mapping that has no `problems`."""
    data = data or {}
    probes = data.get("probe") or ()
    figures = (_figure(str(figure), str(condition)) for figure, condition in (data.get("bench") or {}).items())
    return RequiredEvidence(
        prove=data.get("prove") == "pass",
        probes=(probes,) if isinstance(probes, str) else tuple(dict.fromkeys(probes)),
        figures=tuple(figure for figure in figures if isinstance(figure, RequiredFigure)),
    )


def problems(data: object, path: yaml_file.YamlPath, text: str, file: str) -> Iterator[Problem]:
    """The problems that the schema does not tell, in the mapping at ``path`` of ``file``: figures that no run has, and
    conditions of no known form."""
    bench = data.get("bench") if isinstance(data, dict) else None
    if not isinstance(bench, dict):
        return
    from builder.base.yaml_file import location_of, locations

    places = locations(text, file)
    for figure, condition in bench.items():
        if isinstance(condition, str) and isinstance(complaint := _figure(str(figure), condition), str):
            yield Problem(location_of((*path, "bench", figure), places, file), complaint)


def _figure(figure: str, condition: str) -> RequiredFigure | str:
    """The required figure, or why it is none."""
    name = _FIGURE.fullmatch(figure)
    if name is None:
        return f"`{figure}` names no figure: `tg`, `tg at 32768` or `tg at 32768, concurrency 4`"
    if name[1] not in FIGURES:
        nearest = did_you_mean(name[1], FIGURES, code=True) or f"known here: {', '.join(FIGURES)}"
        return f"no bench measures `{name[1]}`; {nearest}"
    bound = _CONDITION.fullmatch(condition.strip())
    if bound is None:
        return f"`{condition}` is no condition: `>= 40`, `<= 2000` or `>= 95 % of current`"
    depth, concurrency = (None if part is None else int(part) for part in (name[2], name[3]))
    return RequiredFigure(name[1], depth, concurrency, bound[1] == ">=", float(bound[2]), bound[3] is not None)


def _required_evidence_plain(limit: float) -> str:
    """A number without an exponent, and without zeros that say nothing."""
    return f"{limit:.6f}".rstrip("0").rstrip(".")


# ``builder.yaml``: a project's registry, its nodes, and the buildx instance that builds its images; optional.

FILE = "builder.yaml"
_UNITS = {"m": 1 << 20, "g": 1 << 30}
DEFAULT_RESERVE = 8 << 30
DEFAULT_RELEASE_AGE = 7
DEFAULT_NODE_TIMEOUT = 10


@dataclass(frozen=True)
class Node:
    """A machine that receives images. ``engine`` is an address (ssh://, tcp://, unix://) or the name of a docker
    context; ``models`` is the folder of its Hugging Face cache and ``address`` where other nodes reach it, if given.

    ``interface`` is the Ethernet name of the link to other nodes, ``rdma`` the RoCE devices on it: None where nothing
    is configured, empty where there are none. ``env`` is for containers that serve together with other nodes."""

    name: str
    engine: str
    models: str | None = None
    address: str | None = None
    interface: str | None = None
    rdma: tuple[str, ...] | None = None
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Configuration:
    """The settings in builder.yaml. ``registry`` is HOST[:PORT][/PATH]; ``builder`` names a buildx instance; with
    ``cache`` the registry keeps the build cache, too. ``container`` has the
    options of every container that serves; ``reserve`` are the bytes of memory that servers leave to their machine;
    ``node_timeout`` are the seconds in which a node has to answer what a command asks of it;
    ``release_age`` are the days that a release must be out before it is taken as such; ``commit_wheels`` is the index
    of one commit's wheels of vLLM, with ``COMMIT`` in its place, if given. ``bench`` are the profiles of `builder
    bench`, those built in among them; ``requires`` is the evidence that each model requires of an image, and under an
    empty name what all of them do; ``mod_sources`` are addresses of mods by name, as
    `builder mods add` takes them."""

    registry: str | None = None
    builder: str | None = None
    cache: bool = False
    nodes: tuple[Node, ...] = ()
    container: RequestedOptions = NOTHING_REQUESTED
    reserve: int = DEFAULT_RESERVE
    node_timeout: int = DEFAULT_NODE_TIMEOUT
    release_age: int = DEFAULT_RELEASE_AGE
    commit_wheels: str | None = None
    bench: tuple[BenchProfile, ...] = BUILT_IN
    requires: Mapping[str, RequiredEvidence] = field(default_factory=dict)
    mod_sources: Mapping[str, str] = field(default_factory=dict)

    def profile(self, name: str) -> BenchProfile:
        """The bench profile called ``name``. Raises UsageError where there is none."""
        profile = next((profile for profile in self.bench if profile.name == name), None)
        if profile is None:
            names = ", ".join(profile.name for profile in self.bench)
            raise UsageError(
                f"no profile is called `{name}`", hint=f"profiles: {names}; own ones are under `bench:` in {FILE}"
            )
        return profile

    def required_of(self, model: str | None) -> RequiredEvidence:
        """The evidence that a model requires of an image, with what all of them do."""
        of_all = self.requires.get("", NOTHING_REQUIRED)
        return of_all.joined(self.requires.get(model, NOTHING_REQUIRED)) if model else of_all

    def node(self, name: str) -> Node:
        """The node called ``name``. Raises UsageError where there is none."""
        node = next((node for node in self.nodes if node.name == name), None)
        if node is None:
            names = ", ".join(node.name for node in self.nodes)
            raise UsageError(f"{FILE} has no node `{name}`", hint=f"its nodes: {names or 'none'}")
        return node

    def required_registry(self) -> str:
        """The registry. Raises UsageError where none is set."""
        if self.registry is None:
            raise UsageError("no registry is set", hint=f"write `registry: HOST:PORT/PATH` into {FILE}")
        return self.registry


def load_configuration(project: Project) -> Configuration:
    """The project's configuration, empty where it has no builder.yaml. Raises FileProblemsError for a bad one."""
    path = project.root / FILE
    if not path.exists():
        return Configuration()
    text = read_text(path, FILE, project.root)
    data = document(text)
    return Configuration(
        registry=data.get("registry"),
        builder=data.get("builder"),
        cache=data.get("cache", False),
        nodes=tuple(
            Node(name, settings) if isinstance(settings, str) else _node(name, settings)
            for name, settings in data.get("nodes", {}).items()
        ),
        container=_container(data),
        reserve=_bytes(data["reserve"]) if "reserve" in data else DEFAULT_RESERVE,
        node_timeout=data.get("node_timeout", DEFAULT_NODE_TIMEOUT),
        release_age=data.get("release_age", DEFAULT_RELEASE_AGE),
        commit_wheels=data.get("commit_wheels"),
        bench=of_project(data.get("bench")),
        requires=_requires(data["requires"], text) if data.get("requires") else {},
        mod_sources=data.get("mod_sources") or {},
    )


def document(text: str) -> dict[str, Any]:
    """The keys of builder.yaml with this text; none where it has nothing but comments. Raises FileProblemsError."""
    is_bare = all(not line.strip() or line.lstrip().startswith("#") for line in text.splitlines())
    data = {} if is_bare else checked(text, FILE, "builder")
    nodes = data.get("nodes", {}).items()
    engines = {name: each if isinstance(each, str) else str(each["engine"]) for name, each in nodes}
    if wrong := tuple(_unfit_addresses(engines, text)):
        raise FileProblemsError(wrong)
    return data


def _unfit_addresses(engines: Mapping[str, str], text: str) -> Iterator[Problem]:
    """Ports and addresses of IPv6 that a pattern cannot tell."""
    from urllib.parse import urlsplit

    for name, engine in engines.items():
        try:
            _ = urlsplit(engine).port
        except ValueError as error:
            location = yaml_file.location_of(("nodes", name), yaml_file.locations(text, FILE), FILE)
            yield Problem(location, f"`{engine}` is not an address: {error}")


def _requires(data: dict[str, Any], text: str) -> dict[str, RequiredEvidence]:
    """The requirements of each model; those that stand beside the models are for all. Raises FileProblemsError."""
    of_all = {key: value for key, value in data.items() if key in KEYS}
    of_models = {key: value or {} for key, value in data.items() if key not in KEYS}
    places: dict[tuple[str, ...], dict[str, Any]] = {("requires",): of_all}
    places |= {("requires", model): value for model, value in of_models.items()}
    wrong = [problem for path, value in places.items() for problem in problems(value, path, text, FILE)]
    if wrong:
        raise FileProblemsError(tuple(wrong))
    required = {"": of_all, **of_models}
    return {model: parsed(value) for model, value in required.items()}


def _container(data: dict[str, Any]) -> RequestedOptions:
    env = (data.get("env") or {}).items()
    return RequestedOptions(
        volumes=tuple(data.get("volumes") or ()),
        env=tuple(name if value is None else f"{name}={env_text(value)}" for name, value in env),
        publish=tuple(map(str, data.get("publish") or ())),
        earlyoom=data.get("earlyoom"),
        memory=data.get("memory", ""),
    )


def _bytes(size: str | int) -> int:
    """The bytes of ``8g`` or ``500m``, or of 0."""
    return int(size[:-1]) * _UNITS[size[-1]] if isinstance(size, str) and size[-1] in _UNITS else int(size)


def _node(name: str, settings: dict[str, Any]) -> Node:
    rdma = settings.get("rdma")
    env = {variable: env_text(value) for variable, value in (settings.get("env") or {}).items()}
    return Node(name, **{**settings, "rdma": None if rdma is None else tuple(rdma), "env": env})


def address_of(node: Node) -> str:
    """The address at which the other nodes reach this one. Raises UsageError if it is not known."""
    from urllib.parse import urlsplit

    address = node.address or (urlsplit(node.engine).hostname if "://" in node.engine else None)
    if not address:
        raise UsageError(
            f"where the other nodes reach {node.name} is not known",
            hint=f"write it into {FILE}: `{node.name}: {{engine: {node.engine}, address: 10.0.0.1}}`",
        )
    return address


# The text of ``builder.yaml`` with other settings in it: whatever else is there stays as it was written.

_NODES = "nodes"
_ENV = "env"
_STEP = 2


@dataclass(frozen=True)
class _TextEdit:
    """A replacement of the text from ``start`` to ``end``."""

    start: int
    end: int
    text: str


def with_node_settings(text: str, settings: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns ``text`` with these settings of these nodes set or added. Comments stay, but in a file that is laid out
    so unusually that it has to be written anew."""
    expected = _merged(yaml.safe_load(text) or {}, settings)
    edited = _edited(text, settings)
    return edited if _reads_as(edited, expected) else _dumped(expected)


def with_environment(text: str, variables: Mapping[str, str | None]) -> str:
    """Returns ``text`` with these variables set or added under ``env``, where comments stay as well."""
    data = yaml.safe_load(text) or {}
    expected = {**data, _ENV: {**(data.get(_ENV) or {}), **variables}}
    root = yaml.compose(text)
    edited = text
    if root is None or (isinstance(root, yaml.MappingNode) and not root.flow_style):
        key, _ = _entry(root, _ENV) if root is not None else (None, None)
        if root is None or key is None:
            edited = _ended(text) + _block({_ENV: dict(variables)}, 0)
        elif data.get(_ENV):
            edited = _apply(text, _node_edits(text, root, _ENV, variables))
    return edited if _reads_as(edited, expected) else _dumped(expected)


def _reads_as(text: str, expected: Mapping[str, Any]) -> bool:
    try:
        return bool(yaml.safe_load(text) == expected)
    except yaml.YAMLError:
        return False


def _merged(data: Mapping[str, Any], settings: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    nodes = dict(data.get(_NODES) or {})
    for name, values in settings.items():
        before = nodes.get(name, {})
        nodes[name] = {**({"engine": before} if isinstance(before, str) else before), **values}
    return {**data, _NODES: nodes}


def _edited(text: str, settings: Mapping[str, Mapping[str, Any]]) -> str:
    root = yaml.compose(text)
    if root is None:
        return _ended(text) + _block({_NODES: _merged({}, settings)[_NODES]}, 0)
    if not isinstance(root, yaml.MappingNode) or root.flow_style:
        return text
    key, nodes = _entry(root, _NODES)
    if key is None:
        return _ended(text) + _block({_NODES: _merged({}, settings)[_NODES]}, 0)
    if not isinstance(nodes, yaml.MappingNode) or nodes.flow_style:
        written = yaml.safe_load(text) or {}
        everything = _merged(written, settings)[_NODES]
        return _apply(text, [_replaced_by_block(text, key, nodes, everything)])
    edits = [edit for name, values in settings.items() for edit in _node_edits(text, nodes, name, values)]
    new = {name: dict(values) for name, values in settings.items() if _entry(nodes, name)[0] is None}
    if new:
        indent = nodes.value[0][0].start_mark.column
        end = _line_end(text, _leaf_end(nodes))
        edits.append(_TextEdit(end, end, "\n" + _block(new, indent).rstrip("\n")))
    return _apply(text, edits)


def _node_edits(text: str, nodes: yaml.MappingNode, name: str, values: Mapping[str, Any]) -> list[_TextEdit]:
    key, node = _entry(nodes, name)
    if key is None or node is None:
        return []
    if not isinstance(node, yaml.MappingNode) or node.flow_style:
        before = yaml.safe_load(text[node.start_mark.index : node.end_mark.index])
        merged = _merged({_NODES: {name: before}}, {name: values})[_NODES][name]
        return [_replaced_by_block(text, key, node, merged)]
    edits = []
    new: dict[str, Any] = {}
    for setting, value in values.items():
        old_key, old = _entry(node, setting)
        if old_key is None or old is None:
            new[setting] = value
        elif _plain(old) != value:
            edits.append(_replacement(text, old_key, old, value))
    if new:
        # After the first entry that stands on one line: those of several lines have no certain end.
        anchor = next(value for _, value in node.value if isinstance(value, yaml.ScalarNode))
        end = _line_end(text, anchor.end_mark.index)
        edits.append(_TextEdit(end, end, "\n" + _block(new, node.value[0][0].start_mark.column).rstrip("\n")))
    return edits


def _replacement(text: str, key: yaml.Node, old: yaml.Node, value: Any) -> _TextEdit:
    start = text.index(":", key.end_mark.index) + 1
    if isinstance(value, dict):
        indent = key.start_mark.column + _STEP
        return _TextEdit(start, _leaf_end(old), "\n" + _block(value, indent).rstrip("\n"))
    return _TextEdit(start, _leaf_end(old), f" {_inline(value)}")


def _replaced_by_block(text: str, key: yaml.Node, old: yaml.Node | None, value: Mapping[str, Any]) -> _TextEdit:
    """Puts a block below ``key`` in place of what stands on its line; a comment at the end of the line stays there."""
    start = text.index(":", key.end_mark.index) + 1
    end = _leaf_end(old) if old is not None else start
    comment = text[end : _line_end(text, end)].rstrip()
    block = _block(value, key.start_mark.column + _STEP).rstrip("\n")
    return _TextEdit(start, _line_end(text, end), f"{comment}\n{block}")


def _entry(mapping: yaml.MappingNode, name: str) -> tuple[yaml.Node | None, yaml.Node | None]:
    return next(((key, value) for key, value in mapping.value if key.value == name), (None, None))


def _leaf_end(node: yaml.Node) -> int:
    """The end of the last scalar in a value: the end of a block counts the comments after it, too."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _leaf_end(last[1] if isinstance(last, tuple) else last)
    end: int = node.end_mark.index
    return end


def _plain(node: yaml.Node) -> Any:
    return yaml.safe_load(yaml.serialize(node))


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _ended(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"


def _apply(text: str, edits: list[_TextEdit]) -> str:
    for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return _ended(text)


def _block(values: Mapping[str, Any], indent: int) -> str:
    lines = []
    for key, value in values.items():
        start = f"{' ' * indent}{_inline(key)}:"
        if isinstance(value, dict) and value:
            lines.append(f"{start}\n{_block(value, indent + _STEP)}".rstrip("\n"))
        else:
            lines.append(f"{start} {_inline(value)}")
    return "\n".join([*lines, ""])


def _inline(value: Any) -> str:
    return (
        yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True).removesuffix("...\n").strip()
    )


def _dumped(data: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True, width=10_000)


# Probes of a project: ``probes/NAME/probe.yaml``, a command that checks a served model.

FOLDER = "probes"
PROBE_FILE = "probe.yaml"
DEFAULT_SECONDS = 600
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LARGEST = 64 << 20


@dataclass(frozen=True)
class ProbedFigure:
    """A figure that a probe prints: its unit, and which is better."""

    unit: str
    better: Literal["higher", "lower", ""]


@dataclass(frozen=True)
class OwnProbe:
    """A probe as read. ``folder`` is where its command runs, for so many ``seconds`` at most; ``digest`` is that of all
    files in it."""

    name: str
    folder: Path
    command: tuple[str, ...]
    seconds: int
    figures: Mapping[str, ProbedFigure]
    digest: str


def probe_names(project: Project) -> tuple[str, ...]:
    """The names of the project's probes, sorted."""
    paths = sorted((project.root / FOLDER).glob(f"*/{PROBE_FILE}"))
    return tuple(path.parent.name for path in paths if NAME.fullmatch(path.parent.name))


def load_probe(project: Project, name: str) -> OwnProbe:
    """Reads the probe called ``name``. Raises UsageError where there is none, FileProblemsError for a bad one."""
    if name not in probe_names(project):
        suggestion = did_you_mean(name, probe_names(project), code=True)
        raise UsageError(
            f"no probe is called `{name}`" + (f"; {suggestion}" if suggestion else ""),
            hint=f"`{FOLDER}/{name}/{PROBE_FILE}` makes one; `builder schema probe` tells what it holds",
        )
    folder = below_project(project.root, project.root / FOLDER / name)
    file = f"{FOLDER}/{name}/{PROBE_FILE}"
    data = read_checked(folder / PROBE_FILE, file, "probe", project.root)
    figures = {
        figure: ProbedFigure(settings["unit"], "" if settings["better"] == "neither" else settings["better"])
        for figure, settings in (data.get("figures") or {}).items()
    }
    return OwnProbe(
        name=name,
        folder=folder,
        command=tuple(data["command"]),
        seconds=data.get("seconds", DEFAULT_SECONDS),
        figures=figures,
        digest=_digest(folder, file),
    )


def _digest(folder: Path, file: str) -> str:
    """The digest over the names and contents of the files in a probe's folder. What Python caches there is left out."""
    import hashlib

    whole = hashlib.sha256()
    paths = [path for path in sorted(folder.rglob("*")) if "__pycache__" not in path.parts and not path.is_dir()]
    for path in paths:
        try:
            content = files.read_plain_file(path.resolve(), _LARGEST)
        except OSError as error:
            message = f"{path.relative_to(folder)} cannot be read: {error.strerror or error}"
            raise FileProblemsError((Problem(Location(file), message),)) from None
        whole.update(f"{path.relative_to(folder)}\0{hashlib.sha256(content).hexdigest()}\n".encode(errors="replace"))
    return f"sha256:{whole.hexdigest()}"
