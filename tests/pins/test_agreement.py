"""FlashInfer as the pinned vLLM names it, and what a definition has that disagrees with that vLLM; real git servers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from packaging.specifiers import SpecifierSet

from builder.base.errors import FileProblemsError, SourceError
from builder.base.project import Project
from builder.definitions import image
from builder.lock.model import BasePin, GitPin, LockedPackage, Pins, identity
from builder.pins import agreement, pinning, vendored
from builder.pins.pinning import ResolvedPins
from builder.pins.resolver import Resolver
from builder.sources.git import UserSettings
from tests import projects
from tests.pins.bases import no_contents
from tests.sources.git_server import Repository, make_repository, serve
from tests.sources.wheelhouse import make_index, make_wheel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


MAIN = "refs/heads/main"
CUDA = "requirements/cuda.txt"
NAMED = "-r common.txt\ntorch==2.10.0\nflashinfer-python=={}\nflashinfer-cubin=={}\n"
PACKAGES = [("torch", "2.10.0"), ("torch", "2.11.0"), ("tilelang", "0.1.12"), ("serve", "1.0"), ("uv", "1.0")]


@dataclass
class Upstream:
    """vLLM 0.21.0, which names FlashInfer 0.6.8.post1, and a main that names 0.7.0; and FlashInfer with both."""

    vllm: Repository
    flashinfer: Repository
    url: str
    project: Project
    settings: UserSettings
    release: str
    main: str

    def define(self, vllm: str = "ref: v0.21.0", flashinfer: str = "version: from-vllm", python: str = "serve") -> None:
        projects.write(
            self.project.dockerfiles / "gpu/image.yaml",
            "repository: gpu\ndescription: x\nplatform: linux/arm64\nbase: debian:bookworm-slim\nsources:\n"
            f"  vllm: {{git: '{self.url}/vllm.git', {vllm}, requirements: [{CUDA}]}}\n"
            f"  flashinfer: {{git: '{self.url}/flashinfer.git', {flashinfer}}}\n"
            f'python: {{version: "3.12", packages: [{python}]}}\n',
        )

    def resolve(self, pins: Pins | None = None, update: Mapping[str, str | None] | None = None) -> ResolvedPins:
        def no_registry(reference: str, platform: str) -> str:
            raise SourceError(f"no registry has {reference} for {platform}")

        before = pins or Pins(BasePin("debian:bookworm-slim", "sha256:" + "b" * 64))
        sources = Resolver(self.project, self.settings, str, no_registry, no_contents, lambda _: None)
        return pinning.resolve_missing(self.definition, before, (), sources, update or {})

    def pinned(self, pins: Pins | None = None, update: Mapping[str, str | None] | None = None) -> Pins:
        resolved = self.resolve(pins, update)
        assert [fault.error.message for fault in resolved.faults] == []
        vendored.keep_vendored(self.project, "gpu", resolved.pins, resolved.patches)
        return resolved.pins

    def refused(self, update: Mapping[str, str | None] | None = None) -> SourceError:
        (fault,) = self.resolve(None, update).faults
        return fault.error

    @property
    def definition(self) -> image.ImageDefinition:
        return image.load_image(self.project, "gpu", "linux/arm64")

    def place(self, text: str) -> str:
        """Where ``text`` stands in image.yaml."""
        lines = (self.project.dockerfiles / "gpu/image.yaml").read_text().splitlines()
        (number,) = [number for number, line in enumerate(lines) if text in line]
        return f"dockerfiles/gpu/image.yaml:{number + 1}:{lines[number].index(text) + 1}"


def flashinfer(pins: Pins) -> GitPin:
    pin = pins.sources["flashinfer"]
    assert isinstance(pin, GitPin)
    return pin


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[Upstream]:
    vllm = make_repository(tmp_path / "served/vllm.git")
    first = {CUDA: NAMED.format("0.6.8.post1", "0.6.8.post1"), "requirements/common.txt": "serve\n", "a.py": "1\n"}
    release = vllm.commit(MAIN, "Release", first)
    vllm.git("tag", "v0.21.0", release)
    main = vllm.commit(MAIN, "A newer FlashInfer", {CUDA: NAMED.format("0.7.0", "0.7.0")})
    other = make_repository(tmp_path / "served/flashinfer.git")
    for tag in ("v0.6.8.post1", "v0.7.0"):
        other.git("tag", tag, other.commit(MAIN, tag, {"version.txt": tag}))
    other.commit(MAIN, "After 0.7.0", {"version.txt": "main"})
    wheels = [make_wheel(tmp_path / "files", name, version) for name, version in PACKAGES]
    settings = UserSettings(index_url=make_index(tmp_path / "simple", wheels))
    with serve(tmp_path / "served") as server:
        project = Project(tmp_path / "project")
        made = Upstream(vllm, other, server.url, project, settings, release, main)
        made.define()
        projects.write(project.dockerfiles / "gpu/Dockerfile.j2", "FROM {{ base }}\n")
        yield made


@pytest.mark.long
@pytest.mark.slow
def test_flashinfer_is_the_one_that_vllm_names_and_moves_with_it(upstream: Upstream) -> None:
    pins = upstream.pinned()
    assert (flashinfer(pins).version, flashinfer(pins).requested) == (
        "0.6.8.post1",
        f"from-vllm/{upstream.release[:12]}",
    )
    assert pinning.stale_pins(upstream.definition, pins, ()) == ()
    moved = upstream.pinned(pins, {"vllm": "main"})
    assert (flashinfer(moved).version, flashinfer(moved).requested) == ("0.7.0", f"from-vllm/{upstream.main[:12]}")
    assert pinning.stale_pins(upstream.definition, moved, ()) == ()
    mixed = Pins(moved.base, {**moved.sources, "flashinfer": flashinfer(pins)}, moved.python)  # by a merge of two locks
    assert pinning.stale_pins(upstream.definition, mixed, ()) == ("flashinfer",)
    assert flashinfer(upstream.pinned(mixed)).version == "0.7.0"


@pytest.mark.long
@pytest.mark.slow
def test_an_own_ref_that_disagrees_is_an_error_with_its_place(upstream: Upstream) -> None:
    upstream.define(flashinfer="ref: v0.7.0")
    error, place = upstream.refused(), upstream.place("ref: v0.7.0")
    commit = upstream.flashinfer.git("rev-parse", "v0.7.0^{commit}")[:12]
    assert error.message == (
        f"{place}: FlashInfer is at 0.7.0 ({commit}), but "
        f"vllm 0.21.0 ({upstream.release[:12]}) requires flashinfer-python==0.6.8.post1"
    )
    assert error.hint == "write `version: from-vllm` instead of FlashInfer's `ref`, or `ref: v0.6.8.post1`"
    upstream.define(flashinfer="ref: v0.6.8.post1")
    assert flashinfer(upstream.pinned()).version == "0.6.8.post1"
    assert "FlashInfer is at 0.7.0" in upstream.refused({"flashinfer": "v0.7.0"}).message
    upstream.define(flashinfer="ref: main")
    assert "FlashInfer is at 0.7.1.dev1+g" in upstream.refused().message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "named"),
    [
        ("torch==2.11.0", "torch==2.10.0"),
        ("Torch>=2.11", "torch==2.10.0"),
        ("flashinfer_cubin==0.7.0", "flashinfer-cubin==0.6.8.post1"),
    ],
)
def test_packages_of_a_definition_that_disagree_are_named_with_their_place(
    upstream: Upstream, package: str, named: str
) -> None:
    upstream.define(python=f"serve, '{package}'")
    message = upstream.refused().message
    assert message.startswith(f"{upstream.place(repr(package))}: ")
    assert message.endswith(f"but vllm 0.21.0 ({upstream.release[:12]}) requires {named}")
    assert len(message.splitlines()) == 1


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    "package", ["torch>=2.9", "torch", "torch==2.11.0; platform_machine == 'x86_64'", "tilelang==0.1.12"]
)
def test_packages_that_agree_or_that_vllm_does_not_name_are_fine(upstream: Upstream, package: str) -> None:
    upstream.define(python=f'serve, "{package}"')
    upstream.pinned()


@pytest.mark.long
@pytest.mark.slow
def test_a_pull_request_moves_flashinfer_and_must_not_move_what_is_installed(upstream: Upstream) -> None:
    upstream.vllm.commit(
        "refs/pull/7/head", "FlashInfer 0.7.0", {CUDA: NAMED.format("0.7.0", "0.7.0")}, parent=upstream.release
    )
    upstream.define(vllm="ref: v0.21.0, pulls: [7]", flashinfer="ref: v0.7.0")
    assert flashinfer(upstream.pinned()).version == "0.7.0"
    torch = NAMED.replace("2.10.0", "2.11.0").format("0.6.8.post1", "0.6.8.post1")
    upstream.vllm.commit("refs/pull/8/head", "torch 2.11", {CUDA: torch}, parent=upstream.release)
    upstream.define(vllm="ref: v0.21.0, pulls: [8]")
    message = upstream.refused().message
    assert message.startswith("dockerfiles/gpu/pulls/vllm-8-")
    assert ".patch:8:2: torch==2.11.0, but vllm 0.21.0" in message


@pytest.mark.slow
def test_a_vllm_that_names_no_single_version_is_told(upstream: Upstream) -> None:
    none = upstream.vllm.commit(MAIN, "None", {CUDA: "torch==2.10.0\n"})
    upstream.define(vllm=f"ref: {none}")
    assert "requires no version of FlashInfer" in upstream.refused().message
    several = upstream.vllm.commit(MAIN, "Several", {CUDA: "flashinfer-python>=0.6\n"})
    upstream.define(vllm=f"ref: {several}")
    assert "requires flashinfer-python>=0.6, which is not a single version" in upstream.refused().message
    missing = upstream.vllm.commit(MAIN, "Missing", {CUDA: "flashinfer-python==9.9\n"})
    upstream.define(vllm=f"ref: {missing}")
    assert "has no branch or tag `refs/tags/v9.9`" in upstream.refused().message


@pytest.mark.slow
def test_vllm_s_wheel_names_it_as_well(upstream: Upstream, tmp_path: Path) -> None:
    requires = ("flashinfer-python==0.7.0", "torch==2.10.0", "tilelang==1; extra == 'x'")
    wheels = [
        make_wheel(tmp_path / "files", name, version) for name, version in [*PACKAGES, ("flashinfer-python", "0.7.0")]
    ]
    wheels.append(make_wheel(tmp_path / "files", "vllm", "0.22.0", requires=requires))
    upstream.settings = UserSettings(index_url=make_index(tmp_path / "with-vllm", wheels))
    upstream.define()
    file = upstream.project.dockerfiles / "gpu/image.yaml"
    lines = file.read_text().splitlines(keepends=True)
    projects.write(file, "".join("  vllm: {wheel: vllm==0.22.0}\n" if "vllm.git" in line else line for line in lines))
    pins = upstream.pinned()
    assert (flashinfer(pins).version, flashinfer(pins).requested) == ("0.7.0", "from-vllm/0.22.0")
    assert pinning.stale_pins(upstream.definition, pins, ()) == ()
    projects.write(file, "".join("  vllm: {wheel: vllm}\n" if "vllm.git" in line else line for line in lines))
    error = upstream.refused()
    assert "the definition gives vllm no version" in error.message
    assert str(error.hint).startswith("write the version of vllm, such as `wheel: vllm==")
    bare = [line if "flashinfer.git" not in line else "  flashinfer: {version: from-vllm}\n" for line in lines]
    projects.write(file, "".join("  vllm: {wheel: vllm==0.22.0}\n" if "vllm.git" in line else line for line in bare))
    assert upstream.definition.sources["flashinfer"] == image.WheelSource("flashinfer-python")


@pytest.mark.slow
def test_a_version_stands_only_where_it_can_be_followed(upstream: Upstream) -> None:
    for vllm, other, expected in (
        ("version: from-vllm", "ref: main", "from-vllm works only for flashinfer: give vllm a `ref`"),
        ("ref: main", "ref: main, version: from-vllm", "`ref` and `version: from-vllm` cannot be combined"),
        ("ref: main", "version: 0.7.0", '"0.7.0" is not one of from-vllm'),
    ):
        upstream.define(vllm=vllm, flashinfer=other)
        with pytest.raises(FileProblemsError, match=expected):
            assert upstream.definition
    upstream.define()
    file = upstream.project.dockerfiles / "gpu/image.yaml"
    projects.write(file, "".join(line for line in file.open() if "vllm.git" not in line))
    with pytest.raises(FileProblemsError, match="from-vllm requires a `vllm` source"):
        assert upstream.definition


@pytest.mark.slow
def test_flashinfer_comes_from_its_own_repository_if_nothing_else_is_said(upstream: Upstream) -> None:
    upstream.define()
    file = upstream.project.dockerfiles / "gpu/image.yaml"
    lines = file.read_text().splitlines(keepends=True)
    projects.write(
        file, "".join(ln if "flashinfer.git" not in ln else "  flashinfer: {version: from-vllm}\n" for ln in lines)
    )
    source = upstream.definition.git_sources["flashinfer"]
    assert (source.git, source.requirements) == (
        "https://github.com/flashinfer-ai/flashinfer.git",
        ("requirements.txt",),
    )
    assert identity(None) == ""


TOOLCHAIN = '[toolchain]\nchannel = "{}"\nprofile = "minimal"\n'


@pytest.mark.long
@pytest.mark.slow
def test_a_vllm_that_names_another_rust_is_told_before_anything_is_compiled(upstream: Upstream) -> None:
    path = upstream.project.dockerfiles / "gpu/image.yaml"
    path.write_text(path.read_text() + "args:\n  gpu_arch: 12.1a\n  rust: 1.95.0\n")
    upstream.vllm.commit(MAIN, "A front end", {"rust-toolchain.toml": TOOLCHAIN.format("1.97.1")})
    pins = upstream.pinned()  # 0.21.0 has no front end yet
    refused = upstream.refused({"vllm": "main"})
    told = "Rust 1.95.0, but the front end of the pinned vllm requires Rust 1.97.1"
    assert refused.message == f"{upstream.place('rust: 1.95.0')}: {told}"
    assert refused.hint.startswith("write `rust: 1.97.1` and its `rust_sha256` under `args:`, or remove `rust`")
    # As with any other disagreement, nothing moves.
    assert upstream.resolve(pins, {"vllm": "main"}).pins == pins
    for channel in ("1.95", "1.95.0", "stable"):
        upstream.vllm.commit(MAIN, channel, {"rust-toolchain.toml": TOOLCHAIN.format(channel)})
        assert upstream.pinned(pins, {"vllm": "main"}) != pins
    upstream.vllm.commit(MAIN, "Nightly", {"rust-toolchain.toml": TOOLCHAIN.format("nightly-2026-03-10")})
    refused = upstream.refused({"vllm": "main"})
    assert refused.message.endswith("requires Rust nightly-2026-03-10")
    assert refused.hint.startswith("remove `rust`")
    path.write_text(path.read_text().replace("  rust: 1.95.0\n", ""))
    assert upstream.pinned(pins, {"vllm": "main"}) != pins


# Ranges of versions that are held against each other, those that are none by PEP 440 among them.


@pytest.mark.parametrize("version", ["1.0", "2.11.0a0+nv25", "2.11.0a0~nv", "nightly", "0.7.2-dev_abc!x"])
def test_a_version_alone_agrees_with_itself_and_with_no_other(version: str) -> None:
    alone = agreement.only(version)
    assert agreement.exact_version(alone) == version
    assert agreement.agree(alone, agreement.only(version))
    assert not agreement.agree(alone, SpecifierSet("==9.9"))


@pytest.mark.parametrize(
    ("packages", "told"),
    [
        ({"flashinfer-python": "0.7.0.post1"}, ""),
        ({"flashinfer-python": "0.7.0", "flashinfer-jit-cache": "0.7.0+cu130"}, ""),
        (
            {
                "flashinfer-python": "0.7.0",
                "flashinfer-jit-cache": "0.7.0+cu134",
                "flashinfer-jit-cache-sm121a": "0.7.0+cu134",
                "nvidia-cuda-runtime": "13.0.96",
            },
            "",
        ),
        (
            {"flashinfer-python": "0.7.0", "flashinfer-jit-cache-sm121a": "0.7.1+cu130"},
            "flashinfer-jit-cache-sm121a is 0.7.1, but flashinfer-python is 0.7.0: FlashInfer refuses kernels of",
        ),
        (
            {
                "flashinfer-python": "0.7.0",
                "flashinfer-jit-cache": "0.7.0+cu129",
                "nvidia-cuda-runtime": "13.0.96",
            },
            "flashinfer-jit-cache 0.7.0+cu129 is for a different CUDA than 13.0.96",
        ),
        (
            {"flashinfer-jit-cache": "0.7.0+cu130", "flashinfer-jit-cache-sm121a": "0.7.0+cu134"},
            "flashinfer-jit-cache and flashinfer-jit-cache-sm121a are for different versions of CUDA",
        ),
    ],
)
def test_ready_kernels_that_flashinfer_would_refuse_are_not_pinned(packages: dict[str, str], told: str) -> None:
    found = agreement.misfit_kernels(LockedPackage(name, version, ()) for name, version in packages.items())
    assert found.startswith(told)
    assert bool(found) == bool(told)


def test_a_parent_image_contains_a_package_and_vllm_requires_it() -> None:
    packages = (LockedPackage("torch", "2.10.0", ()), LockedPackage("serve", "1.0", ()))
    (named,) = agreement.installed(packages, "the image of node").values()
    assert named.text("torch") == "the image of node contains torch==2.10.0"
    assert (
        agreement.Named(SpecifierSet("==2.10.0"), "vllm 0.21.0").text("torch") == "vllm 0.21.0 requires torch==2.10.0"
    )
