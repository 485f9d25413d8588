"""tf5 as shipped, from the real sources of vLLM and FlashInfer, on a machine without a GPU: every stage, every step and
every variable of its Dockerfile. Other than on a Spark are the base image's name and the target, which is `empty`; and
two things of `args:` are left out, one of which comes from a host of its own, and one takes hours: vLLM's front end in
Rust, and FlashInfer's prebuilt kernels. One kernel of each source is compiled for the chip in its stage.

The base is Ubuntu's, with CUDA's compiler as PyPI has it. Both sources are their releases on PyPI, on a git server that
stands for GitHub (git's insteadOf); BuildKit, which does not ask that, gets them from the mirrors.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from datetime import datetime
from typing import TYPE_CHECKING

import pytest
import yaml
from uv import find_uv_bin

from builder.base.project import Project
from builder.engine.client import Endpoint, environment
from builder.lock import lock_file
from builder.lock.model import GitPin, Pins
from tests import projects, shared, shipped_files
from tests.conftest import remove_all
from tests.cpu_image import builder
from tests.end_to_end import upstream
from tests.end_to_end.running import answer
from tests.sources import git_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = [pytest.mark.engine, pytest.mark.full, pytest.mark.timeout(7200)]

# What PyPI has of CUDA's toolkit, of the version that the shipped base image has.
COMPILER = [
    *("nvidia-cuda-cccl==13.0.*", "nvidia-cuda-crt==13.0.*", "nvidia-cuda-nvcc==13.0.*"),
    *("nvidia-cuda-runtime==13.0.*", "nvidia-nvvm==13.0.*"),
]
# Unsigned, as the machine may have no keys of Ubuntu's: nothing of it is kept.
MAKE = """\
mirror=http://archive.ubuntu.com/ubuntu
[ "$(uname -m)" != aarch64 ] || mirror=http://ports.ubuntu.com/ubuntu-ports
exec mmdebstrap --quiet --variant=minbase --include=apt,ca-certificates noble root.tar \\
    "deb [trusted=yes] $mirror noble main universe" "deb [trusted=yes] $mirror noble-updates main universe"
"""
BASE = """\
FROM scratch
ADD root.tar /
COPY cuda/nvidia/cu13 /usr/local/cuda
ENV PATH=/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
"""
LEFT_OUT = {"rust": False, "flashinfer_jit_cache": False}
VERSIONS = """\
import importlib.metadata as metadata, json, os
names = ("vllm", "flashinfer-python", "torch", "transformers")
wanted = ("TORCH_CUDA_ARCH_LIST", "FLASHINFER_CUDA_ARCH_LIST", "TRITON_PTXAS_PATH", "MAX_JOBS")
print(json.dumps([{name: metadata.version(name) for name in names}, {name: os.environ[name] for name in wanted}]))
"""
# Stages beside those of the image: vLLM's kernel is compiled with the flags that its CMakeLists.txt gives to what has a
# stable ABI, for 12.0, as it does with CUDA 13 and 12.1a; FlashInfer's with those that its generator of kernels gives.
KERNELS = """

FROM vllm-wheel AS vllm-kernel
RUN --mount=type=bind,from=vllm-source,target=/src/vllm <<'EOF'
set -eu
torch=$(python3 -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])')
mkdir /kernels
nvcc -cubin -o /kernels/vllm.cubin -gencode arch=compute_120,code=sm_120 -std=c++20 --expt-relaxed-constexpr \\
    -DTORCH_TARGET_VERSION=0x020B000000000000ULL -DUSE_CUDA -DTORCH_STABLE_ONLY -I/src/vllm/csrc -I"$torch/include" \\
    -I"$torch/include/torch/csrc/api/include" -I"$torch/../nvidia/cu13/include" -I/usr/include/python3.12 \\
    /src/vllm/csrc/libtorch_stable/pos_encoding_kernels.cu
EOF

FROM flashinfer-wheel AS flashinfer-kernel
RUN <<'EOF'
set -eu
uv pip install --quiet --offline --no-deps --target /flashinfer /wheels/flashinfer_python-*.whl
mkdir /kernels
cd /kernels
FLASHINFER_CUDA_ARCH_LIST=12.1a PYTHONPATH=/flashinfer python3 - <<'PYTHON'
import os
import pathlib
import shlex
import subprocess
from flashinfer.jit.rope import gen_rope_module
entries = {pathlib.Path(entry["file"]).name: entry["command"] for entry in gen_rope_module().get_compile_commands()}
words = shlex.split(entries["rope.cu"])
words[words.index("-o") + 1] = "/kernels/flashinfer.o"
pathlib.Path("/kernels/flashinfer.txt").write_text(" ".join(words))
subprocess.run(words, check=True)
PYTHON
EOF

FROM scratch AS kernels
COPY --from=vllm-kernel /kernels /
COPY --from=flashinfer-kernel /kernels /
"""
EM_CUDA = 190  # of ELF's machines: code for an NVIDIA GPU
RELEASES = {
    "vllm-project/vllm.git": ("vllm", "5f8f4e890c042ffa1c3e103f81c35e2d96f60a0a175ac43a4adbae7006bef62b"),
    "flashinfer-ai/flashinfer.git": (
        "flashinfer-python",
        "1ebfb8ff3fa3a896e5abbd0dec123a5f3e3734029871349dad6968b252b82097",
    ),
}


@pytest.fixture(scope="module")
def base(endpoint: Endpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Ubuntu's image with CUDA's compiler where NVIDIA's images have it."""
    folder, name = tmp_path_factory.mktemp("base"), f"{shared.unique_name()}-base"
    subprocess.run(["apt-get", "install", "-y", "--no-install-recommends", "mmdebstrap"], check=True)
    subprocess.run(["bash", "-c", MAKE], cwd=folder, check=True)
    install = ["pip", "install", "--quiet", "--no-deps", "--python-version", "3.12", "--target", "cuda"]
    target = ["--python-platform", f"{platform.machine()}-manylinux_2_28"]
    subprocess.run([find_uv_bin(), *install, *target, *COMPILER], cwd=folder, check=True)
    (folder / "Dockerfile").write_text(BASE)
    argv = [*endpoint.buildx, "build", "--provenance=false", "-t", f"{name}:1", "."]
    subprocess.run(argv, cwd=folder, env=environment(endpoint), check=True)
    yield f"{name}:1"
    remove_all(endpoint, name)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The repositories, which git finds under the addresses that the definition has: each holds the release that
    images.lock pins, of the day that stands there."""
    root = tmp_path_factory.mktemp("upstream")
    pins = lock_file.read_lock(shipped_files.project().lock).pins_of("tf5", "linux/arm64").sources
    for (path, (package, sha256)), name in zip(RELEASES.items(), ("vllm", "flashinfer"), strict=True):
        pin = pins[name]
        assert isinstance(pin, GitPin)
        assert pin.git.endswith(f"/{path}")
        added = {"version.txt": f"{pin.version}\n"} if name == "flashinfer" else {}
        date = int(datetime.fromisoformat(pin.date).timestamp())
        release = upstream.Release(package, pin.version, sha256, date, added)
        upstream.add_release(git_server.make_repository(root / path), release)
    with git_server.serve(root) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("GIT_CONFIG_COUNT", "1")
        patch.setenv("GIT_CONFIG_KEY_0", f"url.{server.url}/.insteadOf")
        patch.setenv("GIT_CONFIG_VALUE_0", "https://github.com/")
        # A torch without CUDA among the user's wheels would count as newer than PyPI's of the same version.
        for variable in ("PIP_FIND_LINKS", "UV_FIND_LINKS"):
            patch.delenv(variable, raising=False)
        yield root


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, endpoint: Endpoint, base: str, served: Path) -> Iterator[Project]:
    made, repository = Project(tmp_path_factory.mktemp("source")), shared.unique_name()
    for folder in ("_parts", "tf5"):
        shutil.copytree(shipped_files.project().dockerfiles / folder, made.dockerfiles / folder)
    file = made.dockerfiles / "tf5/image.yaml"
    shipped = yaml.safe_load(file.read_text(encoding="utf-8"))
    args = {**shipped["args"], **LEFT_OUT, "target_device": "empty"}
    changes = {"repository": repository, "platform": "host", "base": base, "args": args}
    definition = {key: value for key, value in shipped.items() if key != "first_build"} | changes
    projects.write(file, yaml.safe_dump(definition))
    yield made
    remove_all(endpoint, repository)


def test_every_stage_and_one_kernel_of_each_for_the_chip(
    project: Project, endpoint: Endpoint, served: Path, tmp_path: Path
) -> None:
    builder(project, "build", "tf5")
    lock = lock_file.read_lock(project.lock)
    (repository,) = lock.images
    (pins,) = lock.pins["tf5"].values()
    assert pins.python is not None
    locked = {package.name: package.version for package in pins.python.packages}
    versions, variables = answer(endpoint, f"{repository}:1", VERSIONS)
    shipped = lock_file.read_lock(shipped_files.project().lock).pins_of("tf5", "linux/arm64").sources
    assert versions["vllm"].partition("+")[0] == shipped["vllm"].version
    assert versions["flashinfer-python"] == shipped["flashinfer"].version
    assert (versions["torch"], versions["transformers"]) == (locked["torch"], locked["transformers"])
    assert (variables["TORCH_CUDA_ARCH_LIST"], variables["FLASHINFER_CUDA_ARCH_LIST"]) == ("12.1a", "12.1a")

    kernels = compiled(project, endpoint, served, pins, tmp_path)
    cubin = (kernels / "vllm.cubin").read_bytes()
    assert (cubin[:4], int.from_bytes(cubin[18:20], "little")) == (b"\x7fELF", EM_CUDA)
    assert b"rotary_embedding_kernel" in cubin
    assert "arch=compute_121a,code=sm_121a" in (kernels / "flashinfer.txt").read_text()
    assert b".nv_fatbin" in (kernels / "flashinfer.o").read_bytes()


def compiled(project: Project, endpoint: Endpoint, served: Path, pins: Pins, folder: Path) -> Path:
    """The folder with what the further stages made: the image's own come from BuildKit's cache."""
    (directory,) = (project.root / "builds").glob("*/1")
    dockerfile, out = folder / "Dockerfile", folder / "kernels"
    dockerfile.write_text((directory / "Dockerfile").read_text(encoding="utf-8") + KERNELS, encoding="utf-8")
    options = ["--target", "kernels", "--file", str(dockerfile), "--output", f"type=local,dest={out}"]
    if ca := os.environ.get("SSL_CERT_FILE"):
        options += ["--secret", f"id=ca,src={ca}"]
    for path, name in zip(RELEASES, ("vllm", "flashinfer"), strict=True):
        pin, tree = pins.sources[name], folder / name
        assert isinstance(pin, GitPin)
        tree.mkdir()
        archive = subprocess.run(["git", "-C", served / path, "archive", pin.commit], check=True, capture_output=True)
        subprocess.run(["tar", "-x", "-C", tree], input=archive.stdout, check=True)
        (tree / ".dockerignore").unlink(missing_ok=True)
        options += ["--build-context", f"{name}-source={tree}"]
    argv = [*endpoint.buildx, "build", "--progress=plain", *options, str(directory)]
    done = subprocess.run(argv, env=environment(endpoint), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-10_000:]
    return out
