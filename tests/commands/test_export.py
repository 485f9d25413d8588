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
from builder.base.errors import FileProblemsError, UsageError
from builder.base.project import Project
from builder.commands.recipes import FORMATS, export_recipe
from builder.definitions import command
from builder.definitions.recipe import load_recipe, parse_recipe
from builder.lock import lock_file
from builder.lock.model import ImageName, Model, Pairing
from builder.lock.text import dump_lock
from builder.serving.preparation import ServeRequest
from tests import locks, projects

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from builder.definitions.recipe import Recipe


NO_HOME = {"HOME": "/home/ann"}


@pytest.fixture
def project(tmp_path: Path) -> Project:
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


def test_llama_swap_starts_each_model_from_its_number(project: Project) -> None:
    exported = export_recipe(project, "llama-swap", ServeRequest("", {}), NO_HOME)
    document = yaml.safe_load(exported.texts[""])
    assert sorted(document["models"]) == ["Org/Model-1B", "Org/Model-2B"]
    assert " small:2 " in document["models"]["Org/Model-1B"]["cmd"]
    assert " small:1 " in document["models"]["Org/Model-2B"]["cmd"]
    assert f"builder.serve.project={project.root}" in document["models"]["Org/Model-1B"]["cmd"]
    assert exported.image == "small:2, small:1"
    assert any(line.startswith("Org/Gone is left out") for line in exported.warnings)


def test_litellm_leads_to_each_server(project: Project) -> None:
    exported = export_recipe(project, "litellm", ServeRequest("", {}), NO_HOME, "spark1")
    entries = yaml.safe_load(exported.texts[""])["model_list"]
    assert {each["model_name"]: each["litellm_params"]["api_base"] for each in entries} == {
        "Org/Model-1B": "http://spark1:8000/v1",
        "Org/Model-2B": "http://spark1:8001/v1",
        "two": "http://spark1:8001/v1",
    }


def test_one_model_alone_may_be_named(project: Project) -> None:
    exported = export_recipe(project, "llama-swap", ServeRequest("other", {"port": "9000"}), NO_HOME)
    (entry,) = yaml.safe_load(exported.texts[""])["models"].values()
    assert entry["proxy"] == "http://127.0.0.1:9000"
    with pytest.raises(UsageError, match="is gone"):
        export_recipe(project, "llama-swap", ServeRequest("Org/Gone", {}), NO_HOME)


def test_formats_of_one_model_want_its_name(project: Project) -> None:
    with pytest.raises(UsageError, match="is for one model"):
        export_recipe(project, "compose", ServeRequest("", {}), NO_HOME)


def test_nothing_paired_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no model that is paired"):
        export_recipe(projects.make(tmp_path), "litellm", ServeRequest("", {}), NO_HOME)


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
        document = yaml.safe_load(text)
        (service,) = document["services"].values()
        assert service["image"] == image
        assert not {"privileged", "cap_add", "devices", "build", "extends"} & service.keys()
        assert document.keys() == {"name", "services"}
    elif format_ == "llama-swap":
        document = yaml.safe_load(text)
        (entry,) = document["models"].values()
        assert document.keys() == {"healthCheckTimeout", "models"}
        assert re.fullmatch(r"docker stop [a-z0-9-]+", entry["cmdStop"])
        assert re.fullmatch(r"http://127\.0\.0\.1:[0-9]+", entry["proxy"])
        if "\0" not in text:
            run_with_a_docker_that_notes(folder, shlex.split(entry["cmd"]), image)
    elif format_ == "litellm":
        for entry in yaml.safe_load(text)["model_list"]:
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
            for each in FORMATS:
                request = ServeRequest("recipes/hostile.yaml", {})
                try:
                    made = export_recipe(project, each, request, {"HOME": "/home/ann"})
                except (FileProblemsError, UsageError):
                    refused.append(text)
                    continue
                exported.append(text)
                parsed = load_recipe(project, project.recipes / "hostile.yaml")
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
