"""Definitions on images that others build, from a real registry whose tag moves."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from builder.engine import containers, images
from builder.lock import lock_file
from builder.lock.model import ImageName, IncludedPin, Version
from tests import projects
from tests.commands import bases_of_others
from tests.commands.bases_of_others import COMMITS, OthersImage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from builder.base.project import Project
    from builder.engine.client import Endpoint
    from tests.conftest import Command
    from tests.registries import Registry


pytestmark = [pytest.mark.engine, pytest.mark.long]

PATCH = """\
--- a/vllm/config.py
+++ b/vllm/config.py
@@ -1,3 +1,3 @@
 a = 1
-b = 2
+b = 3
 c = 3
"""
MOD = "description: x\npatches: [{file: fix.patch, package: vllm}]\n"


@pytest.fixture
def base(registry: Registry, endpoint: Endpoint) -> Iterator[str]:
    """The name of an image in a registry, where nothing is yet; what the engine pulled of it is gone at the end."""
    reference = f"{registry.address}/others/vllm"
    yield f"{reference}:nightly"
    for image in images.image_listing(endpoint):
        for name in (*(image["RepoTags"] or ()), *(image["RepoDigests"] or ())):
            if name.startswith(reference):
                images.remove_image(endpoint, name)


@pytest.fixture
def publish(endpoint: Endpoint, tmp_path: Path, base: str) -> Callable[[OthersImage], None]:
    """Makes the tag of ``base`` mean this image from now on."""
    return lambda image: bases_of_others.publish(endpoint, tmp_path / "others", image, base)


def record(project: Project, repository: str, number: int) -> dict[str, Version]:
    image = lock_file.read_lock(project.lock).image(ImageName(repository, number))
    assert image
    return image.versions


def run(endpoint: Endpoint, image: str, script: str) -> str:
    with containers.running(endpoint, image, labels={"builder.tests": ""}) as container:
        return container.run(["sh", "-c", script], timeout=120).output


def test_a_tag_that_moves(
    small: Project,
    builder: Command,
    repository: str,
    base: str,
    publish: Callable[[OthersImage], None],
    endpoint: Endpoint,
) -> None:
    publish(OthersImage())
    bases_of_others.define(small, repository, base)
    projects.add_mod(small.root, "fix", "", {"fix.patch": PATCH}, MOD)
    bases_of_others.define(small, repository, base, more="mods: [fix]\n")
    first = builder("build", "small")
    assert f"pulling {base}, to read its contents" in first.stderr
    pins = lock_file.read_lock(small.lock).pins["small"]
    (pin,) = (platform.sources["vllm"] for platform in pins.values())
    assert isinstance(pin, IncludedPin)
    assert (pin.version, pin.commit) == ("0.23.0", COMMITS["0.23.0"])
    assert record(small, repository, 1) == {"vllm": Version("0.23.0", COMMITS["0.23.0"][:12])}
    assert "0.23.0" in builder("list").stdout
    assert re.search(r"transformers +5\.2\.0", builder("show", f"{repository}:1", "--packages").stdout)
    assert "b = 3" in run(endpoint, f"{repository}:1", f"cat {bases_of_others.SYSTEM}/vllm/config.py")
    metadata = run(endpoint, f"{repository}:1", "cat /workspace/build-metadata.yaml")
    assert f'vllm_commit: "{COMMITS["0.23.0"]}"' in metadata
    assert "gpu_arch: 12.1a\n" in metadata
    assert "nightly: yes\n" in metadata
    assert 'build_date: "20' in metadata

    # The tag moves; nothing here does.
    publish(OthersImage("0.24.0", {"torch": "2.13.0+cu130", "transformers": "5.3.0", "new-one": "1.0"}))
    assert f"already built as {repository}:1" in builder("build", "small").stdout
    assert "nothing moved" in builder("lock", "small").stdout

    moved = builder("lock", "small", "--update", "base").stdout
    assert f"small vllm: 0.23.0 ({COMMITS['0.23.0'][:12]}) → 0.24.0 ({COMMITS['0.24.0'][:12]})" in moved
    assert re.search(r"up +transformers +5\.2\.0 → 5\.3\.0", moved)
    assert re.search(r"new +new-one +1\.0", moved)
    builder("build", "small")
    assert record(small, repository, 2) == {"vllm": Version("0.24.0", COMMITS["0.24.0"][:12])}
    text = builder("diff", f"{repository}:1", f"{repository}:2").stdout
    assert f"vllm  0.23.0 ({COMMITS['0.23.0'][:12]}) → 0.24.0 ({COMMITS['0.24.0'][:12]})" in text
    assert re.search(r"up +transformers +5\.2\.0 → 5\.3\.0", text)
    builder("rollback", "small")
    assert images.inspect_image(endpoint, f"{repository}:latest") == images.inspect_image(endpoint, f"{repository}:1")
    assert f"{repository}:1" in builder("lock", "--check", "small").stdout + builder("list").stdout


def test_a_patch_that_does_not_fit_the_base_is_an_error_before_anything_is_built(
    small: Project,
    builder: Command,
    repository: str,
    base: str,
    publish: Callable[[OthersImage], None],
    endpoint: Endpoint,
) -> None:
    # An image of this test alone: it is removed below, where another test could use one with the same content.
    publish(OthersImage(lines=f"a = 1\\nother = 2\\nc = 3\\n# {repository}\\n"))
    bases_of_others.define(small, repository, base, more="mods: [fix]\n")
    projects.add_mod(small.root, "fix", "", {"fix.patch": PATCH}, MOD)
    assert "fix does not" not in builder("lock", "small").stderr
    failed = builder("build", "small", code=2)
    assert f"fix.patch does not apply to vllm 0.23.0 of {base}: vllm/config.py" in failed.stderr
    # In a clone elsewhere the pins are there, and the base is not: it is pulled first.
    for image in images.image_listing(endpoint):
        if any(name.startswith(base[:-8]) for name in image["RepoDigests"] or ()):
            images.remove_image(endpoint, image["Id"])
    again = builder("build", "small", code=2)
    assert "does not apply" in again.stderr
    assert f"pulling {base}" in again.stderr
    checked = builder("mods", "check", "fix", code=1)
    assert "FAILS on vllm 0.23.0 of" in checked.stdout
    assert "vllm/config.py" in checked.stdout
    alone = builder("lock", "small", "--update", "vllm", code=2)
    assert "comes with its base image" in alone.stderr
    assert "to move both together: `--update base`" in alone.stderr


AS_OTHERS_LIKE_IT = """\
RUN useradd --create-home somebody
USER somebody
ENTRYPOINT ["vllm", "serve"]
"""
RUN = 'python3 -c "import vllm, sys; print(sys.executable)" > /which-python\nid -u > /who\n'


PACKAGES = 'python: {version: "3.11", glibc: "2.36", packages: ["six==1.17.0"]}\n'


@pytest.mark.parametrize(
    ("site", "python"),
    [(bases_of_others.SYSTEM, PACKAGES), (bases_of_others.VENV, PACKAGES), (bases_of_others.VENV, "")],
    ids=["system", "venv", "venv-by-pip"],
)
def test_an_image_that_is_made_otherwise(
    small: Project,
    builder: Command,
    repository: str,
    base: str,
    publish: Callable[[OthersImage], None],
    endpoint: Endpoint,
    site: str,
    python: str,
) -> None:
    """In a virtual environment or not, without git, patch, curl and uv, for a user of its own, with an entrypoint."""
    publish(OthersImage(site=site, apt=("python3", "python3-pip"), more=AS_OTHERS_LIKE_IT))
    bases_of_others.define(small, repository, base, "{vllm: base, flashinfer: base}", f"mods: [fix]\n{python}")
    projects.add_mod(small.root, "fix", RUN, {"fix.patch": PATCH}, MOD + "packages: [iniconfig==2.0.0]\nrun: run.sh\n")
    builder("build", "small")
    image = f"{repository}:1"
    assert "b = 3" in run(endpoint, image, f"cat {site}/vllm/config.py")
    expected = "/usr/bin/python3" if site == bases_of_others.SYSTEM else "/opt/venv/bin/python3"
    assert run(endpoint, image, "cat /which-python /who").split() == [expected, "0"]
    names = ["iniconfig", *(["six"] if python else [])]
    places = run(endpoint, image, f"{expected} -c 'import {', '.join(names)}; print({names[-1]}.__file__)'")
    assert places.startswith(site.rpartition("/")[0])
    has_uv = run(endpoint, image, "command -v uv || { test -e /opt/venv/bin/uv && echo there; }")
    assert bool(has_uv) == bool(python)
    details = images.inspect_image(endpoint, image)
    assert details
    assert details.config["User"] == "root"
    assert "Entrypoint" not in details.config
    assert details.config["Cmd"] == ["/bin/bash"]
    assert "git version" in run(endpoint, image, "git --version")
    assert "earlyoom" in run(endpoint, image, "command -v earlyoom")


def test_a_base_that_nothing_stands_on_any_more_is_pruned(
    small: Project,
    builder: Command,
    repository: str,
    base: str,
    publish: Callable[[OthersImage], None],
    endpoint: Endpoint,
) -> None:
    def pulled() -> set[str]:
        listed = images.image_listing(endpoint)
        names = {name for image in listed for name in image["RepoDigests"] or () if name.startswith(base[:-8])}
        return {name.partition("@")[2] for name in names}

    publish(OthersImage())
    bases_of_others.define(small, repository, base)
    builder("build", "small")
    first = pulled()
    publish(OthersImage("0.24.0"))
    builder("build", "small", "--update", "base")
    assert len(pulled()) == 2
    # Number 1 stands on the first: both stay. With it, the first base goes.
    builder("prune", "--yes", "--keep", "2")
    assert len(pulled()) == 2
    builder("prune", "--yes", "--keep", "1")
    assert len(pulled()) == 1
    assert not first & pulled()


def test_without_the_registry_the_copy_of_the_engine_serves(
    small: Project,
    builder: Command,
    repository: str,
    base: str,
    publish: Callable[[OthersImage], None],
    registry: Registry,
    endpoint: Endpoint,
) -> None:
    publish(OthersImage())
    bases_of_others.define(small, repository, base, more="mods: [fix]\n")
    projects.add_mod(small.root, "fix", "", {"fix.patch": PATCH}, MOD)
    builder("lock", "small")
    registry.kill()
    builder("build", "small")
    assert record(small, repository, 1)["vllm"].version == "0.23.0"
    failed = builder("lock", "small", "--update", "base", code=6)
    assert "cannot be resolved" in failed.stderr
    # As `docker pull` leaves it, where nothing was pinned yet.
    (name,) = [
        name for image in images.image_listing(endpoint) for name in image["RepoDigests"] if name.startswith(base[:-8])
    ]
    images.tag_image(endpoint, name, base)
    builder("lock", "small", "--update", "base")
    (pins,) = lock_file.read_lock(small.lock).pins["small"].values()
    assert pins.base
    assert pins.base.resolved.startswith("local:sha256:")
    assert pins.sources["vllm"].version == "0.23.0"
    builder("build", "small")
