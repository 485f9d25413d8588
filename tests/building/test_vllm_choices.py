"""The parsers and load formats that a pinned vLLM knows, from a real mirror and a cached wheel."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from builder.base import files
from builder.base.errors import FileProblemsError, SourceError
from builder.base.project import Project
from builder.building import vllm_choices
from builder.commands import recipes
from builder.definitions import image, recipe
from builder.lock import text
from builder.lock.model import GitPin, Lock, LockedPackage, Pins, PythonPin, WheelPin
from builder.pins import packages
from builder.pins.packages import Package
from builder.sources import mirror, wheels
from builder.sources.patches import CandidatePatch, PackageFiles
from tests import projects, shared
from tests.mods import releases

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path


TOOLS, REASONING, FORMATS, METHODS = vllm_choices._PATHS
# As vLLM 0.32 writes them, with fewer values.
FILES = {
    TOOLS: '_TOOL_PARSERS_TO_REGISTER = {\n    "hermes": (  # name\n        "hermes_tool_parser",  # filename\n'
    '        "Hermes2ProToolParser",  # class_name\n    ),\n    "qwen3_coder": ("b", "B"),\n}\n',
    REASONING: '_REASONING_PARSERS_TO_REGISTER = {\n    "qwen3": (\n        "qwen3_reasoning_parser",\n'
    '        "Qwen3ReasoningParser",\n    ),\n}\n',
    METHODS: 'MTPModelTypes = Literal["mtp"]\nEagleModelTypes = Literal["eagle3", MTPModelTypes]\n'
    'SpeculativeMethod = Literal[\n    "ngram",\n    EagleModelTypes,\n]\n'
    'DraftSampleMethod = Literal["greedy", "probabilistic"]\n',
    FORMATS: '_LOAD_FORMAT_TO_MODEL_LOADER: dict[str, type[BaseModelLoader]] = {\n    "auto": DefaultModelLoader,\n'
    '    "safetensors": DefaultModelLoader,\n}\n',
}
COMMAND = "vllm serve x --tool-call-parser {} --load-format {} --enable-auto-tool-choice"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = projects.make(tmp_path / "project")
    path = project.dockerfiles / "small/image.yaml"
    upstream = tmp_path / "upstream"
    for file, content in FILES.items():
        projects.write(upstream / file, content)
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"]):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=upstream, check=True)
    python = "python: {version: '3.12', packages: [fastloader]}\n"
    sources = "sources: {vllm: {git: 'https://host/vllm.git', ref: main}}\n"
    projects.write(path, path.read_text(encoding="utf-8") + sources + python)
    return project


def commit_of(project: Project) -> tuple[str, str]:
    upstream = project.root.parent / "upstream"
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=upstream, check=True, capture_output=True, text=True)
    return upstream.as_uri(), done.stdout.strip()


def chain(project: Project) -> list[image.ImageDefinition]:
    return [image.load_image(project, "small", "linux/arm64")]


def package(files: dict[str, str], *patches: bytes) -> Package:
    def read(paths: Collection[str]) -> dict[str, bytes]:
        return {path: files[path].encode() for path in paths if path in files}

    return Package("1", "vllm 1", PackageFiles("vllm", read, tuple(CandidatePatch("p", patch) for patch in patches)))


def test_what_a_package_registers_is_read() -> None:
    choices = vllm_choices.of_package(package(FILES))
    assert choices.values == {
        "tool-call-parser": {"hermes", "qwen3_coder"},
        "reasoning-parser": {"qwen3"},
        "load-format": {"auto", "safetensors"},
        "speculative method": {"ngram", "mtp", "eagle3"},
    }


@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.20.0", "0.33.0"])
def test_what_a_release_registers_is_read(version: str) -> None:
    reach = releases.releases(shared.folder() / "wheels").reach
    values = vllm_choices.of_package(packages.released(reach, (), "vllm", version)).values
    assert values["tool-call-parser"] > {"hermes", "qwen3_coder", "openai"}
    assert values["reasoning-parser"] > {"qwen3", "deepseek_r1"}
    assert values["load-format"] > {"auto", "safetensors", "fastsafetensors", "dummy"}
    assert values["speculative method"] > {"ngram", "mtp", "eagle3", "dflash"}


def test_a_draft_model_takes_a_method_that_vllm_knows(project: Project) -> None:
    config = '--speculative-config \'{{"method": "dflash", "model": "z-lab/D"}}\''
    projects.write(project.recipes / "r.yaml", f"name: x\ncontainer: small\ncommand: |\n  vllm serve x {config}\n")
    loaded = recipe.load_recipe(project, project.recipes / "r.yaml")
    with pytest.raises(FileProblemsError, match=r"vllm 1 has no speculative method `dflash`; known: eagle3"):
        vllm_choices.require_known(project, loaded, package(FILES))


@pytest.mark.parametrize(
    "text", ["", "x = 1\n", "_TOOL_PARSERS_TO_REGISTER = {**y}\n", "_TOOL_PARSERS_TO_REGISTER = f()\n", "((\n"]
)
def test_what_cannot_be_told_is_left_out(text: str) -> None:
    assert "tool-call-parser" not in vllm_choices.of_package(package({**FILES, TOOLS: text})).values


def test_a_file_that_a_pull_request_changes_is_left_out() -> None:
    patch = f"--- a/{TOOLS}\n+++ b/{TOOLS}\n".encode()
    left = {"reasoning-parser", "load-format", "speculative method"}
    assert set(vllm_choices.of_package(package(FILES, patch)).values) == left


@pytest.mark.slow
def test_a_mirror_tells_without_its_upstream(project: Project) -> None:
    url, commit = commit_of(project)
    lock = Lock(pins={"small": {"linux/arm64": Pins(sources={"vllm": GitPin(url, "main", commit, "0.33.0", "")})}})
    assert vllm_choices.at_hand(project, lock, chain(project)) is None
    mirror.read_files(mirror.locate(project.mirrors, url), commit, FILES)
    shutil.rmtree(url.removeprefix("file://"))
    choices = vllm_choices.at_hand(project, lock, chain(project))
    assert choices is not None
    assert (choices.label, len(choices.values)) == ("vLLM 0.33.0", 4)


def test_a_wheel_tells_what_was_read_of_it(project: Project) -> None:
    locked = LockedPackage("vllm", "0.32.0", ("a" * 64, "b" * 64))
    pins = Pins(sources={"vllm": WheelPin("vllm", "0.32.0")}, python=PythonPin((), "", (locked,)))
    lock = Lock(pins={"small": {"linux/arm64": pins}})
    assert vllm_choices.at_hand(project, lock, chain(project)) is None
    folder = project.state / "wheels" / ("b" * 64)
    files.write_state(wheels._file(folder, TOOLS), FILES[TOOLS].encode())
    choices = vllm_choices.at_hand(project, lock, chain(project))
    assert choices is not None
    assert (choices.label, set(choices.values)) == ("vLLM 0.32.0", {"tool-call-parser"})


def recipe_file(project: Project, parser: str, load_format: str, mods: str = "[]") -> Path:
    path = project.recipes / "r.yaml"
    command = COMMAND.format(parser, load_format)
    projects.write(path, f"name: x\ncontainer: small\nmods: {mods}\ncommand: {command}\n")
    return path


def required(project: Project, *names: str) -> list[str]:
    loaded = recipe.load_recipe(project, recipe_file(project, *names))
    try:
        vllm_choices.require_known(project, loaded, package(FILES))
    except FileProblemsError as error:
        return error.message.splitlines()
    return []


def test_a_name_that_vllm_does_not_know_is_told_before_a_build(project: Project) -> None:
    assert required(project, "qwen3_codr", "tarball") == [
        "recipes/r.yaml:4:42: vllm 1 has no --tool-call-parser `qwen3_codr`; did you mean `qwen3_coder`?",
        "recipes/r.yaml:4:67: vllm 1 has no --load-format `tarball`; known: auto, safetensors",
    ]


@pytest.mark.parametrize(
    "names",
    [
        ("hermes", "auto"),
        ("mine --tool-parser-plugin /x.py", "auto"),
        ("hermes", "fastloader"),
        ("mine", "auto", "[missing]"),
    ],
)
def test_names_that_are_known_or_may_be_added(project: Project, names: tuple[str, ...]) -> None:
    assert required(project, *names) == []


def test_a_parser_that_is_not_used_is_no_problem(project: Project) -> None:
    path = recipe_file(project, "nonsense", "auto")
    path.write_text(path.read_text(encoding="utf-8").replace(" --enable-auto-tool-choice", ""), encoding="utf-8")
    vllm_choices.require_known(project, recipe.load_recipe(project, path), package(FILES))


def test_a_vllm_that_cannot_be_read_is_left_to_the_launch(project: Project) -> None:
    def read(_: Collection[str]) -> dict[str, bytes]:
        raise SourceError("no network")

    loaded = recipe.load_recipe(project, recipe_file(project, "nonsense", "auto"))
    vllm_choices.require_known(project, loaded, Package("1", "vllm 1", PackageFiles("vllm", read)))


def test_recipes_check_tells_it_where_the_files_are_here(project: Project) -> None:
    url, commit = commit_of(project)
    pin = GitPin(url, "main", commit, "0.33.0", "2026-01-01T00:00:00Z")
    lock = Lock(pins={"small": {"linux/arm64": Pins(sources={"vllm": pin})}})
    projects.write(project.lock, text.dump_lock(lock))
    recipe_file(project, "nonsense", "auto")
    assert recipes.check_recipes(project, ("r",))[0].problems == ()
    mirror.read_files(mirror.locate(project.mirrors, url), commit, FILES)
    (problem,) = recipes.check_recipes(project, ("r",))[0].problems
    assert problem.message.startswith("vLLM 0.33.0 has no --tool-call-parser `nonsense`; known: hermes,")
