"""The checks of an image on a GPU, which no test machine has: a `torch` of a few lines in the image tells of one, and
the container is given no device. All else is real: the engine, the container, Python and its metadata."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import BuildFailedError
from builder.building import verification
from builder.definitions.mod import ModCheck
from builder.engine import containers
from builder.engine.client import Endpoint, environment
from builder.lock.model import Version
from builder.plan.plan_model import WORKSPACE, ImageCheck, Plan
from tests import projects, shared
from tests.conftest import BASE, remove_all
from tests.plan import shipped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


SITE = "/usr/local/lib/python3.11/dist-packages"
TORCH = """\
import os
class Tensor:
    def __getitem__(self, _): return self
    def float(self): return self
bfloat16 = None
ones = ones_like = empty_like = lambda *_, **__: Tensor()
allclose = lambda *_, **__: True
class cuda:
    is_available = staticmethod(lambda: "CAPABILITY" in os.environ)
    get_device_name = staticmethod(lambda _: "NVIDIA  GB10")
    get_device_capability = staticmethod(lambda _: tuple(map(int, os.environ["CAPABILITY"].split("."))))
    synchronize = staticmethod(lambda: None)
"""
OPERATIONS = """\
import os
def rms_norm(*_):
    if "BROKEN" in os.environ: raise RuntimeError(os.environ["BROKEN"])
"""
PLATFORMS = "class current_platform:\n    is_cuda = staticmethod(lambda: True)\n"
METADATA = "Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
GB10 = {"CAPABILITY": "12.1"}


@pytest.fixture
def make(endpoint: Endpoint, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Makes an image with that torch, a vLLM, and ``versions`` of FlashInfer."""
    repository = shared.unique_name()

    def run(environ: dict[str, str], **versions: str) -> str:
        files = {"torch.py": TORCH, "vllm/__init__.py": "", "vllm/platforms.py": PLATFORMS}
        for path, text in {**files, "vllm/_custom_ops.py": OPERATIONS}.items():
            projects.write(tmp_path / "site" / path, text)
        for name, version in {"vllm": "0.33.0", **versions}.items():
            text = METADATA.format(name=name.replace("_", "-"), version=version)
            projects.write(tmp_path / f"site/{name}-{version}.dist-info/METADATA", text)
        lines = [
            f"FROM {BASE}",
            "RUN apt-get update -qq && apt-get install -qq -y --no-install-recommends python3",
            f"COPY site {SITE}",
            f"RUN mkdir -p {WORKSPACE}",
            *(f"ENV {name}={value!r}" for name, value in environ.items()),
        ]
        projects.write(tmp_path / "Dockerfile", "\n".join(lines) + "\n")
        argv = [*endpoint.buildx, "build", "--provenance=false", "-t", f"{repository}:1", "."]
        subprocess.run(argv, cwd=tmp_path, env=environment(endpoint), check=True, capture_output=True)
        return f"{repository}:1"

    yield run
    remove_all(endpoint, repository)


def plan_of(*checks: ImageCheck) -> Plan:
    versions = {"vllm": Version("0.33.0", None), "flashinfer": Version("0.7.2", None)}
    return replace(shipped.plan("tf5", "git", "linux/arm64"), checks=checks, versions=versions)


def check(
    endpoint: Endpoint, image: str, *checks: ImageCheck, entrypoint: tuple[str, ...] = ()
) -> tuple[str | None, list[str]]:
    messages: list[str] = []
    label = image.partition(":")[0]
    try:
        plan, report = plan_of(*checks), lambda event: messages.append(str(event))
        card = verification.check_gpu(endpoint, image, plan, {label: ""}, report, devices=(), entrypoint=entrypoint)
    finally:
        assert containers.container_listing(endpoint, label) == []
    return card, messages


def kernel(script: str) -> ImageCheck:
    return ImageCheck("flashqla", ModCheck(run="kernel.sh", gpu=True), script)


@pytest.mark.long
@pytest.mark.engine
def test_an_image_that_runs_on_the_card(endpoint: Endpoint, make: Callable[..., str]) -> None:
    image = make(GB10, flashinfer_python="0.7.2", flashinfer_jit_cache="0.7.2+cu130")
    card, messages = check(endpoint, image, kernel("true"), ImageCheck("other", ModCheck(file="/gone"), None))
    assert card == "NVIDIA GB10, compute capability 12.1"
    assert len(messages) == 1


@pytest.mark.long
@pytest.mark.engine
def test_the_entrypoint_of_an_image_that_keeps_it_runs_first(endpoint: Endpoint, make: Callable[..., str]) -> None:
    """It may be what makes the GPU usable, and print what it likes."""
    sets_up = " ".join(f"{name}='{value}'" for name, value in GB10.items())
    entrypoint = ("sh", "-c", f'echo "== CUDA =="; export {sets_up}; exec "$@"', "sh")
    image = make({}, flashinfer_python="0.7.2")
    assert check(endpoint, image, kernel("test $CAPABILITY = 12.1"), entrypoint=entrypoint)[0] is not None
    with pytest.raises(BuildFailedError, match="is_available"):
        check(endpoint, image)


@pytest.mark.long
@pytest.mark.engine
def test_all_that_is_wrong_is_told_at_once(endpoint: Endpoint, make: Callable[..., str]) -> None:
    broken = {"CAPABILITY": "12.1", "BROKEN": "no kernel image is available"}
    image = make(broken, flashinfer_python="0.7.1", flashinfer_cubin="0.7.2")
    with pytest.raises(BuildFailedError) as caught:
        check(endpoint, image, kernel("echo no tilelang; exit 1"))
    assert caught.value.message.splitlines() == [
        "check gpu, on the GPU of this machine:",
        "vLLM's kernel rms_norm does not run: RuntimeError: no kernel image is available",
        "flashinfer-cubin is 0.7.2, but flashinfer-python is 0.7.1: FlashInfer refuses kernels of another version",
        "the image contains FlashInfer 0.7.1, but 0.7.2 is pinned",
        "check of mod flashqla: kernel.sh fails",
        "  no tilelang",
    ]
    assert caught.value.hint.endswith("build with `--without-check gpu --without-check flashqla --note WHY`")


@pytest.mark.long
@pytest.mark.engine
def test_a_torch_that_sees_no_card(endpoint: Endpoint, make: Callable[..., str]) -> None:
    with pytest.raises(BuildFailedError, match=r"torch\.cuda\.is_available\(\) is false") as caught:
        check(endpoint, make({}), kernel("exit 1"))
    assert "kernel.sh" not in caught.value.message  # it has nothing to run on


@pytest.mark.long
@pytest.mark.engine
def test_a_card_without_memory_is_no_fault_of_the_image(endpoint: Endpoint, make: Callable[..., str]) -> None:
    card, messages = check(endpoint, make({**GB10, "BROKEN": "CUDA error: out of memory"}))
    assert card is None
    assert "the GPU ran out of memory" in messages[-1]


@pytest.mark.long
@pytest.mark.engine
def test_an_engine_that_cannot_give_the_card(endpoint: Endpoint, make: Callable[..., str]) -> None:
    messages: list[str] = []
    absent = ({"Driver": "no-such-driver", "Count": -1, "Capabilities": [["gpu"]]},)
    image = make(GB10)
    labels = {image.partition(":")[0]: ""}
    card = verification.check_gpu(endpoint, image, plan_of(), labels, lambda event: messages.append(str(event)), absent)
    assert card is None
    assert "checks on the GPU not run:" in messages[-1]
    assert containers.container_listing(endpoint, image.partition(":")[0]) == []
