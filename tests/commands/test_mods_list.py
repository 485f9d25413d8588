from __future__ import annotations

from typing import TYPE_CHECKING

from builder.commands.mods import changes, list_mods
from builder.definitions import mod
from builder.lock import lock_file
from builder.lock.model import NumberedImage, Repository
from tests import projects

if TYPE_CHECKING:
    from pathlib import Path


YAML = """\
description: A bit of everything
files: [{from: a.txt, to: .}, {from: b.txt, to: /opt/}]
patches: [{file: a.patch, package: vllm}, {file: a.patch, package: toy}]
packages: [tilelang==0.1.8]
run: run.sh
env: {A: 1, B: 2}
"""


def test_what_each_changes_is_said_in_a_few_words(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    files = {"a.txt": "a\n", "b.txt": "b\n", "a.patch": "no matter\n"}
    projects.add_mod(tmp_path, "much", "true\n", files, YAML)
    assert changes(mod.load_mod(project, "much")) == (
        "packages tilelang==0.1.8",
        "2 files",
        "2 patches to vllm, toy",
        "run.sh with the network",
        "environment A, B",
    )
    assert changes(mod.load_mod(project, "template")) == ("run.sh with the network",)


def test_definitions_recipes_and_images_that_use_one_are_named(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    for name, mods in (("lower", "[mods/own]"), ("upper", "[template]")):
        text = f"repository: {name}\ndescription: x\nplatform: host\nbase: debian:12\nmods: {mods}\n"
        projects.write(project.dockerfiles / name / "image.yaml", text)
        projects.write(project.dockerfiles / name / "Dockerfile.j2", "FROM {{ base }}\n")
    projects.add_mod(tmp_path, "own", "true\n", {}, "")
    projects.add_recipe(tmp_path, "elsewhere", "vllm-node", "Org/Other", ["template"])
    image = NumberedImage("2026-01-01T00:00:00Z", "small", "linux/amd64", "f", "h", 1, mods={"template": "sha256:0"})
    with lock_file.writing(project.lock, on_wait=lambda: None) as transaction:
        transaction.commit(transaction.lock.with_repository("small", Repository(3, 2, numbers={1: image, 2: image})))
    own, template = list_mods(project)
    assert (own.definitions, own.recipes, own.images) == (("lower",), (), ())
    assert (template.definitions, template.recipes) == (("upper",), ("chat",))
    assert template.images == ("small:1", "small:2")


def test_a_broken_mod_does_not_hide_the_others(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    projects.write(project.mods / "broken/mod.yaml", "descripton: x\n")
    broken, template = list_mods(project)
    assert broken.mod is None
    assert "mods/broken/mod.yaml:1:1: unknown key `descripton`; did you mean `description`?" in broken.problem
    assert template.problem == ""


def test_files_that_are_wrong_hide_no_other(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    projects.write(project.recipes / "a.yaml", "name: [\n")
    projects.write(project.recipes / "twice.yaml", "name: x\nname: x\ncontainer: small\nmods: [template]\ncommand: x\n")
    projects.write(project.dockerfiles / "broken/image.yaml", "repository: [\n")
    (template,) = list_mods(project)
    assert (template.definitions, template.recipes) == ((), ("chat", "twice"))
