"""A project whose definitions take vLLM as a wheel and from git, and mods that change it; no engine is needed."""

from __future__ import annotations

import difflib
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from builder.base.events import Message
from builder.base.project import Project
from builder.lock import lock_file
from builder.lock.model import GitPin, LockedPackage, Pins, PythonPin, WheelPin
from tests import projects
from tests.sources.git_server import lines
from tests.sources.wheelhouse import Served, make_simple_index, make_wheel, serving, sha256

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


INC = "vllm/layers/inc.py"
OLD = lines(1, 60)
NEW = lines(1, 60, line10="ten", line40="forty")
# What vllm/layers/inc.py is in each release; in the last it is gone.
RELEASES = {
    "0.20.0": OLD,
    "0.21.0": "new\nnew\n" + OLD,
    "0.22.0": lines(1, 60, line37="changed"),
    "0.23.0": lines(1, 60, line40="other"),
    "0.24.0": NEW,
    "0.25.0": None,
}
WHEEL_IMAGE = """\
repository: vllm-node-wheel
description: vLLM as a wheel
platform: linux/arm64
base: debian:bookworm-slim
sources:
  vllm: {{wheel: vllm=={version}}}
python: {{version: "3.12", packages: []}}
mods: {mods}
"""
GIT_IMAGE = """\
repository: vllm-node-git
description: vLLM from git
platform: linux/arm64
base: debian:bookworm-slim
sources:
  vllm: {{git: "{url}", ref: main}}
python: {{version: "3.12", packages: []}}
"""


def diff(old: str = OLD, new: str = NEW, file: str = INC) -> str:
    """The change of one file, as git writes it."""
    return "".join(difflib.unified_diff(old.splitlines(True), new.splitlines(True), f"a/{file}", f"b/{file}"))


@dataclass
class ModProject:
    """``environ`` leads to ``server``, which has the ``wheels``; ``said`` is what was reported."""

    project: Project
    wheels: Path
    server: Served
    said: list[str] = field(default_factory=list)

    @property
    def environ(self) -> dict[str, str]:
        return {"PIP_INDEX_URL": f"{self.server.url}/simple"}

    def report(self, event: object) -> None:
        assert isinstance(event, Message)
        self.said.append(event.text)

    def add_mod(self, name: str, yaml: str = "", patch: str = "", package: str = "vllm") -> None:
        """A mod with ``a.patch``, or with what ``yaml`` says."""
        text = f"description: A mod\npatches: [{{file: a.patch, package: {package}}}]\n{yaml}"
        projects.add_mod(self.project.root, name, "", {"a.patch": patch or diff()}, text)

    def wheel(self, version: str) -> Path:
        return self.wheels / f"vllm-{version}-py3-none-any.whl"

    def withdraw(self, version: str) -> None:
        """Takes a release off the index."""
        self.wheel(version).unlink()
        make_simple_index(self.wheels)

    def define(self, name: str, version: str, mods: str = "[]") -> None:
        """A definition that takes vLLM as a wheel, pinned."""
        self._write(name, WHEEL_IMAGE.format(version=version, mods=mods))
        packages = (LockedPackage("vllm", version, (sha256(self.wheel(version)),)),)
        python = PythonPin((), "2026-01-01T00:00:00Z", packages)
        self.pin(name, Pins(sources={"vllm": WheelPin(f"vllm=={version}", version)}, python=python))

    def define_git(self, name: str, url: str, pin: GitPin | None = None) -> None:
        """A definition that takes vLLM from git, pinned where there is a ``pin``."""
        self._write(name, GIT_IMAGE.format(url=url))
        if pin:
            self.pin(name, Pins(sources={"vllm": pin}))

    def pin(self, name: str, pins: Pins) -> None:
        with lock_file.writing(self.project.lock, on_wait=lambda: None) as transaction:
            transaction.commit(transaction.lock.with_pins(name, "linux/arm64", pins))

    def _write(self, name: str, text: str) -> None:
        projects.write(self.project.dockerfiles / name / "image.yaml", text)
        projects.write(self.project.dockerfiles / name / "Dockerfile.j2", "FROM {{ base }}\n")


@contextmanager
def made(folder: Path) -> Iterator[ModProject]:
    """A project in ``folder`` with no mods, and a server of the releases."""
    for version, content in RELEASES.items():
        make_wheel(folder / "wheels", "vllm", version, files={INC: content} if content is not None else {})
    projects.write(folder / "project/dockerfiles/.keep", "")
    make_simple_index(folder / "wheels")
    with serving(folder / "wheels") as server:
        yield ModProject(Project(folder / "project"), folder / "wheels", server)
