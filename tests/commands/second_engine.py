"""A second engine beside the first: another machine, as far as the program can tell."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests import registries
from tests.conftest import SCRIPTS

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def running(folder: Path, bridge: str, address: str) -> Iterator[dict[str, str]]:
    """The environment that leads to it; it is gone, with all that it holds, in the end."""
    environ = {
        **os.environ,
        "BUILDER_ENGINE_HOME": str(folder / "home"),
        "BUILDER_ENGINE_RUN": str(folder / "run"),
        "BUILDER_ENGINE_BRIDGE": bridge,
        "BUILDER_ENGINE_ADDRESS": address,
        "BUILDER_ENGINE_PRIVATE": "1",
    }
    environ.pop("DOCKER_HOST", None)
    registries.take_programs(folder / "home")
    try:
        engine(environ, "up")
        yield {**environ, "DOCKER_HOST": f"unix://{folder}/run/docker.sock"}
    finally:
        engine(environ, "down", "--purge")


def engine(environ: dict[str, str], *arguments: str) -> None:
    done = subprocess.run([SCRIPTS / "engine", *arguments], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def load(host: str, environ: dict[str, str], *names: str) -> None:
    """Brings images of the engine at ``host`` to the second one."""
    docker = str(Path(environ["BUILDER_ENGINE_HOME"]) / "bin/docker")
    saved = subprocess.run([docker, "-H", host, "save", *names], check=True, capture_output=True).stdout
    subprocess.run([docker, "-H", environ["DOCKER_HOST"], "load"], input=saved, check=True, capture_output=True)
