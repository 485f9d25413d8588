"""Secrets stand nowhere: in no argument that others may list, no output, log or report, no file of the project, no
image, and not in BuildKit's record of a build."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import secrets
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.base.project import Project
from builder.engine.client import Endpoint
from tests import projects, registries
from tests.conftest import command

if TYPE_CHECKING:
    from collections.abc import Iterator


pytestmark = pytest.mark.engine

NAMES = (
    *("proxy", "small_proxy", "index", "extra_index", "git", "hub_token", "option", "recipe", "netrc", "git_token"),
    "webhook",
)
LOGIN = base64.b64encode(b"tester:secret").decode()  # the twelfth, of the registry's only user
SAYS_ALL = """
RUN --mount=type=secret,id=PIP_INDEX_URL,env=PIP_INDEX_URL <<'EOF'
printf '%s' "$HTTPS_PROXY $https_proxy $HTTP_PROXY" | sha256sum
echo "$HTTPS_PROXY $HTTP_PROXY $PIP_INDEX_URL"
{end}
EOF
"""
PINS = """\
repository: {repository}-pins
description: nothing of it can be resolved
platform: host
base: debian:bookworm-slim
sources: {{vllm: {{git: "http://ann:{git}@127.0.0.1:9/vllm.git", ref: main}}}}
python: {{version: "3.12", packages: [six]}}
"""


class Planted:
    """The secrets, each with a value that nothing else has, and the places in which one was met."""

    def __init__(self) -> None:
        self.values = {name: f"pw{secrets.token_hex(8)}" for name in NAMES}
        self.spellings = [value.encode() for value in (*self.values.values(), LOGIN)]
        self.met: set[str] = set()

    def search(self, content: bytes | str, place: str) -> None:
        data = content if isinstance(content, bytes) else content.encode()
        names = [name for name, value in zip((*NAMES, "login"), self.spellings, strict=True) if value in data]
        self.met |= {f"{name} in {place}" for name in names}

    def search_files(self, folder: Path, *but: Path) -> None:
        for path in folder.rglob("*"):
            if path.is_file() and not path.is_symlink() and path not in but:
                self.search(path.read_bytes(), str(path.relative_to(folder)))

    @contextmanager
    def watching_arguments(self, process: subprocess.Popen[str], argv: list[str]) -> Iterator[None]:
        """Reads the arguments of all processes meanwhile, except those that the user typed. A child also has these
        until its own program begins."""
        ended, typed = threading.Event(), "\0".join([*argv, ""]).encode()

        def watch() -> None:
            while not ended.is_set():
                for entry in Path("/proc").iterdir():
                    if entry.name.isdecimal() and int(entry.name) != process.pid:
                        try:
                            arguments = (entry / "cmdline").read_bytes()
                        except OSError:
                            continue
                        if arguments != typed:
                            self.search(arguments, f"arguments of {arguments[:40]!r}")
                time.sleep(0.005)

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def run(self, argv: list[str], environ: dict[str, str], code: int) -> str:
        """Runs a command of ours, and looks at all that it prints."""
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environ)
        with self.watching_arguments(process, argv):
            output, _ = process.communicate(timeout=240)
        assert process.returncode == code, output
        self.search(output, f"output of {argv[-2:]}")
        return output


def environment(planted: Planted, folder: Path, registry: str) -> dict[str, str]:
    values = planted.values
    projects.write(folder / "docker/config.json", json.dumps({"auths": {registry: {"auth": LOGIN}}}))
    projects.write(folder / "netrc", f"machine 127.0.0.1 login ann password {values['netrc']}\n")
    (folder / "tmp").mkdir()
    return {
        **os.environ,
        "HTTPS_PROXY": f"http://ann:{values['proxy']}@127.0.0.1:9",
        "http_proxy": f"http://bob:{values['small_proxy']}@127.0.0.1:9",
        "NO_PROXY": "127.0.0.1,localhost",
        "PIP_INDEX_URL": f"http://ann:{values['index']}@127.0.0.1:9/simple",
        "PIP_EXTRA_INDEX_URL": f"http://ann:{values['extra_index']}@127.0.0.1:9/more",
        "HF_TOKEN": values["hub_token"],
        "GIT_AUTH_TOKEN": values["git_token"],
        "DEPLOY_SECRET": values["webhook"],
        "NETRC": str(folder / "netrc"),
        "DOCKER_CONFIG": str(folder / "docker"),
        "TMPDIR": str(folder / "tmp"),
    }


def add_inputs(small: Project, repository: str, planted: Planted) -> tuple[Path, Path]:
    """What a user wrote with a secret in it: a definition of which nothing can be resolved, and a recipe."""
    definition, recipe = small.root / "dockerfiles/pins/image.yaml", small.recipes / "chat.yaml"
    projects.write(definition, PINS.format(repository=repository, **planted.values))
    projects.write(definition.with_name("Dockerfile.j2"), "FROM {{ base }}\n")
    text = recipe.read_text(encoding="utf-8")
    projects.write(recipe, f"{text}env: {{SERVICE_TOKEN: {planted.values['recipe']}}}\n")
    return definition, recipe


def set_step(small: Project, end: str) -> None:
    """A step that prints what it was given."""
    step = SAYS_ALL.format(end=end)
    text = projects.DOCKERFILE.replace("{{ parts_metadata", f"{step}{{{{ parts_metadata")
    projects.write(small.root / "dockerfiles/small/Dockerfile.j2", text)


def broken() -> str:
    """A program that ends with a bug, in the midst of its secrets."""
    return (
        "import os, builder.cli.main as main, builder.base.project as project\n"
        "def broken(start): raise LookupError(os.environ['HTTPS_PROXY'], os.environ['HF_TOKEN'])\n"
        "project.find_project = broken\nmain.run_program(['list'])"
    )


@pytest.mark.long
def test_none_is_met_anywhere(
    small: Project, repository: str, tmp_path_factory: pytest.TempPathFactory, endpoint: Endpoint
) -> None:
    planted, folder = Planted(), tmp_path_factory.mktemp("user")
    written = add_inputs(small, repository, planted)
    with registries.registry(folder / "registry", users=registries.HTPASSWD) as registry:
        environ = environment(planted, folder, registry.address)
        projects.write(small.root / "builder.yaml", f"registry: {registry.address}\n")
        set_step(small, "exit 7")
        refused = planted.run(command(small, "build", "chat"), environ, 6)
        set_step(small, "true")
        planted.run(command(small, "build", "chat"), environ, 0)
        planted.run(command(small, "push", f"{repository}:1"), environ, 0)
        planted.search_files(folder / "registry")
    planted.run(command(small, "run", "chat", "--env", f"WEB_TOKEN={planted.values['option']}"), environ, 1)
    planted.run(command(small, "lock", "pins"), environ, 6)
    planted.run([sys.executable, "-c", broken()], environ, 3)

    # The steps had the proxies, under both names.
    given = f"{environ['HTTPS_PROXY']} {environ['HTTPS_PROXY']} {environ['http_proxy']}"
    log = "".join(path.read_text(encoding="utf-8") for path in (small.state / "logs").glob("*.log"))
    assert hashlib.sha256(given.encode()).hexdigest() in log
    shown = "http://***@127.0.0.1:9 http://***@127.0.0.1:9 http://***@127.0.0.1:9/simple"
    assert shown in log
    assert shown in refused

    planted.search_files(small.root, *written)
    planted.search_files(folder / "tmp")
    search_image(planted, endpoint, f"{repository}:1")
    search_records(planted, endpoint, folder / "docker")
    assert planted.met == set()


def search_image(planted: Planted, endpoint: Endpoint, image: str) -> None:
    docker = ["docker", "-H", endpoint.host]
    for arguments in (["image", "inspect", image], ["history", "--no-trunc", image]):
        done = subprocess.run([*docker, *arguments], check=True, capture_output=True)
        planted.search(done.stdout, f"docker {arguments[0]}")
    created = subprocess.run([*docker, "create", image, "true"], check=True, capture_output=True, text=True)
    container = created.stdout.strip()
    try:
        files = subprocess.run([*docker, "export", container], check=True, capture_output=True).stdout
        planted.search(files, "the image's files")
    finally:
        subprocess.run([*docker, "rm", container], check=True, capture_output=True)


def search_records(planted: Planted, endpoint: Endpoint, configuration: Path) -> None:
    """BuildKit's records of these builds, except what a failed step has printed, which BuildKit keeps as it was. Their
    names are in buildx's own folder: `buildx history ls` can end an engine (moby/buildkit#6598)."""
    environ = {**os.environ, "DOCKER_HOST": endpoint.host}
    buildx = [*endpoint.buildx, "history"]
    references = [path.name for path in (configuration / "buildx/refs/default").glob("*/*")]
    assert references
    for reference in references:
        argv = [*buildx, "inspect", "--format", "json", reference]
        record = json.loads(subprocess.run(argv, check=True, capture_output=True, text=True, env=environ).stdout)
        record.pop("Error", None)
        planted.search(json.dumps(record), "BuildKit's record of a build")
