"""Fixtures of all tests: the real engine, small projects in it, and the command as a user runs it."""

from __future__ import annotations

import gc
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePath

import pytest
from hypothesis import settings

from builder.base.errors import ConflictError, EngineError
from builder.base.project import Project
from builder.engine import client, containers, images, machine
from builder.engine.client import Endpoint
from builder.numbers import claims
from tests import interrupts, leftovers, ordering, program, projects, shared, workers

SCRIPTS = projects.REPOSITORY_ROOT / "scripts"
BASE = "debian:bookworm-slim"
WITHOUT_ENGINE = {"DOCKER_HOST": "unix:///nowhere/docker.sock"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-golden", action="store_true", help="write the golden files anew instead of comparing")
    parser.addoption("--shuffle", metavar="SEED", help="run the tests in an order that this word gives")


def pytest_configure(config: pytest.Config) -> None:
    interrupts.restore()
    # No time limit for examples: a busy machine may be slow.
    settings.register_profile("tests", deadline=None)
    settings.load_profile("tests")
    if not _is_worker(config):
        shared.begin()


def _is_worker(config: pytest.Config) -> bool:
    """True in a pytest-xdist worker process."""
    return hasattr(config, "workerinput")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Imports the tests without garbage collection, which took two fifths of the time: nothing is garbage yet."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    if seed := config.getoption("--shuffle"):
        items[:] = ordering.shuffled(items, workers.group, seed)
    else:
        items.sort(key=ordering.key(projects.REPOSITORY_ROOT, _changed()))
    if _is_worker(config):
        workers.publish(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> workers.Scheduling:
    return workers.Scheduling(config, log)


def _changed() -> frozenset[PurePath]:
    """The changed files that git reports. They are read once for all workers, which must agree on the order."""
    changed_paths = shared.once("changed", lambda: "\n".join(map(str, ordering.changed(projects.REPOSITORY_ROOT))))
    return frozenset(map(PurePath, changed_paths.splitlines()))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Tests that use the engine take turns with tests that need the engine alone."""
    if item.get_closest_marker("engine"):
        with shared.turn(alone=item.get_closest_marker("alone") is not None):
            return (yield)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """Removes the shared resources of the session. Leftovers of tests fail the session."""
    result = yield
    if not _is_worker(session.config) and (left := _end()):
        terminal = session.config.get_terminal_writer()
        terminal.sep("=", "left behind by the tests", red=True)
        terminal.line("\n".join(left))
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    return result


def _end() -> list[str]:
    """Ends the session, and returns the leftovers of its tests."""
    left: list[str] = []
    try:
        if shared.used_engine():
            endpoint = client.find_endpoint(os.environ)
            for repository in shared.repositories():
                remove_all(endpoint, repository)
            left += leftovers.in_engine(endpoint)
    except EngineError as error:
        left.append(f"what is in the engine cannot be told: {error}")
    finally:
        if shared.stops_engine():
            subprocess.run([SCRIPTS / "engine", "down"], check=True)
    return left + leftovers.processes()


def pytest_unconfigure(config: pytest.Config) -> None:
    if not _is_worker(config):
        shared.end()


@pytest.fixture(scope="session")
def endpoint() -> Endpoint:
    """The engine of this machine, with the base image. If none answers, one is started, and stopped after the tests."""
    shared.once("engine", _start_engine)
    return client.find_endpoint(os.environ)


def _start_engine() -> str:
    started = ""
    try:
        machine.require_supported(client.find_endpoint(os.environ))
    except EngineError:
        # If the private engine already runs although the environment names another engine, it must not be stopped.
        was_running = subprocess.run([SCRIPTS / "engine", "env"], check=True, capture_output=True).stdout
        subprocess.run([SCRIPTS / "engine", "up"], check=True)
        started = "started"
        if not was_running:
            shared.stop_engine_at_end()
    subprocess.run(["bash", "-c", 'eval "$("$0/engine" env)"; exec "$0/base-image" "$1"', SCRIPTS, BASE], check=True)
    return started


@pytest.fixture
def small(tmp_path: Path, endpoint: Endpoint) -> Iterator[Project]:
    """A small project with a unique image name. Its images are removed when the test ends."""
    repository = shared.unique_name()
    project = projects.make(tmp_path, repository)
    projects.with_own_steps(project, repository)
    yield project
    remove_all(endpoint, repository)


def remove_all(endpoint: Endpoint, repository: str) -> None:
    """Removes every image of ``repository``, including images that lost their tag. Also removes the claims of projects
    on the repository, and on repositories whose names begin with its name."""
    # The engine collects garbage after each removal, and once for removals that come together.
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(partial(_remove, endpoint), images.image_tags(endpoint, [repository])))
    forget_claims(endpoint, repository)
    # For a filter by label, the engine reads every image that it has.
    for image in images.image_listing(endpoint, {"dangling": ["true"]}):
        if (image["Labels"] or {}).get("org.opencontainers.image.title") == repository:
            client.raw(endpoint, "DELETE", f"/images/{image['Id']}")


def _remove(endpoint: Endpoint, tag: str) -> None:
    for pause in (0.2, 1.0, 3.0, 10.0, 30.0):  # a container that removes itself may still exist for a moment
        with suppress(ConflictError):
            images.remove_image(endpoint, tag)
            return
        time.sleep(pause)
    images.remove_image(endpoint, tag)


def forget_claims(endpoint: Endpoint, repository: str) -> None:
    """Removes the claims of projects on ``repository``, and on repositories whose names begin with its name. The engine
    is then like the engine of another machine, which these projects never used."""
    for volume, labels in containers.labelled_volumes(endpoint, [claims.KIND]).items():
        if labels.get(claims.REPOSITORY, "").startswith(repository):
            containers.remove_volume(endpoint, volume)


@pytest.fixture
def repository(small: Project) -> str:
    """The repository of the images of ``small``."""
    from builder.definitions import image

    return image.repository_of(small, "small")


Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def builder(small: Project) -> Command:
    """Runs ``builder`` on ``small`` as a user would. Fails the test if the exit code is not ``code``."""

    return partial(run_command, small)


def run_command(
    project: Project,
    *arguments: str,
    code: int | None = 0,
    environ: Mapping[str, str] | None = None,
    timeout: float = 800,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs ``builder`` on a project as a user would, with ``environ`` added to the environment of the tests. Fails the
    test if the exit code is not ``code``. None: any, because it depends on this machine, as the one of ``doctor``
    depends on the free disk."""
    done = program.run(command(project, *arguments), timeout=timeout, cwd=cwd, env={**os.environ, **(environ or {})})
    assert code in (None, done.returncode), f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def command(project: Project, *arguments: str) -> list[str]:
    """The argument vector of ``builder`` on a project."""
    return [*program.PYTHON, "--project", str(project.root), *arguments]
