# ruff: noqa: RUF001
"""Recipes: their text, how they are found, other formats, notes, and what a page changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.base.errors import FileProblemsError, UsageError
from builder.base.project import Project
from builder.commands import recipes
from builder.definitions import build_target, recipe
from tests import projects, shipped_files
from tests.definitions.recipes import recipe_texts

if TYPE_CHECKING:
    from pathlib import Path


def test_a_recipe_of_the_community_loads_unchanged(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    projects.write(
        tmp_path / "recipes/shared.yaml",
        """\
# Recipe as users share it
recipe_version: "1"
name: Qwen3.5-122B
description: vLLM serving Qwen3.5-122B
model: Intel/Qwen3.5-122B-A10B-int4-AutoRound
solo_only: true
container: small
build_args:
  - --tf5
mods:
  - mods/template
defaults:
  port: 8000
  max-num-seqs: 16
  speculative_config: '{"method": "mtp", "num_speculative_tokens": 3}'
env:
  VLLM_MARLIN_USE_ATOMIC_ADD: 1
command: |
  vllm serve Intel/Qwen3.5-122B-A10B-int4-AutoRound \\
  --max-num-seqs {max-num-seqs}

#  --language-model-only
""",
    )
    loaded = recipe.load_recipe(project, tmp_path / "recipes/shared.yaml")
    assert loaded.file == "recipes/shared.yaml"
    assert loaded.model == "Intel/Qwen3.5-122B-A10B-int4-AutoRound"
    assert loaded.mods == ("mods/template",)
    assert loaded.ignored_build_args == ("--tf5",)
    assert loaded.defaults["max-num-seqs"] == 16


def test_every_shipped_recipe_says_what_of_it_was_tested() -> None:
    for name, shipped in recipe.readable_recipes(shipped_files.project()):
        text = " ".join(line.lstrip("# ") for line in shipped.text.splitlines() if line.startswith("#"))
        assert ("Tested: " in text, "Not tested: " in text) == (True, True), name


def test_lists_and_mappings_may_be_empty(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    projects.write(tmp_path / "recipes/r.yaml", "name: x\ncontainer: small\ncommand: vllm serve x\nmods:\nenv:\n")
    assert recipe.load_recipe(project, tmp_path / "recipes/r.yaml").mods == ()


@pytest.mark.parametrize(
    "model", ["Org/M", "m", "unsloth/Qwen3-0.6B-GGUF:Q4_K_M", "unsloth/Qwen3-0.6B-GGUF:UD-Q4_K_XL"]
)
def test_what_a_model_is_called(tmp_path: Path, model: str) -> None:
    loaded = recipe_texts.read(tmp_path, f"name: x\nmodel: {model}\ncontainer: small\ncommand: vllm serve {model}\n")
    assert loaded.recipe is not None
    assert loaded.recipe.model == model


@pytest.mark.parametrize("model", ["Org/M:7", "Org/M:", "Org/M:Q4:Q5", "Org/M:../Q4", "m:latest", "Org/M:Q4/x"])
def test_what_no_model_is_called(tmp_path: Path, model: str) -> None:
    loaded = recipe_texts.read(tmp_path, f"name: x\nmodel: {model}\ncontainer: small\ncommand: vllm serve x\n")
    assert [problem.location.line for problem in loaded.problems] == [2]


def test_every_key_is_read(tmp_path: Path) -> None:
    text = (
        "recipe_version: 1\nname: x\ndescription: d\nmodel: Org/M\nmodel_revision: abc\ndraft_model: Org/D\n"
        "container: small\nbuild_args: [--a, 1]\nmods: [mods/m]\ndefaults: {a: 1, b: 0.5, c: true, d: }\n"
        "env: {E: 1}\nvolumes: ['~/models:/models:ro', /a b:/c]\ncommand: x\ncluster: ray\nsolo_only: false\n"
        "cluster_only: true\n"
    )
    loaded = recipe_texts.read(tmp_path, text).recipe
    assert loaded is not None
    assert (loaded.name, loaded.description, loaded.model, loaded.revision) == ("x", "d", "Org/M", "abc")
    assert (loaded.draft_model, loaded.container, loaded.ignored_build_args) == ("Org/D", "small", ("--a", "1"))
    assert (loaded.mods, loaded.defaults) == (("mods/m",), {"a": 1, "b": 0.5, "c": True, "d": None})
    assert (loaded.env, loaded.command, loaded.solo_only, loaded.cluster_only) == ({"E": 1}, "x", False, True)
    assert (loaded.volumes, loaded.cluster) == (("~/models:/models:ro", "/a b:/c"), "ray")
    assert str(loaded.location("defaults", "c")) == "r.yaml:10:26"


@pytest.mark.parametrize(
    ("container", "repository", "number"),
    [("small", "small", None), ("small:7", "small", 7), ("host:5000/small", "host:5000/small", None)],
)
def test_a_container_may_be_a_number(tmp_path: Path, container: str, repository: str, number: int | None) -> None:
    loaded = recipe_texts.read(tmp_path, f"name: x\ncontainer: {container}\ncommand: x\n").recipe
    assert loaded is not None
    assert (loaded.repository, loaded.number) == (repository, number)


@pytest.mark.parametrize(
    "container",
    ["nvcr.io/nvidia/vllm:26.01-py3", "ghcr.io/o/i_n__a-b:V1@sha256:" + "a" * 64, "[::1]:5000/a/b", "localhost:5000/x"],
)
def test_a_container_may_be_any_image(tmp_path: Path, container: str) -> None:
    assert recipe_texts.problem_lines(tmp_path, f"name: x\ncontainer: '{container}'\ncommand: x\n") == []


@pytest.mark.parametrize(
    "container",
    ["--privileged", "a\\nb", "a b", "a:", "a@sha256:1", "$(id)", "a;id", "a/../b", "A/B/C", "a:b:c", "a\\u2028b"],
)
def test_a_container_that_docker_could_not_name_is_refused(tmp_path: Path, container: str) -> None:
    (line,) = recipe_texts.problem_lines(tmp_path, f'name: x\ncontainer: "{container}"\ncommand: x\n')
    assert "does not have the expected form; expected: the repository" in line


PASTED = """\
name: Model
container: small
mods:

  • mods/template

defaults:
port: 8000
max-seqs: 1
env:
HF_HUB_OFFLINE: 1
command: |
vllm serve Org/M
\u2013port {port}
\u2013speculative-config \u2018{{“n”: 1}}\u2019
\u2013max-num-seqs {max-seqs}
recipe_version: \u20181\u2019
solo: true
"""


def test_a_pasted_recipe_gives_one_problem(tmp_path: Path) -> None:
    (problem,) = recipe_texts.problem_lines(tmp_path, PASTED)
    assert (
        problem
        == "r.yaml:5:3: this recipe was pasted from a web page; to correct it: `builder recipes add --mend r.yaml`"
    )


def test_a_recipe_with_problems_does_not_load(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    projects.write(tmp_path / "recipes/r.yaml", "name: x\ncontainer: small\ndefaults:\nport: 1\ncommand: x {port}\n")
    with pytest.raises(FileProblemsError, match=r"r\.yaml:4:1: this recipe was pasted from a web page"):
        recipe.load_recipe(project, tmp_path / "recipes/r.yaml")


def test_text_that_is_no_recipe_at_all(tmp_path: Path) -> None:
    assert recipe_texts.problem_lines(tmp_path, "just text\n") == [
        'r.yaml:1:1: "just text" is not a mapping (`key: value` lines)'
    ]
    (problem,) = recipe_texts.problem_lines(tmp_path, "name: [\n")
    assert problem.startswith("r.yaml:2:1: ")


@pytest.mark.parametrize("volume", ["models", "~/models:models", ":/models", "~/models:/models:rx", "a:/b:ro:/c"])
def test_a_volume_that_is_none(tmp_path: Path, volume: str) -> None:
    (problem,) = recipe_texts.problem_lines(tmp_path, f"name: x\ncontainer: c\nvolumes: ['{volume}']\ncommand: x\n")
    assert problem.startswith("r.yaml:3:11: `volumes.0`: ")
    assert "SRC:DST or SRC:DST:ro" in problem


@pytest.mark.parametrize("cluster", ["mpi", "no", "[ray]"])
def test_what_joins_several_machines_is_ray_or_nothing(tmp_path: Path, cluster: str) -> None:
    (problem,) = recipe_texts.problem_lines(tmp_path, f"name: x\ncontainer: c\ncluster: {cluster}\ncommand: x\n")
    assert problem.startswith("r.yaml:3:1: `cluster`: ")


def test_a_name_that_no_variable_can_have(tmp_path: Path) -> None:
    (problem,) = recipe_texts.problem_lines(tmp_path, "name: x\ncontainer: c\ncommand: x\nenv:\n  A: 1\n  b-c: 1\n")
    assert problem == "r.yaml:6:3: `b-c` is not a valid name here: names must match `^[A-Za-z_][A-Za-z0-9_]*$`"


RECIPE = "name: x\ncontainer: small\ncommand: vllm serve x\n"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = projects.make(tmp_path)
    for name in ("4x/big.yaml", "4x/chat.yaml", "8x/deep/other.yml", "8x/twice.yaml", "4x/twice.yaml", "b.yml"):
        projects.write(project.recipes / name, RECIPE)
    projects.write(project.recipes / ".hidden/x.yaml", "no recipe")
    projects.write(project.recipes / "README.md", "no recipe")
    return project


def test_names_say_the_folder(project: Project) -> None:
    names = ("4x/big", "4x/chat", "4x/twice", "8x/deep/other", "8x/twice", "b", "chat")
    assert recipe.recipe_names(project) == names
    for hostile in ("x\nwhat to do: run it", "\x1b[31mred", "\u202etxt"):
        (project.recipes / f"{hostile}.yaml").touch()
    assert recipe.recipe_names(project) == names


@pytest.mark.parametrize(
    ("text", "file"),
    [
        ("chat", "chat.yaml"),
        ("chat.yaml", "chat.yaml"),
        ("recipes/chat", "chat.yaml"),
        ("4x/chat", "4x/chat.yaml"),
        ("4x/chat.yaml", "4x/chat.yaml"),
        ("recipes/4x/chat.yaml", "4x/chat.yaml"),
        ("./recipes/4x/chat", "4x/chat.yaml"),
        ("big", "4x/big.yaml"),
        ("big.yaml", "4x/big.yaml"),
        ("other", "8x/deep/other.yml"),
        ("deep/other", "8x/deep/other.yml"),
        ("b", "b.yml"),
        ("b.yml", "b.yml"),
    ],
)
def test_a_recipe_is_found_by_path_and_by_name(project: Project, text: str, file: str) -> None:
    recipe = build_target.find_target(project, text).recipe
    assert recipe is not None
    assert recipe.file == f"recipes/{file}"
    (checked,) = recipes.check_recipes(project, (text,))
    assert checked.file == recipe.file


@pytest.mark.parametrize("text", ["nothing", "hidden/x", "README.md", "4x", "", "."])
def test_what_is_no_recipe_is_not_found(project: Project, text: str) -> None:
    assert recipe.find_recipe(project, text) is None


def test_a_path_counts_from_the_project_and_from_here(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path.parent / f"{tmp_path.name}-elsewhere"
    projects.write(elsewhere / "x/mine.yaml", RECIPE)
    monkeypatch.chdir(elsewhere)
    for text in ("x/mine", "x/mine.yaml", str(elsewhere / "x/mine")):
        path = recipe.find_recipe(project, text)
        assert path is not None
        assert path.resolve() == elsewhere / "x/mine.yaml"


def test_a_name_that_several_have_is_refused_with_all_of_them(project: Project) -> None:
    with pytest.raises(UsageError, match=r"recipes/4x/twice\.yaml, recipes/8x/twice\.yaml") as caught:
        recipe.find_recipe(project, "twice")
    assert "folder" in caught.value.hint


@pytest.mark.slow
def test_a_folder_is_checked_with_all_that_is_in_it(project: Project) -> None:
    assert [checked.file for checked in recipes.check_recipes(project, ("4x",))] == [
        "recipes/4x/big.yaml",
        "recipes/4x/chat.yaml",
        "recipes/4x/twice.yaml",
    ]
    assert len(recipes.check_recipes(project, ())) == 7


@pytest.mark.slow
def test_recipes_that_cannot_be_read_hide_no_other(project: Project) -> None:
    projects.write(project.recipes / "a.yaml", "name: [\n")
    (project.recipes / "c.yaml").write_bytes(b"\xff")
    assert [name for name, _ in recipe.readable_recipes(project)] == [
        "4x/big",
        "4x/chat",
        "4x/twice",
        "8x/deep/other",
        "8x/twice",
        "b",
        "chat",
    ]


SPARKRUN = """\
recipe_version: "2"
model: Org/M
runtime: sglang
min_nodes: 2
metadata:
  description: d
defaults:
  port: 30000
runtime_config:
  mods: [a]
"""


def test_a_recipe_for_another_runtime_is_one_problem(tmp_path: Path) -> None:
    assert recipe_texts.problem_lines(tmp_path, SPARKRUN) == [
        "r.yaml:3:1: this recipe is for the runtime `sglang`; builder serves only with vLLM"
    ]


@pytest.mark.parametrize(
    "head",
    [
        *("recipe_version: 3\n", "recipe_version: '4.0'\n", "version: 2\n", "recipe_version: '1'\nruntime: vllm-ray\n"),
        *("runtime: vllm\n", "recipe_version: '1'\nbuilder: eugr\n", "name: x\nmetadata: {}\n"),
    ],
)
def test_what_tells_version_2(tmp_path: Path, head: str) -> None:
    parsed = recipe_texts.read(tmp_path, f"{head}model: Org/M\ncommand: x\n")
    assert parsed.recipe
    assert parsed.recipe.version == 2


def test_a_recipe_of_version_1_may_have_its_keys(tmp_path: Path) -> None:
    text = "recipe_version: 1\nname: x\ncontainer: c\nruntime: vllm\nmetadata:\n  a: b\ncommand: x\nmin_nodes: 1\n"
    parsed = recipe_texts.read(tmp_path, text)
    assert (parsed.problems, parsed.recipe is None) == ((), False)
    assert [str(note) for note in parsed.notes] == [
        f"r.yaml:{line}:1: unknown key `{key}`; it is ignored"
        for line, key in ((4, "runtime"), (5, "metadata"), (8, "min_nodes"))
    ]


@pytest.mark.parametrize("version", ["'9'", "x", "1.5"])
def test_a_version_that_is_not_known_is_a_note(tmp_path: Path, version: str) -> None:
    parsed = recipe_texts.read(tmp_path, f"recipe_version: {version}\nname: x\ncontainer: c\ncommand: x\n")
    assert parsed.recipe is not None
    assert [note.location.line for note in parsed.notes] == ([] if version == "1.5" else [1])


MINIMAL = "name: x\ncontainer: c\ncommand: x\n"


def notes(folder: Path, text: str) -> list[str]:
    parsed = recipe_texts.read(folder, text)
    assert parsed.recipe is not None, parsed.problems
    return [str(note) for note in parsed.notes]


def test_a_key_that_stands_twice_is_told(tmp_path: Path) -> None:
    text = f"{MINIMAL}container: c\ndefaults:\n  port: 1\n  tp: 2\n  port: 2\n"
    assert notes(tmp_path, text) == [
        "r.yaml:4:1: `container` is already set in line 2, to the same value",
        "r.yaml:8:3: `defaults.port` CONTRADICTS line 6: the last value is used: 2, not 1",
    ]


def test_of_blocks_the_last_counts_as_a_whole(tmp_path: Path) -> None:
    text = f"{MINIMAL}env: {{A: 1}}\nenv: {{B: 1}}\n"
    assert notes(tmp_path, text) == [
        "r.yaml:5:1: `env` CONTRADICTS line 4: the last value is used as a whole, and the earlier value is ignored"
    ]
    loaded = recipe_texts.read(tmp_path, text).recipe
    assert loaded is not None
    assert loaded.env == {"B": 1}


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("builder", "it is ignored"),
        ("min_nodes", "it is ignored"),
        ("solo", "did you mean `solo_only`?"),
        ("default", "did you mean `defaults`?"),
        ("Mods", "it is ignored"),
        ("containers", "it is ignored"),
    ],
)
def test_an_unknown_key_is_told_with_what_is_near_and_lacking(tmp_path: Path, key: str, said: str) -> None:
    assert notes(tmp_path, f"{MINIMAL}{key}: 1\n") == [f"r.yaml:4:1: unknown key `{key}`; {said}"]


def test_a_key_that_is_needed_and_misspelled(tmp_path: Path) -> None:
    parsed = recipe_texts.read(tmp_path, "name: x\ncontainer: c\ncomand: x\n")
    assert [str(problem) for problem in parsed.problems] == ["r.yaml:1:1: the key `command` is missing"]
    assert [str(note) for note in parsed.notes] == ["r.yaml:3:1: unknown key `comand`; did you mean `command`?"]


@pytest.mark.parametrize(
    ("text", "typed"),
    [
        ("env: “x”", 'env: "x"'),
        ("env: ‘x", "env: 'x"),
        ("env: «x", 'env: "x'),
        ("mods:\n  • a", "mods:\n  - a"),
        ("mods:\n  – a", "mods:\n  - a"),
        ("mods:\n  * a", "mods:\n  - a"),
        ("mods:\n  •\u00a0a", "mods:\n  - a"),
        ("command: |\n  –host x", "command: |\n  --host x"),
        ("command: |\n  —host x", "command: |\n  --host x"),
        ("command: |\n  ––host x", "command: |\n  --host x"),
        ("command: |\n  –-host x", "command: |\n  --host x"),
        ("command: |\n  ‑‑host x", "command: |\n  --host x"),
        ("command: |\n  –tp 2", "command: |\n  -tp 2"),
        ("command: |\n  –cc.mode=x", "command: |\n  -cc.mode=x"),
        ("command: |\n  x M–7B", "command: |\n  x M-7B"),
        ("command: |\n  x\u00a0\u200b–host ‘b’", "command: |\n  x --host 'b'"),
        ("container: vllm‑node", "container: vllm-node"),
        ("env:\n  A:\u00a01", "env:\n  A: 1"),
        ("env:\n\u3000A: 1", "env:\n A: 1"),
        ("\u200bcommand: x", "command: x"),
        ("env:\n  A\ufeff: 1", "env:\n  A: 1"),
        ("env:\n\tA: 1", "env:\n  A: 1"),
        ("command: |\n\tx", "command: |\n  x"),
        # JSON is looked at though it is quoted.
        ("defaults:\n  spec: '{“n”: –3}'", "defaults:\n  spec: '{\"n\": -3}'"),
        ("```yaml\nname: x\ncommand: |\n  x\n```\n", "\nname: x\ncommand: |\n  x\n\n"),
        ("~~~\ncommand: |\nx\n~~~", "\ncommand: |\n  x\n"),
    ],
)
def test_what_a_page_changed_is_what_was_typed(text: str, typed: str) -> None:
    assert recipe.as_typed(text) == typed


@pytest.mark.parametrize(
    "text",
    [
        "# “quotes”, – dashes • and more",
        "description: “all of it",
        "description: serves “it” – and so on…",
        "description: >\n  “two” – lines\n  • of prose",
        "env:\n  A: 1  # – as measured",
        "defaults:\n  served: 'größe – “x”'",
        'defaults:\n  served: "größe – ‘x’"',
        "defaults:\n  greeting: don’t",
        "defaults:\n  greeting: I’m Zoë’s",
        "command: |\n  vllm serve x --system 'say “hi” – now'",
        "command: |\n  # “switched off” –host\n  vllm serve größe 模型",
        "command: |\n  vllm serve x \\\n  \t--a 1",
        "mods:\n  - a\n",
        "defaults: &a {x: 1}\nenv: *a",
    ],
)
def test_prose_and_quoted_text_may_hold_such_characters(text: str) -> None:
    assert recipe.as_typed(text) == text
    assert recipe.pasted_problem(text, "r.yaml") is None


@pytest.mark.parametrize(
    ("text", "typed"),
    [
        (
            "defaults:\nport: 1\n\n# why\nmax-num-seqs: 2\nenv:\nA: 1\ncommand: x {port}\n",
            "defaults:\n  port: 1\n\n# why\n  max-num-seqs: 2\nenv:\n  A: 1\ncommand: x {port}\n",
        ),
        (
            "defaults:\n  port: 1\nseqs: 2\ncommand: x --n {seqs}\n",
            "defaults:\n  port: 1\n  seqs: 2\ncommand: x --n {seqs}\n",
        ),
        ("env:\n  A: 1\nVLLM_X: 2\nmin_nodes: 2\n", "env:\n  A: 1\n  VLLM_X: 2\nmin_nodes: 2\n"),
        (
            "command: |\nx \\\n--a 1 \\\n# --b\n\n--c '{key: 1}'\n\n# the end\nname: x\n",
            "command: |\n  x \\\n  --a 1 \\\n  # --b\n\n  --c '{key: 1}'\n\n# the end\nname: x\n",
        ),
        # A comment at the margin would end the command.
        ("command: |\n  x \\\n# --b\n  --c\n#  --d\n", "command: |\n  x \\\n  # --b\n  --c\n#  --d\n"),
    ],
)
def test_lines_at_the_margin_belong_to_the_key_above(text: str, typed: str) -> None:
    assert recipe.as_typed(text) == typed


@pytest.mark.parametrize(
    "text",
    [
        "defaults: {port: 1}\nnonsense: 2\n",
        "defaults:\n  port: 1\ncommand: x\n",
        "defaults:\n  port: 1\ndesciption: a typing error\n",
        "mods:\n- a\n- b\n",
        "command: |\n  x\n\n#  --y\n",
        "command: x\n",
        "command: |\n  x\n\n  # y\n",
        "env:\n  A: 1\nmetadata:\n  author: ann\ncommand: x\n",
        "env:\nruntime_version: 3\ncommand: x\n",
        "defaults:\n  port: 1\nruntime_version: 3\nmin_nodes: 2\ncommand: x\n",
        "env:\n  A: 1\npre_exec:\n- mkdir x\n- touch y\ncommand: x\n",
        "command: |\n  x \\\n  --y\nmetadata:\n  author: ann\n",
        "command: |\n  x\nmin_nodes: 2\nbenchmark: {a: 1}\n",
    ],
)
def test_what_has_not_lost_its_indentation_stays(text: str) -> None:
    assert recipe.as_typed(text) == text


@pytest.mark.slow
@given(st.text("ab –—“”\u200b\u00a0\t-:'\n", max_size=60))
def test_what_was_corrected_needs_no_correction(body: str) -> None:
    for text in (f"command: |\n{body}\n", f"env:\n{body}\n", f"name: {body}\nmods:\n{body}\n"):
        once = recipe.as_typed(text)
        assert len(once.split("\n")) == len(text.split("\n"))
        letters = str.maketrans("", "", "".join({*once, *text} - {"a", "b"}))
        assert once.translate(letters) == text.translate(letters)


@pytest.mark.parametrize(
    ("command", "mended"),
    [
        ("vllm serve x\n--port 1\n--host h", "vllm serve x \\\n  --port 1 \\\n  --host h"),
        ("vllm serve x \\  \n  --port 1", "vllm serve x \\\n  --port 1"),
        ("echo a\nvllm serve x", "echo a\n  vllm serve x"),
        ("vllm serve x\n\n--port 1", "vllm serve x\n\n  --port 1"),
        ("x --p 'be kind\n  - and short'\n  --q", "x --p 'be kind\n  - and short' \\\n  --q"),
        ("vllm serve x # why\n--port 1", "vllm serve x # why\n  --port 1"),
    ],
)
def test_the_backslashes_of_a_command_come_back_where_an_option_follows(command: str, mended: str) -> None:
    text = f"name: x\ncommand: |\n  {command}\n"
    assert recipe.mended(text) == f"name: x\ncommand: |\n  {mended}\n"


def test_a_fence_alone_is_named() -> None:
    told = recipe.pasted_problem("```yaml\nname: x\n```\n", "r.yaml")
    assert str(told) == (
        "r.yaml:1:1: this recipe was pasted from a web page; to correct it: `builder recipes add --mend r.yaml`"
    )
    assert recipe.pasted_problem("name: x\ncommand: |\n  x\n  ```\n  y\n", "r.yaml") is None


def test_one_problem_stands_for_all_of_a_page() -> None:
    told = recipe.pasted_problem("mods:\n  • a\nenv:\nA: “1”\ncommand: |\n–x\n", "my recipes/r.yaml")
    assert str(told) == (
        "my recipes/r.yaml:2:3: this recipe was pasted from a web page; to correct it: "
        "`builder recipes add --mend 'my recipes/r.yaml'`"
    )
