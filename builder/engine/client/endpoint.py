"""The Docker engine to use, from the environment and docker's configuration, and buildx's variables for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_HOST = "unix:///var/run/docker.sock"
_PLUGIN = ("docker", "buildx")
OWN_BUILDER = "default"


@dataclass(frozen=True)
class Endpoint:
    """The address of an engine, and the buildx that builds in it.

    ``host`` is an address as DOCKER_HOST takes it (unix://, tcp://, ssh://); ``buildx`` is the argument vector that
    starts buildx; ``origin`` names the source of the address, for messages. ``tls`` is the folder of ca.pem, cert.pem
    and key.pem, empty for a connection without TLS. ``instance`` is the buildx instance that builds: the engine's own,
    or another, which may be another machine's.
    """

    host: str
    buildx: tuple[str, ...]
    origin: str
    tls: str = ""
    tls_verify: bool = True
    instance: str = OWN_BUILDER

    @property
    def builds_elsewhere(self) -> bool:
        """True if another BuildKit than the engine's own builds: one that does not see the engine's images."""
        return self.instance != OWN_BUILDER


def find(environ: Mapping[str, str]) -> Endpoint:
    """Returns the engine that the environment variables and docker's configuration select, without connecting to it.

    The order is the docker command's own (DOCKER_HOST, DOCKER_CONTEXT, the current context, the default socket), with
    the private engine of ``scripts/engine`` before the current context: that script starts one only if no engine with
    buildx answered. Raises EngineError for a context that does not exist.
    """
    private = "unix://" + str(_private_socket(environ))
    if host := environ.get("DOCKER_HOST"):
        if host == private:
            return _private(environ, "DOCKER_HOST")
        tls = _tls_folder(environ)
        return Endpoint(host, _PLUGIN, "DOCKER_HOST", tls, bool(environ.get("DOCKER_TLS_VERIFY")))
    if context := environ.get("DOCKER_CONTEXT"):
        return _context(environ, context, "DOCKER_CONTEXT")
    if _private_socket(environ).is_socket():
        return _private(environ, "the private engine of scripts/engine")
    config = _config_folder(environ) / "config.json"
    current = _json(config).get("currentContext")
    if isinstance(current, str) and current:
        return _context(environ, current, f"currentContext in {config}")
    return Endpoint(DEFAULT_HOST, _PLUGIN, "Docker's default")


def of_node(environ: Mapping[str, str], name: str, engine: str) -> Endpoint:
    """Returns the engine of the node ``name``: ``engine`` is an address (unix://, tcp://, ssh://) or a docker context.

    Only a context has certificates. Raises EngineError for a context that does not exist.
    """
    origin = f"node {name}"
    if "://" in engine:
        return Endpoint(engine, _PLUGIN, origin)
    return _context(environ, engine, origin)


def environment(endpoint: Endpoint) -> dict[str, str]:
    """Returns the variables that make a buildx process build in this engine, or in the endpoint's ``instance``.

    The user may have made another builder (a container, a cluster) the current one: images built there are not in the
    engine, and local base images are not seen. With DOCKER_HOST set, the builder ``default`` is the engine's own.
    """
    variables = {"DOCKER_HOST": endpoint.host, "BUILDX_BUILDER": endpoint.instance}
    if endpoint.tls:
        variables |= {"DOCKER_CERT_PATH": endpoint.tls, "DOCKER_TLS": "1"}
        if endpoint.tls_verify:
            variables["DOCKER_TLS_VERIFY"] = "1"
    return variables


def _private_socket(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("BUILDER_ENGINE_RUN") or "/run/builder-engine") / "docker.sock"


def _private(environ: Mapping[str, str], origin: str) -> Endpoint:
    home = Path(environ.get("BUILDER_ENGINE_HOME") or "/var/lib/builder-engine")
    return Endpoint(f"unix://{_private_socket(environ)}", (str(home / "bin" / "docker-buildx"),), origin)


def _config_folder(environ: Mapping[str, str]) -> Path:
    if folder := environ.get("DOCKER_CONFIG"):
        return Path(folder)
    home = environ.get("HOME")
    return (Path(home) if home else Path.home()) / ".docker"


def _tls_folder(environ: Mapping[str, str]) -> str:
    if not (environ.get("DOCKER_TLS_VERIFY") or environ.get("DOCKER_TLS")):
        return ""
    return environ.get("DOCKER_CERT_PATH") or str(_config_folder(environ))


def _context(environ: Mapping[str, str], name: str, origin: str) -> Endpoint:
    """Returns the endpoint of a docker context, from the files that `docker context create` writes."""
    if name == "default":
        return Endpoint(DEFAULT_HOST, _PLUGIN, origin)
    from hashlib import sha256

    contexts = _config_folder(environ) / "contexts"
    folder = sha256(name.encode()).hexdigest()
    meta = contexts / "meta" / folder / "meta.json"
    docker: Any = _json(meta).get("Endpoints")
    docker = docker.get("docker") if isinstance(docker, dict) else None
    if not (isinstance(docker, dict) and isinstance(docker.get("Host"), str)):
        raise EngineError(
            f"the docker context `{name}` (from {origin}) does not exist or names no engine",
            hint="`docker context ls` shows those there are, `docker context use default` goes back to the local one",
        )
    tls = contexts / "tls" / folder / "docker"
    verify = not docker.get("SkipTLSVerify", False)
    return Endpoint(docker["Host"], _PLUGIN, f"context {name}, from {origin}", str(tls) if tls.is_dir() else "", verify)


def _json(path: Path) -> dict[str, Any]:
    """Returns the object in a file, empty without one. Raises EngineError where it is not JSON."""
    import json

    try:
        value = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise EngineError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise EngineError(f"{path}: not JSON: {error}", hint="docker itself cannot read this file; repair it") from None
    return value if isinstance(value, dict) else {}
