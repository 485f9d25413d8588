"""What all tests share: the real engine, small projects in it, and the command as a person runs it."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from builder.engine import images
from builder.engine.client import api, versions
from builder.engine.client import endpoint as endpoints
from builder.engine.client.endpoint import Endpoint
from builder.errors import EngineError
from builder.project import Project
from tests import interrupts, projects

if TYPE_CHECKING:
    from pathlib import Path

SCRIPTS = projects.REPOSITORY_ROOT / "scripts"
BASE = "debian:bookworm-slim"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-golden", action="store_true", help="write the golden files anew instead of comparing")


def pytest_configure() -> None:
    interrupts.restore()


@pytest.fixture(scope="session")
def endpoint() -> Iterator[Endpoint]:
    """The engine that answers here, or one that is started for these tests and stopped after them; with the base."""
    started = False
    try:
        versions.require_supported(endpoints.find(os.environ))
    except EngineError:
        subprocess.run([SCRIPTS / "engine", "up"], check=True)
        started = True
    subprocess.run(["bash", "-c", 'eval "$("$0/engine" env)"; exec "$0/base-image" "$1"', SCRIPTS, BASE], check=True)
    yield endpoints.find(os.environ)
    if started:
        subprocess.run([SCRIPTS / "engine", "down"], check=True)


@pytest.fixture
def small(tmp_path: Path, endpoint: Endpoint) -> Iterator[Project]:
    """A small project whose images nobody else's are called like; they are gone when the test ends."""
    repository = f"builder-test-{secrets.token_hex(4)}"
    project = projects.make(tmp_path, repository)
    yield project
    remove_all(endpoint, repository)


def remove_all(endpoint: Endpoint, repository: str) -> None:
    """Removes every image of ``repository``, those too whose tag was taken from them."""
    for tag in images.tags(endpoint, [repository]):
        images.remove(endpoint, tag)
    filters = {"dangling": ["true"], "label": [f"org.opencontainers.image.title={repository}"]}
    for found in api.request(endpoint, "GET", "/images/json", query={"filters": json.dumps(filters)}):
        api.request(endpoint, "DELETE", f"/images/{found['Id']}")


@pytest.fixture
def repository(small: Project) -> str:
    """What the images of ``small`` are called."""
    from builder.definitions import image

    return image.repository_of(small, "small")


Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def builder(small: Project) -> Command:
    """Runs ``builder`` on ``small`` as a person would; fails the test where the exit code is not ``code``."""

    def run(*arguments: str, code: int = 0, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command(small, *arguments),
            capture_output=True,
            text=True,
            timeout=300,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(environ or {})},
        )
        assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run


def command(project: Project, *arguments: str) -> list[str]:
    """The argument vector of ``builder`` on a project."""
    return [sys.executable, "-m", "builder", "--project", str(project.root), *arguments]
