"""``builder.yaml``: a project's registry, its nodes, and the buildx instance that builds its images; optional."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from builder.definitions import bench_profile
from builder.definitions.reading import env_text, read_checked
from builder.definitions.requested_options import NOTHING_REQUESTED, RequestedOptions
from builder.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.definitions.bench_profile import BenchProfile
    from builder.project import Project

FILE = "builder.yaml"
_UNITS = {"m": 1 << 20, "g": 1 << 30}
DEFAULT_RESERVE = 8 << 30
DEFAULT_RELEASE_AGE = 7


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
    ``cache`` the registry keeps the build cache, too; ``scanner`` is the image that makes SBOMs. ``container`` has the
    options of every container that serves; ``reserve`` are the bytes of memory that servers leave to their machine;
    ``release_age`` are the days that a release must be out before it is taken as such. ``bench`` are the profiles of
    `builder bench`, those built in among them."""

    registry: str | None = None
    builder: str | None = None
    cache: bool = False
    scanner: str | None = None
    nodes: tuple[Node, ...] = ()
    container: RequestedOptions = NOTHING_REQUESTED
    reserve: int = DEFAULT_RESERVE
    release_age: int = DEFAULT_RELEASE_AGE
    bench: tuple[BenchProfile, ...] = bench_profile.BUILT_IN

    def profile(self, name: str) -> BenchProfile:
        """The bench profile called ``name``. Raises UsageError where there is none."""
        profile = next((profile for profile in self.bench if profile.name == name), None)
        if profile is None:
            names = ", ".join(profile.name for profile in self.bench)
            raise UsageError(
                f"no profile is called `{name}`", hint=f"profiles: {names}; own ones are under `bench:` in {FILE}"
            )
        return profile

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
    data = read_checked(path, FILE, "builder", project.root)
    return Configuration(
        registry=data.get("registry"),
        builder=data.get("builder"),
        cache=data.get("cache", False),
        scanner=data.get("scanner"),
        nodes=tuple(
            Node(name, settings) if isinstance(settings, str) else _node(name, settings)
            for name, settings in data.get("nodes", {}).items()
        ),
        container=_container(data),
        reserve=_bytes(data["reserve"]) if "reserve" in data else DEFAULT_RESERVE,
        release_age=data.get("release_age", DEFAULT_RELEASE_AGE),
        bench=bench_profile.of_project(data.get("bench")),
    )


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
