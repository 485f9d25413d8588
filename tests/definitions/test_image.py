from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.base.errors import FileProblemsError, UsageError
from builder.definitions import image
from tests import projects

if TYPE_CHECKING:
    from pathlib import Path


def load(root: Path, text: str) -> image.ImageDefinition:
    project = projects.make(root)
    projects.write(root / "dockerfiles/small/image.yaml", text)
    return image.load_image(project, "small", "linux/amd64")


def problems(root: Path, text: str) -> list[str]:
    with pytest.raises(FileProblemsError) as caught:
        load(root, text)
    return str(caught.value).splitlines()


def test_the_host_platform_stands_in_for_host(tmp_path: Path) -> None:
    assert image.load_image(projects.make(tmp_path), "small", "linux/arm64").platform == "linux/arm64"


def test_everything_that_is_written_is_read(tmp_path: Path) -> None:
    definition = load(
        tmp_path,
        """\
repository: vllm-node-x
description: all keys
platform: linux/arm64
base: nvidia/cuda:13.0.2-devel-ubuntu24.04
sources:
  vllm: {wheel: vllm==0.19.1}
python:
  version: "3.12"
  packages: [transformers>=5, "ray[default]"]
  without: [torchaudio]
  indexes:
    - {url: "https://example.org/simple", packages: [torch]}
args: {gpu_arch: 12.1a, build_jobs: 16}
mods: [template]
""",
    )
    assert definition.platform == "linux/arm64"
    assert definition.sources == {"vllm": image.WheelSource("vllm==0.19.1")}
    assert definition.python == image.PythonRequirements(
        version="3.12",
        glibc="2.39",
        packages=("transformers>=5", "ray[default]"),
        without=("torchaudio",),
        indexes=(image.Index("https://example.org/simple", ("torch",)),),
    )
    assert definition.args == {"gpu_arch": "12.1a", "build_jobs": 16}
    assert definition.mods == ("template",)


def test_all_problems_are_reported_at_once_with_their_locations(tmp_path: Path) -> None:
    lines = problems(
        tmp_path,
        """\
repository: Has Spaces
description: x
platform: linux/riscv
base: debian
bass: debian:bookworm-slim
python:
  version: 3.12
  packages: transformers
""",
    )
    assert lines == [
        'dockerfiles/small/image.yaml:1:1: `repository`: "Has Spaces" has characters that are not allowed here; '
        "meant is: the name under which Docker lists the image: lower-case letters and digits, with . _ - or / between "
        "them",
        'dockerfiles/small/image.yaml:3:1: `platform`: "linux/riscv" is none of host, linux/arm64, linux/amd64; meant '
        "is: linux/arm64, linux/amd64, or host for the platform of the machine that builds",
        'dockerfiles/small/image.yaml:4:1: `base`: "debian" has characters that are not allowed here; meant is: the '
        "base image with its tag, such as debian:bookworm-slim",
        "dockerfiles/small/image.yaml:5:1: unknown key `bass`; did you mean `base`?",
        "dockerfiles/small/image.yaml:7:3: `python.version`: 3.12 is not text (quote it where YAML reads it as a "
        'number or as true and false); meant is: the Python in the image, in quotes: "3.12"',
        'dockerfiles/small/image.yaml:8:3: `python.packages`: "transformers" is not a list (`- value` lines); meant '
        "is: Python requirements, such as transformers>=5",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", "dockerfiles/small/image.yaml:1:4: the `[` that opens here is not closed"),
        ("a: 1\na: 2\n", "dockerfiles/small/image.yaml:2:1: the key `a` stands twice"),
        ("just words", 'dockerfiles/small/image.yaml:1:1: "just words" is not a mapping (`key: value` lines)'),
        ("", "dockerfiles/small/image.yaml:1:1: is empty"),
    ],
)
def test_what_is_not_a_mapping_is_refused(tmp_path: Path, text: str, message: str) -> None:
    assert problems(tmp_path, text)[0].startswith(message)


def test_text_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    (tmp_path / "dockerfiles/small/image.yaml").write_bytes(b"repository: x\ndescription: \xff\n")
    with pytest.raises(FileProblemsError, match=r"image\.yaml:2:1: not UTF-8 text"):
        image.load_image(project, "small", "linux/amd64")


def test_an_unknown_definition_is_named_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        image.load_image(projects.make(tmp_path), "smal", "linux/amd64")
    assert caught.value.hint == "did you mean small?"


def test_a_repository_leads_to_its_definition(tmp_path: Path) -> None:
    project = projects.make(tmp_path, "vllm-node-small")
    assert image.of_repository(project, "vllm-node-small") == "small"
    assert image.of_repository(project, "other") is None


@pytest.mark.parametrize("lines", ["", "base: debian:bookworm-slim\nfrom: other\n"])
def test_an_image_is_built_on_a_base_or_on_another_definition(tmp_path: Path, lines: str) -> None:
    text = f"repository: x\ndescription: x\nplatform: host\n{lines}"
    assert "either `base` (an image of a registry) or `from`" in problems(tmp_path, text)[0]


def test_a_source_may_come_from_git(tmp_path: Path) -> None:
    text = projects.IMAGE.format(repository="small") + (
        "sources:\n  vllm: {git: 'https://example.org/vllm.git', ref: main, pulls: [40898], requirements: [r.txt]}\n"
    )
    source = image.GitSource("https://example.org/vllm.git", "main", (40898,), ("r.txt",))
    assert load(tmp_path, text).git_sources == {"vllm": source}


def test_a_pull_request_may_name_the_branch_that_it_was_opened_for(tmp_path: Path) -> None:
    pulls = "[7, {number: 8, base: releases/v1}, {number: 9}]"
    text = projects.IMAGE.format(repository="small") + (
        f"sources:\n  vllm: {{git: 'https://example.org/vllm.git', ref: main, pulls: {pulls}}}\n"
    )
    source = load(tmp_path, text).git_sources["vllm"]
    assert (source.pulls, source.bases) == ((7, 8, 9), {8: "releases/v1"})
    with pytest.raises(FileProblemsError, match=r"image.yaml:[0-9]+:[0-9]+: .* twice"):
        load(tmp_path / "twice", text.replace("[7,", "[8,"))


def test_a_wheel_may_have_an_index_of_its_own(tmp_path: Path) -> None:
    index = "https://wheels.vllm.ai/" + "e2f5" * 10 + "/cu130"
    text = f"""\
{projects.IMAGE.format(repository="small")}sources:
  vllm: {{wheel: Vllm_X, index: "{index}"}}
  flashinfer: {{wheel: flashinfer-python==0.6.7}}
python:
  version: "3.12"
  packages: []
  indexes: [{{url: "https://example.org/simple", packages: [Torch_Audio]}}]
"""
    loaded = load(tmp_path, text)
    assert loaded.wheel_sources["vllm"].requested == f"Vllm_X from {index}"
    assert loaded.wheel_sources["flashinfer"].requested == "flashinfer-python==0.6.7"
    assert loaded.python is not None
    assert loaded.python.indexes == (
        image.Index("https://example.org/simple", ("torch-audio",)),
        image.Index(index, ("vllm-x",), local=False),
    )


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{wheel: vllm>=0.19}", '`sources.vllm.wheel`: "vllm>=0.19" has characters that are not allowed here'),
        ("{wheel: vllm, ref: main}", "unknown key `ref`; known here: wheel, index"),
        ("{wheel: vllm, index: 'https://me:secret@example.org/simple'}", "without a login"),
        ("{git: 'https://example.org/x.git'}", "the key `ref` is missing in `sources.vllm`"),
        ("{git: 'https://example.org/x.git', ref: main, index: 'https://x'}", "unknown key `index`"),
        ("main", '`sources.vllm`: "main" is none of base; meant is: `base`, where'),
        ("{wheel: vllm}", "vllm is installed with the Python packages: say for which Python in `python`"),
    ],
)
def test_a_source_that_is_neither_is_refused(tmp_path: Path, source: str, message: str) -> None:
    (loaded,) = problems(tmp_path, projects.IMAGE.format(repository="small") + f"sources:\n  vllm: {source}\n")
    assert message in loaded
