from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.base.errors import FileProblemsError, UsageError
from builder.definitions import image
from builder.definitions.image import ServeSettings
from builder.definitions.source_patches import SourcePatch
from tests import projects, shipped_files

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
        'dockerfiles/small/image.yaml:1:1: `repository`: "Has Spaces" does not have the expected form; '
        "expected: the name under which Docker lists the image: lower-case letters and digits, with . _ - or / between "
        "them",
        'dockerfiles/small/image.yaml:3:1: `platform`: "linux/riscv" is not one of host, linux/arm64, linux/amd64; '
        "expected: linux/arm64, linux/amd64, or host for the platform of the machine that builds",
        'dockerfiles/small/image.yaml:4:1: `base`: "debian" does not have the expected form; expected: the '
        "base image with its tag, such as debian:bookworm-slim, or with the day of a dated tag: NAME@2026-09-20",
        "dockerfiles/small/image.yaml:5:1: unknown key `bass`; did you mean `base`?",
        "dockerfiles/small/image.yaml:7:3: `python.version`: 3.12 is not text (in quotes, if it looks "
        'like a number, true or false); expected: the Python in the image, in quotes: "3.12"',
        'dockerfiles/small/image.yaml:8:3: `python.packages`: "transformers" is not a list (`- value` lines); '
        "expected: Python requirements, such as transformers>=5",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", "dockerfiles/small/image.yaml:2:1: did not find expected ',' or ']'"),
        ("a: 1\na: 2\n", "dockerfiles/small/image.yaml:2:1: the key `a` is repeated"),
        ("just words", 'dockerfiles/small/image.yaml:1:1: "just words" is not a mapping (`key: value` lines)'),
        ("", "dockerfiles/small/image.yaml:1:1: is empty"),
    ],
)
def test_what_is_not_a_mapping_is_refused(tmp_path: Path, text: str, message: str) -> None:
    assert problems(tmp_path, text)[0].startswith(message)


def test_a_package_comes_from_one_index_and_a_day_exists(tmp_path: Path) -> None:
    text = """\
repository: small
description: x
platform: host
base: debian@2026-13-45
sources: {vllm: {wheel: vllm, index: "https://a.org/x"}}
python:
  version: "3.12"
  packages: []
  indexes:
    - {url: "https://b.org/x", packages: [six, vLLM]}
    - {url: "https://c.org/x", packages: [Six]}
"""
    assert problems(tmp_path, text) == [
        "dockerfiles/small/image.yaml:4:1: 2026-13-45 is not a date",
        "dockerfiles/small/image.yaml:10:48: vLLM already comes from the `index` of the source vllm",
        "dockerfiles/small/image.yaml:11:43: Six already comes from the index https://b.org/x",
    ]


@pytest.mark.parametrize(
    ("name", "is_reserved"), [("builder-work", True), ("builder-bisect-1a", True), ("builder-workshop", False)]
)
def test_a_repository_of_images_that_are_being_made_is_refused(tmp_path: Path, name: str, is_reserved: bool) -> None:
    text = projects.IMAGE.format(repository=name)
    if not is_reserved:
        assert load(tmp_path, text).repository == name
        return
    assert problems(tmp_path, text) == [
        f"dockerfiles/small/image.yaml:1:1: {name} is reserved for images that are being made: choose another name"
    ]


def test_text_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    (tmp_path / "dockerfiles/small/image.yaml").write_bytes(b"repository: x\ndescription: \xff\n")
    with pytest.raises(FileProblemsError, match=r"image\.yaml:2:1: not UTF-8 text; save the file as UTF-8$"):
        image.load_image(project, "small", "linux/amd64")


def test_a_checkout_that_is_a_link_to_itself_is_read_as_written(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    sources = "sources: {vllm: {path: loop}}\n"
    definition = load(tmp_path, projects.IMAGE.format(repository="small").replace("args:", f"{sources}args:"))
    source = definition.sources["vllm"]
    assert isinstance(source, image.GitSource)
    assert source.checkout == tmp_path / "loop"


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
    assert "exactly one of `base` (a registry image) and `from`" in problems(tmp_path, text)[0]


def test_a_source_of_the_base_image_needs_a_base_image(tmp_path: Path) -> None:
    text = "repository: x\ndescription: x\nplatform: host\nfrom: other\nsources:\n  vllm: base\n"
    assert problems(tmp_path, text) == [
        "dockerfiles/small/image.yaml:6:3: `vllm: base` takes vllm from a base image, but this image is built on the"
        " definition other: remove `vllm`"
    ]


def test_a_source_may_come_from_git(tmp_path: Path) -> None:
    text = projects.IMAGE.format(repository="small") + (
        "sources:\n  vllm: {git: 'https://example.org/vllm.git', ref: main, pulls: [40898], requirements: [r.txt]}\n"
    )
    source = image.GitSource("https://example.org/vllm.git", "main", (SourcePatch("40898"),), ("r.txt",))
    assert load(tmp_path, text).git_sources == {"vllm": source}


def test_a_pull_request_may_name_the_branch_that_it_was_opened_for(tmp_path: Path) -> None:
    pulls = "[7, {number: 8, base: releases/v1}, {number: 9}]"
    text = projects.IMAGE.format(repository="small") + (
        f"sources:\n  vllm: {{git: 'https://example.org/vllm.git', ref: main, pulls: {pulls}}}\n"
    )
    source = load(tmp_path, text).git_sources["vllm"]
    assert source.patches == (SourcePatch("7"), SourcePatch("8", base="releases/v1"), SourcePatch("9"))
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
        ("{wheel: vllm>=0.19}", '`sources.vllm.wheel`: "vllm>=0.19" does not have the expected form'),
        ("{wheel: vllm, ref: main}", "unknown key `ref`; known here: wheel, index"),
        ("{wheel: vllm, index: 'https://me:secret@example.org/simple'}", "without a login"),
        ("{git: 'https://example.org/x.git'}", "the key `ref` is missing in `sources.vllm`"),
        ("{git: 'https://example.org/x.git', ref: main, index: 'https://x'}", "unknown key `index`"),
        ("main", '`sources.vllm`: "main" is not one of base; expected: `base` if the'),
        ("{wheel: vllm}", "vllm is a Python package: set the version of Python under `python`"),
    ],
)
def test_a_source_that_is_neither_is_refused(tmp_path: Path, source: str, message: str) -> None:
    (loaded,) = problems(tmp_path, projects.IMAGE.format(repository="small") + f"sources:\n  vllm: {source}\n")
    assert message in loaded


def test_the_shipped_definitions_load() -> None:
    project = shipped_files.project()
    chains = {name: image.load_chain(project, name, "linux/arm64") for name in image.definition_names(project)}
    assert {name: [definition.name for definition in chain] for name, chain in chains.items()} == {
        "cpu": ["cpu"],
        "dflash": ["dflash"],
        "flashqla": ["dflash", "flashqla"],
        "node": ["node"],
        "node-b12x": ["node-b12x"],
        "openai": ["openai"],
        "tf5": ["tf5"],
        "tf5-wheel": ["tf5-wheel"],
    }
    repositories = {name: chain[-1].repository for name, chain in chains.items()}
    assert repositories.pop("node") == "vllm-node"
    assert repositories.pop("node-b12x") == "vllm-node-b12x"
    assert all(repository == f"vllm-node-{name}" for name, repository in repositories.items())
    assert chains["dflash"][0].git_sources["vllm"].patches == ()


def write_definition(root: Path, name: str, parent: str, platform: str = "linux/arm64") -> None:
    text = f"repository: {name}\ndescription: x\nplatform: {platform}\nfrom: {parent}\n"
    projects.write(root / "dockerfiles" / name / "image.yaml", text)
    projects.write(root / "dockerfiles" / name / "Dockerfile.j2", "FROM {{ base }}\n")


def test_a_chain_begins_with_its_outermost_parent(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    write_definition(tmp_path, "middle", "small")
    write_definition(tmp_path, "top", "middle")
    assert [definition.name for definition in image.load_chain(project, "top", "linux/arm64")] == [
        "small",
        "middle",
        "top",
    ]


def test_an_impossible_chain_is_refused_with_the_location_of_its_from(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    write_definition(tmp_path, "a", "b")
    write_definition(tmp_path, "b", "a")
    write_definition(tmp_path, "c", "small", "linux/amd64")
    write_definition(tmp_path, "d", "nothing")
    for name, message in {
        "a": "dockerfiles/b/image.yaml:4:1: `from`: `a` is itself built on this definition",
        "c": "dockerfiles/c/image.yaml:4:1: `from`: c is for linux/amd64, but small is for linux/arm64",
        "d": "dockerfiles/d/image.yaml:4:1: `from`: there is no definition `nothing`",
    }.items():
        with pytest.raises(FileProblemsError) as raised:
            image.load_chain(project, name, "linux/arm64")
        assert raised.value.message == message


def test_overrides_replace_the_values_of_the_file(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    overrides = image.Overrides("linux/arm64", {"greeting": "16"})
    (loaded,) = image.load_chain(project, "small", "linux/amd64", overrides)
    assert (loaded.platform, loaded.args) == ("linux/arm64", {"greeting": 16})


def test_an_argument_with_a_line_break_is_refused_because_it_would_begin_another_instruction(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    image_file = tmp_path / "dockerfiles/small/image.yaml"
    with pytest.raises(UsageError, match="expected a single value on one line"):
        image.load_chain(project, "small", "linux/amd64", image.Overrides(None, {"greeting": r'"a\nUSER b"'}))
    projects.write(image_file, image_file.read_text(encoding="utf-8").replace("hello", r'"a\nUSER b"'))
    with pytest.raises(FileProblemsError) as raised:
        image.load_image(project, "small", "linux/amd64")
    assert raised.value.message == (
        'dockerfiles/small/image.yaml:5:8: `args.greeting`: "a\\nUSER b" does not have the expected form; '
        "expected: text on one line, a number, or true or false"
    )


def test_a_number_of_jobs_is_no_argument_but_of_a_template_that_takes_it_itself(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    image_file = tmp_path / "dockerfiles/small/image.yaml"
    projects.write(image_file, image_file.read_text(encoding="utf-8").replace("greeting: hello", "build_jobs: 16"))

    def jobs() -> object:
        overrides = image.Overrides(None, {"build_jobs": "3"})
        return image.load_chain(project, "small", "linux/amd64", overrides)[0].args["build_jobs"]

    assert jobs() == 16
    projects.write(tmp_path / "dockerfiles/small/Dockerfile.j2", "FROM {{ base }}\nRUN make -j{{ args.build_jobs }}\n")
    assert jobs() == 3
    for value in ("0", "-1", "many", "true", "1.5"):
        with pytest.raises(UsageError, match="expected a whole number from 1 to 9999"):
            image.load_chain(project, "small", "linux/amd64", image.Overrides(None, {"build_jobs": value}))


@pytest.mark.parametrize(
    ("key", "value", "message"), [("nothing", "1", "no argument `nothing`"), ("greeting", "[1]", "not a list")]
)
def test_an_invalid_override_is_refused(tmp_path: Path, key: str, value: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        image.load_chain(projects.make(tmp_path), "small", "linux/amd64", image.Overrides(None, {key: value}))


PYTHON = """\
sources:
  vllm: {{wheel: vllm=={version}}}
python:
  version: "3.12"
  packages:
    - transformers>=5
    - {package}
  build: [cmake, "{build}"]
"""


def check(root: Path, version: str, package: str, build: str) -> None:
    project = projects.make(root)
    text = projects.IMAGE.format(repository="small") + PYTHON.format(version=version, package=package, build=build)
    projects.write(root / "dockerfiles/small/image.yaml", text)
    image.check(project, image.load_image(project, "small", "linux/amd64"))


def test_what_an_installer_takes_is_no_problem(tmp_path: Path) -> None:
    check(tmp_path, "0.19.1", "\"ray[default]; python_version > '3.8'\"", "x @ https://example.org/x.whl")


def test_every_other_is_reported_with_its_location(tmp_path: Path) -> None:
    with pytest.raises(FileProblemsError) as caught:
        check(tmp_path, "0..1", "fast safetensors", "ninja>>1")
    lines = str(caught.value).splitlines()
    locations = [line.partition(": ")[0].removeprefix("dockerfiles/small/image.yaml:") for line in lines]
    assert locations == ["7:10", "12:7", "13:18"]
    assert all("` is not a valid requirement: " in line for line in lines)


def test_white_space_around_a_requirement_is_no_part_of_it(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    python = 'python: {version: "3.12", packages: [" a >=1"], build: ["b\\t>=2 ", "c\\n"]}\n'
    projects.write(tmp_path / "dockerfiles/small/image.yaml", projects.IMAGE.format(repository="small") + python)
    wants = image.load_image(project, "small", "linux/amd64").python
    assert wants
    assert (wants.packages, wants.build) == (("a >=1",), ("b >=2", "c"))


def test_a_package_is_not_both_installed_and_left_out(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    python = 'python: {version: "3.12", packages: [a-b>=1, c], build: [A_b], without: [A.B, d]}\n'
    projects.write(tmp_path / "dockerfiles/small/image.yaml", projects.IMAGE.format(repository="small") + python)
    with pytest.raises(FileProblemsError) as caught:
        image.check(project, image.load_image(project, "small", "linux/amd64"))
    ends = ("is never installed: the package is also under `without`" for _ in range(2))
    assert [line.partition("` ")[2] for line in str(caught.value).splitlines()] == [*ends]


def test_the_defaults_suit_a_gpu(tmp_path: Path) -> None:
    assert image.serve_settings(projects.make(tmp_path), "small") == ServeSettings("all", "host", "host", "16g")
    assert image.serve_settings(projects.make(tmp_path / "b"), "gone") == ServeSettings()


def test_a_definition_inherits_from_its_parents(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    file = tmp_path / "dockerfiles/small/image.yaml"
    parent = file.read_text(encoding="utf-8") + "serve: {gpus: none, ipc: private, shm_size: 2g}\n"
    projects.write(file, parent)
    child = "repository: up\ndescription: d\nplatform: host\nfrom: small\nserve: {shm_size: 1g}\n"
    projects.write(tmp_path / "dockerfiles/up/image.yaml", child)
    assert image.serve_settings(project, "up") == ServeSettings("none", "host", "private", "1g")


def test_an_argument_of_the_template_keeps_the_entrypoint_and_children_inherit_it(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    file = tmp_path / "dockerfiles/small/image.yaml"
    projects.write(file, file.read_text(encoding="utf-8").replace("greeting: hello", "keep_entrypoint: true"))
    child = "repository: up\ndescription: d\nplatform: host\nfrom: small\n"
    projects.write(tmp_path / "dockerfiles/up/image.yaml", child)
    assert image.serve_settings(project, "up").keep_entrypoint
    projects.write(tmp_path / "dockerfiles/up/image.yaml", f"{child}args: {{keep_entrypoint: false}}\n")
    assert not image.serve_settings(project, "up").keep_entrypoint


@pytest.mark.parametrize("text", ["serve: {gpus: 2}", "serve: {shm_size: lots}", "serve: {privileged: true}"])
def test_what_cannot_be_meant_is_refused(tmp_path: Path, text: str) -> None:
    project = projects.make(tmp_path)
    file = tmp_path / "dockerfiles/small/image.yaml"
    projects.write(file, file.read_text(encoding="utf-8") + text + "\n")
    with pytest.raises(FileProblemsError, match=r"dockerfiles/small/image\.yaml:6:"):
        image.serve_settings(project, "small")


def test_the_shipped_images_need_a_gpu_but_one() -> None:
    project = shipped_files.project()
    assert image.serve_settings(project, "cpu").gpus == "none"
    assert image.serve_settings(project, "flashqla") == ServeSettings()
