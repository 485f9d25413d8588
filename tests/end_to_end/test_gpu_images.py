"""The GPU images from vLLM's real source, on a machine without a GPU: the shipped templates on a Debian base, for the
target device `empty`, which has no kernels to compile, and without FlashInfer, which is nothing but kernels."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import yaml

from builder.base.project import Project
from builder.definitions import image
from builder.engine import images
from builder.engine.client import Endpoint
from builder.lock import lock_file
from builder.lock.model import GitPin, Pins
from tests import shared
from tests.conftest import BASE, remove_all
from tests.cpu_image import builder, run_in
from tests.end_to_end import kernelless, upstream
from tests.end_to_end.running import answer, layers
from tests.end_to_end.upstream import MAIN, Upstream

if TYPE_CHECKING:
    from collections.abc import Iterator


pytestmark = [pytest.mark.engine, pytest.mark.image, pytest.mark.full, pytest.mark.timeout(1800)]

SITE = "/usr/local/lib/python3.11/dist-packages"
VERSIONS = """\
import importlib.metadata, importlib.util, json, pathlib, vllm, vllm._version
said = [importlib.metadata.version("vllm"), vllm.__version__, vllm._version.commit_id]
metadata = pathlib.Path("/workspace/build-metadata.yaml").read_text()
print(json.dumps([said, metadata, importlib.util.find_spec("vllm.later") is not None]))
"""
KERNELS = """\
import importlib.metadata, importlib.util, json
found = [importlib.util.find_spec(name) is not None for name in ("flash_qla", "tilelang", "tvm_ffi")]
print(json.dumps([found, importlib.metadata.version("flash-qla"), importlib.metadata.version("tilelang")]))
"""


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstream]:
    with upstream.served(tmp_path_factory.mktemp("upstream")) as served:
        yield served


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, endpoint: Endpoint, vllm: Upstream) -> Iterator[Project]:
    prefix = shared.unique_name()
    yield kernelless.make(tmp_path_factory.mktemp("gpu"), prefix, vllm.url, BASE)
    for name in kernelless.NAMES:
        remove_all(endpoint, f"{prefix}-{name}")


def pins_of(project: Project, name: str) -> Pins:
    (pins,) = lock_file.read_lock(project.lock).pins[name].values()
    return pins


def vllm_pin(project: Project, name: str) -> GitPin:
    pin = pins_of(project, name).sources["vllm"]
    assert isinstance(pin, GitPin)
    return pin


@pytest.fixture(scope="module")
def tf5(project: Project) -> str:
    """The repository of tf5, with number 1 built at the last release."""
    builder(project, "build", "tf5")
    return image.repository_of(project, "tf5")


def test_vllm_in_the_image_is_the_pinned_commit(project: Project, endpoint: Endpoint, vllm: Upstream, tf5: str) -> None:
    commit = vllm.releases["0.32.0"]
    assert (vllm_pin(project, "tf5").version, vllm_pin(project, "tf5").commit) == ("0.32.0", commit)
    said, metadata, later = answer(endpoint, f"{tf5}:1", VERSIONS)
    assert said == ["0.32.0", "0.32.0", f"g{commit[:9]}"]
    assert not later
    written = yaml.safe_load(metadata)
    assert (written["vllm_version"], written["vllm_commit"]) == ("0.32.0", commit)
    found = images.inspect_image(endpoint, f"{tf5}:1")
    assert found is not None
    assert json.loads(found.labels["builder.sources"]) == {"vllm": ["0.32.0", commit]}


def test_a_commit_upstream_changes_nothing_until_it_is_asked_for(
    project: Project, endpoint: Endpoint, vllm: Upstream, tf5: str
) -> None:
    before = pins_of(project, "tf5")
    old = vllm.releases["0.32.0"]
    new = vllm.repository.commit(MAIN, "[Misc] Something later", {"vllm/later.py": "LATER = True\n"})
    assert builder(project, "build", "tf5") == f"already built as {tf5}:1\n"

    version = f"0.32.1.dev1+g{new[:7]}"
    told = builder(project, "build", "tf5", "--update", "vllm").splitlines()
    assert told[0].startswith(f"built {tf5}:2 in ")
    assert told[1:] == [f"  vllm version: 0.32.0 → {version}", f"  vllm commit: {old[:12]} → {new[:12]}"]
    after = pins_of(project, "tf5")
    assert (after.base, after.build) == (before.base, before.build)
    assert after.python is not None
    assert before.python is not None
    assert after.python.packages == before.python.packages
    said, metadata, later = answer(endpoint, f"{tf5}:2", VERSIONS)
    assert said == [version, version, f"g{new[:9]}"]
    assert yaml.safe_load(metadata)["vllm_commit"] == new
    assert later
    one, two = layers(endpoint, f"{tf5}:1"), layers(endpoint, f"{tf5}:2")
    others = [number for number, layer in enumerate(two) if layer != one[number]]
    # vLLM and build-metadata.yaml; the last layer is the directory to start in.
    assert others == [len(two) - 3, len(two) - 2]
    assert len(one) == len(two)


def test_a_vendored_pull_request_outlives_its_branch_and_the_kernels_stand_on_it(
    project: Project, endpoint: Endpoint, vllm: Upstream
) -> None:
    after = kernelless.open_pull(vllm)
    builder(project, "lock", "flashqla")
    pin = vllm_pin(project, "dflash")
    assert (pin.version, [pull.number for pull in pin.patches]) == ("0.28.0", [40898])
    vllm.force_push_and_delete(kernelless.PULL)

    builder(project, "build", "dflash", "flashqla", "--locked")
    dflash, flashqla = (f"{image.repository_of(project, name)}:1" for name in ("dflash", "flashqla"))
    assert vllm_pin(project, "dflash") == pin
    for name in (dflash, flashqla):
        assert run_in(endpoint, name, ["cat", f"{SITE}/{kernelless.DRAFTER}"], {}) == after

    below, above = layers(endpoint, dflash), layers(endpoint, flashqla)
    assert above[: len(below)] == below
    assert len(above) > len(below)
    # Importing them ends the process: TileLang, which they are written in, wants a torch with CUDA.
    found, kernels, tilelang = answer(endpoint, flashqla, KERNELS)
    assert found == [True, True, True]
    own = pins_of(project, "flashqla").python
    assert own is not None
    locked = {package.name: package.version for package in own.packages}
    assert (kernels, tilelang) == (locked["flash-qla"], locked["tilelang"])
