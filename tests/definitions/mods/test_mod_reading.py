from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.base.errors import FileProblemsError, UsageError
from builder.definitions import mod
from tests import projects
from tests.definitions.mods.mod_texts import ALL_KEYS, load, problems

if TYPE_CHECKING:
    from pathlib import Path


def test_a_folder_with_only_a_run_sh_is_a_mod_and_keeps_the_network(tmp_path: Path) -> None:
    loaded = mod.load_mod(projects.make(tmp_path), "mods/template")
    assert (loaded.name, loaded.described, loaded.run, loaded.network) == ("template", False, "run.sh", True)
    assert [file.path for file in loaded.files] == ["chat.jinja", "run.sh"]


def test_all_that_is_written_is_read(tmp_path: Path) -> None:
    loaded = load(tmp_path, ALL_KEYS, "a.jinja", "tree/x", "a.patch", "b.patch", "go.sh", "look.sh")
    assert loaded.copies == (mod.FileCopy("a.jinja", "."), mod.FileCopy("tree", "/opt/tree"))
    assert loaded.patches == (mod.ModPatch("a.patch", "vllm", 1), mod.ModPatch("b.patch", "six", 0, ">=1.16"))
    assert loaded.packages == ("tilelang[extra]==0.1.8", "other==1.0.post1+cpu")
    assert (loaded.run, loaded.seconds, loaded.may_be_empty) == ("go.sh", 60, True)
    assert loaded.env == {"VLLM_X": "1", "TEXT": "a $b"}
    assert loaded.requires == {"vllm": ">=0.19,<0.23", "transformers": ">=5", "six": "<2"}
    assert (loaded.conflicts, loaded.after) == (("foe",), ("friend",))
    assert loaded.checks == (mod.ModCheck(file="a.jinja", contains="tool"), mod.ModCheck(run="look.sh"))


@pytest.mark.parametrize(
    ("more", "network"),
    [("", False), ("network: true\n", True), ("packages: [a==1]\n", True), ("network: false\n", False)],
)
def test_a_described_mod_has_no_network_unless_it_asks_or_lists_packages(
    tmp_path: Path, more: str, network: bool
) -> None:
    assert load(tmp_path, f"description: x\nenv: {{A: b}}\n{more}").network is network


@pytest.mark.parametrize(
    "package", ["a", "a>=1", "a==1.*", "a==1; x", "a==1 --index-url=x", "a @ http://x", "-r x", ""]
)
def test_packages_that_are_not_one_exact_version_are_refused(tmp_path: Path, package: str) -> None:
    (message,) = problems(tmp_path, f"description: x\npackages: ['{package}']\n")
    assert message.startswith("mods/m/mod.yaml:2:12: `packages.0`: ")
    assert "one exact version, NAME==VERSION" in message


@pytest.mark.parametrize("script", ["../x.sh", "a;b", "$(x)", "-x", "a b", "sub/x.sh"])
def test_a_script_is_called_by_a_plain_name(tmp_path: Path, script: str) -> None:
    (message,) = problems(tmp_path, f"description: x\nrun: '{script}'\n")
    assert message.startswith("mods/m/mod.yaml:2:1: `run`: ")
    assert "characters that are not allowed here" in message


@pytest.mark.parametrize("value", ["1.5", "true", '"a\\nb"', "[a]", ""])
def test_values_of_the_environment_are_text_on_one_line(tmp_path: Path, value: str) -> None:
    (message,) = problems(tmp_path, f"description: x\nenv: {{A: {value}}}\n")
    assert message.startswith("mods/m/mod.yaml:2:7: `env.A`: ")


def test_an_unknown_mod_is_named_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        mod.load_mod(projects.make(tmp_path), "templat")
    assert caught.value.hint == "did you mean template?"


@pytest.mark.parametrize("name", ["../template", "template; rm -rf /", "", "a/b"])
def test_a_name_that_is_no_folder_of_mods_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        mod.load_mod(projects.make(tmp_path), name)


@pytest.mark.parametrize("name", ["$(id)", "a b", "a,readonly", "-m", "`x`"])
def test_a_folder_whose_name_would_need_quoting_is_refused(tmp_path: Path, name: str) -> None:
    project = projects.make(tmp_path)
    projects.add_mod(tmp_path, name, "true\n", {})
    with pytest.raises(FileProblemsError) as caught:
        mod.load_mod(project, name)
    assert str(caught.value) == f"mods/{name}:1:1: a mod's name has letters, digits and . _ + - in it, and no others"


def test_the_problems_of_all_mods_are_told_at_once(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    for name in ("a", "b"):
        projects.add_mod(tmp_path, name, "", {}, "description: x\n")
    with pytest.raises(FileProblemsError) as caught:
        mod.load_all(project, ["a", "template", "mods/a", "b"])
    assert [line.partition(":")[0] for line in str(caught.value).splitlines()] == ["mods/a/mod.yaml", "mods/b/mod.yaml"]


def test_all_unknown_mods_are_told_at_once(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    with pytest.raises(UsageError) as caught:
        mod.load_all(project, ["templat", "template", "zzz"])
    assert [line.partition(" in ")[0] for line in caught.value.message.splitlines()] == [
        "no mod `templat`",
        "no mod `zzz`",
    ]
    assert caught.value.hint == "did you mean template?\nthere are: template"


def test_each_mod_is_loaded_once(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    assert [mod.name for mod in mod.load_all(project, ["template", "mods/template", "mods/template/"])] == ["template"]
