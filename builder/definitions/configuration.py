"""``builder.yaml``: a project's registry, its nodes, and the buildx instance that builds its images; optional."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from builder.definitions import bench_profile, required_evidence
from builder.definitions.reading import checked, env_text, read_text
from builder.definitions.requested_options import NOTHING_REQUESTED, RequestedOptions
from builder.definitions.required_evidence import NOTHING_REQUIRED, RequiredEvidence
from builder.errors import FileProblemsError, Problem, UsageError
from builder.yaml import yaml_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from builder.definitions.bench_profile import BenchProfile
    from builder.project import Project

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
    bench: tuple[BenchProfile, ...] = bench_profile.BUILT_IN
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


def load(project: Project) -> Configuration:
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
        bench=bench_profile.of_project(data.get("bench")),
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
    of_all = {key: value for key, value in data.items() if key in required_evidence.KEYS}
    of_models = {key: value or {} for key, value in data.items() if key not in required_evidence.KEYS}
    places: dict[tuple[str, ...], dict[str, Any]] = {("requires",): of_all}
    places |= {("requires", model): value for model, value in of_models.items()}
    wrong = [
        problem for path, value in places.items() for problem in required_evidence.problems(value, path, text, FILE)
    ]
    if wrong:
        raise FileProblemsError(tuple(wrong))
    required = {"": of_all, **of_models}
    return {model: required_evidence.parsed(value) for model, value in required.items()}


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
