from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.base.project import Project
from builder.definitions import command, recipe, recipe_problems
from tests import projects, shipped_files

if TYPE_CHECKING:
    from pathlib import Path


HYBRID = "Qwen/Qwen3.5-35B-A3B"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = projects.make(tmp_path)
    projects.add_mod(tmp_path, "opaque", "python3 change.py\n", {"change.py": "print()\n"})
    far = f"description: x\nfiles: [{{from: https://example.org/far.jinja, to: ., sha256: '{'0' * 64}'}}]\n"
    projects.add_mod(tmp_path, "far", "", {}, far)
    return project


def findings(project: Project, options: str, head: str = "", model: str = "Org/M") -> tuple[list[str], list[str]]:
    """The messages of problems and of notes."""
    text = f"name: x\n{head or 'container: small'}\ncommand: |\n  vllm serve {model} \\\n  {options}\n"
    projects.write(project.recipes / "r.yaml", text)
    loaded = recipe.load_recipe(project, project.recipes / "r.yaml")
    result = recipe_problems.find_launch_problems(
        loaded, command.render_command(loaded, {}), recipe_problems.image_facts(project, loaded)
    )
    return [str(p).removeprefix("recipes/r.yaml:") for p in result.problems], [note.message for note in result.notes]


@pytest.mark.parametrize(
    ("path", "advice"),
    [
        ("/models/m", "`volumes: [~/models:/models]` in the recipe mounts it"),
        ("/a/b/m/", "`volumes: [~/b:/a/b]` in the recipe mounts it"),
        ("/m", "`volumes: [~/m:/m]` in the recipe mounts it"),
        ("~/models/m", "mount it with `volumes:` in the recipe, and write its path inside the container"),
        ("./m", "mount it with `volumes:` in the recipe, and write its path inside the container"),
    ],
)
def test_a_model_of_this_machine_takes_a_volume(project: Project, path: str, advice: str) -> None:
    problems, _ = findings(project, "--port 1", model=path)
    assert problems == [f"4:14: no volume mounts the model's folder {path}; {advice}"]


@pytest.mark.parametrize(
    ("volume", "path"),
    [
        ("~/models:/models", "/models/m"),
        ("/a:/models/m:ro", "/models/m"),
        ("/a:/root/models/", "~/models/m"),
        ("/a:/b", "/root/.cache/huggingface/hub/x"),
    ],
)
def test_a_model_that_is_mounted(project: Project, volume: str, path: str) -> None:
    assert findings(project, "--port 1", f"container: small\nvolumes: ['{volume}']", path) == ([], [])


def test_paths_in_options_are_looked_at_too(project: Project) -> None:
    problems, _ = findings(project, '--tokenizer /t/x --speculative-config \'{{"method": "eagle3", "model": "/d/x"}}\'')
    assert [problem.partition(": ")[2].partition(";")[0] for problem in problems] == [
        "no volume mounts /t/x of --tokenizer",
        "no volume mounts /d/x of --speculative-config",
    ]


@pytest.mark.parametrize(
    ("path", "problems", "notes"), [("/models/d", 1, 0), ("/workspace/d", 0, 1), ("/workspace/chat.jinja", 0, 0)]
)
def test_a_script_may_stage_a_model_in_the_workspace(project: Project, path: str, problems: int, notes: int) -> None:
    head = "container: small\nmods: [template, opaque]"
    result = findings(project, f'--speculative-config \'{{{{"method": "x", "model": "{path}"}}}}\'', head)
    assert tuple(map(len, result)) == (problems, notes)
    assert tuple(map(len, findings(project, "--port 1", head, path))) == (problems, notes)


def test_a_model_from_the_defaults_is_told_there(project: Project) -> None:
    problems, _ = findings(project, "--port 1", "container: small\ndefaults: {model: /models/m}", "{model}")
    assert problems[0].startswith("3:12: ")
    problems, _ = findings(project, "--port 1", "container: small\nmodel: /models/m", "{model}")
    assert problems[0].startswith("3:1: ")


@pytest.mark.parametrize("mods", ["[]", "[template]"])
def test_a_template_that_nothing_brings(project: Project, mods: str) -> None:
    problems, notes = findings(project, "--chat-template x.jinja", f"container: small\nmods: {mods}")
    assert problems == ["6:19: neither the image, a mod nor a volume brings the chat template x.jinja"]
    assert notes == []


@pytest.mark.parametrize(
    ("head", "template"),
    [
        ("container: small\nmods: [template]", "chat.jinja"),
        ("container: small\nmods: [opaque, template]", "chat.jinja"),
        ("container: small\nmods: [far]", "far.jinja"),
        ("container: small\nvolumes: ['/a/x.jinja:/workspace/x.jinja']", "x.jinja"),
        ("container: small\nvolumes: ['/a:/t']", "/t/x.jinja"),
        ("container: small", "/usr/lib/python3/dist-packages/vllm/x.jinja"),
        ("container: small", "'{{{{ messages }}}}'"),
        ("container: small", "chatml"),
        ("container: small\nmods: [missing]", "x.jinja"),
    ],
)
def test_a_template_that_is_brought(project: Project, head: str, template: str) -> None:
    assert findings(project, f"--chat-template {template}", head) == ([], [])


@pytest.mark.parametrize(
    ("head", "who"),
    [
        ("container: small\nmods: [opaque]", "the script of mod opaque may bring it"),
        ("container: vllm/vllm-openai:nightly", "the image itself may bring it"),
    ],
)
def test_a_template_that_may_be_brought_is_a_note(project: Project, head: str, who: str) -> None:
    problems, notes = findings(project, "--chat-template x.jinja", head)
    assert problems == []
    (note,) = notes
    assert note.endswith(f"the chat template x.jinja, as far as is known: {who}")


def test_a_base_of_others_may_have_templates_in_its_folders(project: Project) -> None:
    assert tuple(map(len, findings(project, "--chat-template examples/x.jinja"))) == (0, 1)
    with_vllm(project, "{wheel: vllm==0.32.0}")
    assert tuple(map(len, findings(project, "--chat-template examples/x.jinja"))) == (1, 0)


def test_a_block_that_no_step_fills(project: Project) -> None:
    options = "--block-size 4096 --max-num-batched-tokens 2048"
    problems, _ = findings(project, options, model=HYBRID)
    assert problems == [
        "5:16: a block of 4096 tokens is more than a step takes (--max-num-batched-tokens 2048): "
        "vLLM refuses that for a hybrid model such as this one"
    ]
    assert findings(project, f"{options} --mamba-cache-mode align")[0] != []


@pytest.mark.parametrize(
    ("options", "model", "source"),
    [
        ("--block-size 128 --max-num-batched-tokens 2048", HYBRID, ""),
        ("--block-size 4096 --max-num-batched-tokens 2048", "Qwen/Qwen3-0.6B", ""),
        ("--block-size 4096 --max-num-batched-tokens 2048 --no-enable-prefix-caching", HYBRID, ""),
        ("--block-size 4096 --max-num-batched-tokens 2048", HYBRID, "vllm==0.32.0"),
    ],
)
def test_blocks_that_are_taken(project: Project, options: str, model: str, source: str) -> None:
    if source:
        with_vllm(project, f"{{wheel: {source}}}")
    assert findings(project, options, model=model) == ([], [])


def with_vllm(project: Project, source: str) -> None:
    path = project.dockerfiles / "small/image.yaml"
    python = "python: {version: '3.12', packages: []}\n"
    projects.write(path, f"{path.read_text(encoding='utf-8')}sources: {{vllm: {source}}}\n{python}")


@pytest.mark.parametrize(
    ("source", "fails"),
    [
        ("{git: 'https://host/vllm.git', ref: v0.21.0}", True),
        ("{git: 'https://host/vllm.git', ref: v0.21.0, pulls: [40898]}", False),
        ("{git: 'https://host/vllm.git', ref: main}", False),
        ("{wheel: vllm==0.27.1}", True),
        ("{wheel: vllm==0.32.0}", False),
    ],
)
def test_a_drafter_takes_a_vllm_that_knows_it(project: Project, source: str, *, fails: bool) -> None:
    with_vllm(project, source)
    config = '\'{{"method": "dflash", "model": "z-lab/D", "num_speculative_tokens": 5}}\''
    problems, _ = findings(project, f"--speculative-config {config}")
    assert bool(problems) == fails
    assert all("has no DFlash drafter" in problem for problem in problems)


def test_the_shipped_recipes_have_nothing_against_them() -> None:
    project = shipped_files.project()
    for name, loaded in recipe.readable_recipes(project):
        result = recipe_problems.find_launch_problems(
            loaded, command.render_command(loaded, {}), recipe_problems.image_facts(project, loaded)
        )
        assert (name, result.problems) == (name, ())
