from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.base.errors import FileProblemsError, UsageError
from builder.definitions import image
from tests import projects, shipped_files

if TYPE_CHECKING:
    from pathlib import Path


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
    assert chains["dflash"][0].git_sources["vllm"].pulls == ()


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
        "a": "dockerfiles/b/image.yaml:4:1: `from`: `a` is built on this one: a cycle",
        "c": "dockerfiles/c/image.yaml:4:1: `from`: c is for linux/amd64, small for linux/arm64",
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
        with pytest.raises(UsageError, match="is no number of jobs"):
            image.load_chain(project, "small", "linux/amd64", image.Overrides(None, {"build_jobs": value}))


@pytest.mark.parametrize(
    ("key", "value", "message"), [("nothing", "1", "no argument `nothing`"), ("greeting", "[1]", "not one plain")]
)
def test_an_invalid_override_is_refused(tmp_path: Path, key: str, value: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        image.load_chain(projects.make(tmp_path), "small", "linux/amd64", image.Overrides(None, {key: value}))
