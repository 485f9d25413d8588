"""Images as others build them, with something that passes for vLLM in them, in a registry whose tags move."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from builder.engine import bake_run, images, transfer
from tests import projects, shared

if TYPE_CHECKING:
    from pathlib import Path

    from builder.base.project import Project
    from builder.engine.client import Endpoint


# Of vLLM's releases; their wheels on PyPI say the same.
COMMITS = {
    "0.23.0": "0fc695fc6d1d82e9a5ac6835ac8e4e1c83703665",
    "0.24.0": "ee0da84ab9e04ac7610e28580af62c365e898389",
    "0.30.0": "ced6857afa0ea7b2e3f0846a62e1394e90f15607",
}
SYSTEM = "/usr/local/lib/python3.11/dist-packages"
VENV = "/opt/venv/lib/python3.11/site-packages"
# A virtual environment without pip: what makes a Python one is a link, and a file beside it.
_MAKE_VENV = """\
RUN mkdir -p /opt/venv/bin /opt/venv/lib/python3.11/site-packages && ln -s /usr/bin/python3 /opt/venv/bin/python3 \\
    && printf 'home = /usr/bin\\n' > /opt/venv/pyvenv.cfg
"""
IMAGE = """\
repository: {repository}
description: mods on an image of others
platform: host
base: {base}
sources: {sources}
{more}"""


@dataclass(frozen=True)
class OthersImage:
    """An image of others: the version of its vLLM and further packages, where they are, what else its Dockerfile has,
    and its programs among those that mods rely on."""

    vllm: str = "0.23.0"
    packages: dict[str, str] = field(default_factory=lambda: {"torch": "2.13.0+cu130", "transformers": "5.2.0"})
    site: str = SYSTEM
    more: str = ""
    apt: tuple[str, ...] = ("python3", "git", "patch", "curl", "wget")
    lines: str = "a = 1\\nb = 2\\nc = 3\\n"
    metadata: str = "gpu_arch: 12.1a\\nnightly: yes\\n"

    @property
    def dockerfile(self) -> str:
        packages = {"vllm": self.vllm, "flashinfer-python": "0.6.12", **self.packages}
        info = "".join(
            f" && mkdir {self.site}/{name.replace('-', '_')}-{version}.dist-info"
            f" && printf 'Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n'"
            f" > {self.site}/{name.replace('-', '_')}-{version}.dist-info/METADATA"
            for name, version in packages.items()
        )
        commit = COMMITS.get(self.vllm, "")
        return (
            "FROM debian:bookworm-slim\n"
            f"RUN apt-get update -qq && apt-get install -qq -y --no-install-recommends {' '.join(self.apt)}\n"
            f"{_MAKE_VENV if self.site == VENV else ''}"
            f"RUN mkdir -p {self.site}/vllm && printf '{self.lines}' > {self.site}/vllm/config.py"
            f" && printf \"__commit_id__ = commit_id = 'g{commit[:9]}'\\n\" > {self.site}/vllm/_version.py"
            f" && touch {self.site}/vllm/__init__.py{info}\n"
            f"RUN mkdir -p /workspace && printf '{self.metadata}' > /workspace/build-metadata.yaml\n"
            f"ENV VLLM_BUILD_COMMIT={commit}\n"
            f"{self.more}"
        )


def publish(endpoint: Endpoint, folder: Path, image: OthersImage, reference: str) -> None:
    """Builds an image, and gives it to a registry under this reference; the engine keeps nothing of it."""
    folder.mkdir(parents=True, exist_ok=True)
    projects.write(folder / "Dockerfile", image.dockerfile)
    projects.write(folder / "bake.json", '{"target": {"image": {"context": "."}}}')
    name = f"{shared.unique_name()}:1"
    bake_run.bake_targets(
        endpoint,
        folder,
        names={"image": name},
        log_path=folder / "log",
        on_event=lambda _: None,
        environ={},
    )
    images.tag_image(endpoint, name, reference)
    try:
        transfer.push_image(endpoint, reference, {}, lambda _: None)
    finally:
        images.remove_image(endpoint, reference)
        images.remove_image(endpoint, name)


def define(project: Project, repository: str, base: str, sources: str = "{vllm: base}", more: str = "") -> None:
    """Makes ``small`` a definition on the image ``base`` of others."""
    text = IMAGE.format(repository=repository, base=base, sources=sources, more=more)
    projects.write(project.dockerfiles / "small/image.yaml", text)
    projects.write(project.dockerfiles / "small/Dockerfile.j2", '{% include "_parts/on_base.j2" %}\n')
