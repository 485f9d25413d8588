from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.definitions.mods import mod, mod_reading
from builder.errors import FileProblemsError, UsageError
from tests import projects

if TYPE_CHECKING:
    from pathlib import Path

ALL_KEYS = """\
description: all keys
files: [{from: a.jinja, to: .}, {from: tree/, to: /opt/tree}]
patches: [{file: a.patch, package: vllm}, {file: b.patch, package: six, strip: 0}]
packages: ["tilelang[extra]==0.1.8", other==1.0.post1+cpu]
run: go.sh
timeout: 60
env: {VLLM_X: 1, TEXT: "a $b"}
requires: {vllm: ">=0.19,<0.23", transformers: ">=5"}
conflicts: [mods/foe]
after: [friend]
may_be_empty: true
check: [{file: a.jinja, contains: tool}, {run: look.sh}]
"""


def load(root: Path, yaml: str, *files: str) -> mod.Mod:
    project = projects.make(root)
    projects.add_mod(root, "m", "", dict.fromkeys(files, "x\n"), yaml)
    return mod_reading.load(project, "m")


def problems(root: Path, yaml: str, *files: str) -> list[str]:
    with pytest.raises(FileProblemsError) as caught:
        load(root, yaml, *files)
    return str(caught.value).splitlines()


def test_a_folder_with_only_a_run_sh_is_a_mod_and_keeps_the_network(tmp_path: Path) -> None:
    loaded = mod_reading.load(projects.make(tmp_path), "mods/template")
    assert (loaded.name, loaded.described, loaded.run, loaded.network) == ("template", False, "run.sh", True)
    assert [file.path for file in loaded.files] == ["chat.jinja", "run.sh"]


def test_all_that_is_written_is_read(tmp_path: Path) -> None:
    loaded = load(tmp_path, ALL_KEYS, "a.jinja", "tree/x", "a.patch", "b.patch", "go.sh", "look.sh")
    assert loaded.copies == (mod.FileCopy("a.jinja", "."), mod.FileCopy("tree", "/opt/tree"))
    assert loaded.patches == (mod.ModPatch("a.patch", "vllm", 1), mod.ModPatch("b.patch", "six", 0))
    assert loaded.packages == ("tilelang[extra]==0.1.8", "other==1.0.post1+cpu")
    assert (loaded.run, loaded.seconds, loaded.may_be_empty) == ("go.sh", 60, True)
    assert loaded.env == {"VLLM_X": "1", "TEXT": "a $b"}
    assert loaded.requires == {"vllm": ">=0.19,<0.23", "transformers": ">=5"}
    assert (loaded.conflicts, loaded.after) == (("foe",), ("friend",))
    assert loaded.checks == (mod.ModCheck(file="a.jinja", contains="tool"), mod.ModCheck(run="look.sh"))


def test_a_described_mod_runs_nothing_that_it_does_not_name(tmp_path: Path) -> None:
    assert load(tmp_path / "a", "description: x\nfiles: [{from: y, to: .}]\n", "y").run is None
    assert problems(tmp_path / "b", "description: x\nfiles: [{from: y, to: .}]\n", "y", "run.sh") == [
        "mods/m/mod.yaml:1:1: there is a run.sh, which nothing runs; say `run: run.sh`, or remove it"
    ]


def test_a_mod_that_changes_nothing_is_none(tmp_path: Path) -> None:
    message = "it changes nothing: `files`, `patches`, `packages`, `run` or `env` says what it does"
    assert problems(tmp_path, "description: x\n", "y") == [f"mods/m/mod.yaml:1:1: {message}"]


@pytest.mark.parametrize(
    ("more", "network"),
    [("", False), ("network: true\n", True), ("packages: [a==1]\n", True), ("network: false\n", False)],
)
def test_a_described_mod_has_no_network_unless_it_asks_or_lists_packages(
    tmp_path: Path, more: str, network: bool
) -> None:
    assert load(tmp_path, f"description: x\nenv: {{A: b}}\n{more}").network is network


def test_packages_without_a_network_are_a_contradiction(tmp_path: Path) -> None:
    assert problems(tmp_path, "description: x\npackages: [a==1]\nnetwork: false\n") == [
        "mods/m/mod.yaml:3:1: `packages` are downloaded, so `network: false` cannot be"
    ]


@pytest.mark.parametrize(
    "package", ["a", "a>=1", "a==1.*", "a==1; x", "a==1 --index-url=x", "a @ http://x", "-r x", ""]
)
def test_packages_that_are_not_one_exact_version_are_refused(tmp_path: Path, package: str) -> None:
    (message,) = problems(tmp_path, f"description: x\npackages: ['{package}']\n")
    assert message.startswith("mods/m/mod.yaml:2:12: `packages.0`: ")
    assert "one exact version, NAME==VERSION" in message


def test_a_package_is_asked_for_once(tmp_path: Path) -> None:
    assert problems(tmp_path, "description: x\npackages: [A.b==1, 'a_B[c]==2']\n") == [
        "mods/m/mod.yaml:2:20: a_B[c]==2: A.b==1 is asked for, too"
    ]


def test_every_file_that_is_named_must_be_there(tmp_path: Path) -> None:
    yaml = """\
description: x
run: other.sh
check: [{run: look.sh}]
files: [{from: a, to: .}, {from: tree, to: .}, {from: tre, to: .}]
patches: [{file: tree, package: vllm}]
"""
    assert problems(tmp_path, yaml, "tree/x") == [
        "mods/m/mod.yaml:2:1: no file other.sh in mods/m",
        "mods/m/mod.yaml:3:10: no file look.sh in mods/m",
        "mods/m/mod.yaml:4:10: no file a in mods/m",
        "mods/m/mod.yaml:4:49: no file tre in mods/m",
        "mods/m/mod.yaml:5:12: no file tree in mods/m",
    ]


def test_a_path_that_leaves_the_folder_is_refused(tmp_path: Path) -> None:
    yaml = "description: x\nfiles: [{from: ../template/run.sh, to: .}]\npatches: [{file: /etc/passwd, package: vllm}]\n"
    assert problems(tmp_path, yaml) == [
        "mods/m/mod.yaml:2:10: ../template/run.sh leaves the mod's folder; copy the file in",
        "mods/m/mod.yaml:3:12: /etc/passwd leaves the mod's folder; copy the file in",
    ]


@pytest.mark.parametrize("script", ["../x.sh", "a;b", "$(x)", "-x", "a b", "sub/x.sh"])
def test_a_script_is_called_by_a_plain_name(tmp_path: Path, script: str) -> None:
    (message,) = problems(tmp_path, f"description: x\nrun: '{script}'\n")
    assert message.startswith("mods/m/mod.yaml:2:1: `run`: ")
    assert "characters that are not allowed here" in message


@pytest.mark.parametrize(
    ("to", "message"),
    [
        ("../x", "a path without `..` says where"),
        ("/root/.cache/vllm/x", "a folder of the host is mounted over /root/.cache/vllm when the image serves"),
        ("/root/.triton", "a folder of the host is mounted over /root/.triton when the image serves"),
        ("/proc/x", "what is written below /proc does not stay in an image"),
    ],
)
def test_a_path_where_nothing_stays_is_refused(tmp_path: Path, to: str, message: str) -> None:
    (problem,) = problems(tmp_path, f"description: x\nfiles: [{{from: y, to: {to}}}]\n", "y")
    assert problem.startswith(f"mods/m/mod.yaml:2:19: {to}: {message}")


@pytest.mark.parametrize("value", ["1.5", "true", '"a\\nb"', "[a]", ""])
def test_values_of_the_environment_are_text_on_one_line(tmp_path: Path, value: str) -> None:
    (message,) = problems(tmp_path, f"description: x\nenv: {{A: {value}}}\n")
    assert message.startswith("mods/m/mod.yaml:2:7: `env.A`: ")


def test_ranges_of_versions_are_read_by_the_standard_parser(tmp_path: Path) -> None:
    message = "is no range of versions; meant is one as in pip's requirements: >=0.19,<0.23"
    assert problems(tmp_path, "description: x\nenv: {A: b}\nrequires:\n  vllm: newest\n  six: '>=1'\n") == [
        f"mods/m/mod.yaml:4:3: vllm: 'newest' {message}"
    ]


def test_the_content_hash_covers_names_bytes_and_execute_bits(tmp_path: Path) -> None:
    def hashed(folder: str, name: str, text: str, mode: int) -> str:
        root = tmp_path / folder
        project = projects.make(root)
        projects.add_mod(root, "m", "true\n", {name: text})
        (root / "mods/m" / name).chmod(mode)
        return mod_reading.load(project, "m").content_hash

    plain = hashed("a", "x", "1", 0o644)
    assert plain == hashed("b", "x", "1", 0o600) == hashed("f", "x", "1", 0o666)
    others = {hashed("c", "y", "1", 0o644), hashed("d", "x", "2", 0o644), hashed("e", "x", "1", 0o755)}
    assert len(others | {plain}) == 4


def test_the_content_hash_covers_what_is_done_and_checked_and_nothing_else(tmp_path: Path) -> None:
    files = ("a.jinja", "tree/x", "a.patch", "b.patch", "go.sh", "look.sh")
    same = [
        ALL_KEYS,
        ALL_KEYS.replace("all keys", "other words"),
        ALL_KEYS.replace('">=0.19,<0.23"', '">=0.19"'),
        ALL_KEYS.replace("friend", "stranger"),
        f"# a comment\n{ALL_KEYS}",
    ]
    other = [
        ALL_KEYS.replace("to: .", "to: /opt/"),
        ALL_KEYS.replace("package: six", "package: seven"),
        ALL_KEYS.replace("0.1.8", "0.1.9"),
        ALL_KEYS.replace("VLLM_X: 1", "VLLM_X: 2"),
        ALL_KEYS.replace("contains: tool", "contains: fool"),
        ALL_KEYS.replace("timeout: 60", "timeout: 61"),
        ALL_KEYS.replace("may_be_empty: true", "may_be_empty: false"),
        ALL_KEYS.replace("run: go.sh", "run: look.sh"),
    ]

    def hashed(number: int, yaml: str) -> str:
        return load(tmp_path / str(number), yaml, *files).content_hash

    assert len({hashed(number, yaml) for number, yaml in enumerate(same)}) == 1
    assert len({hashed(number, yaml) for number, yaml in enumerate([ALL_KEYS, *other], start=10)}) == len(other) + 1


def test_an_unknown_mod_is_named_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        mod_reading.load(projects.make(tmp_path), "templat")
    assert caught.value.hint == "did you mean template?"


@pytest.mark.parametrize("name", ["../template", "template; rm -rf /", "", "a/b"])
def test_a_name_that_is_no_folder_of_mods_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        mod_reading.load(projects.make(tmp_path), name)


@pytest.mark.parametrize("name", ["$(id)", "a b", "a,readonly", "-m", "`x`"])
def test_a_folder_whose_name_would_need_quoting_is_refused(tmp_path: Path, name: str) -> None:
    project = projects.make(tmp_path)
    projects.add_mod(tmp_path, name, "true\n", {})
    with pytest.raises(FileProblemsError) as caught:
        mod_reading.load(project, name)
    assert str(caught.value) == f"mods/{name}:1:1: a mod's name has letters, digits and . _ + - in it, and no others"


def test_the_problems_of_all_mods_are_told_at_once(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    for name in ("a", "b"):
        projects.add_mod(tmp_path, name, "", {}, "description: x\n")
    with pytest.raises(FileProblemsError) as caught:
        mod_reading.load_all(project, ["a", "template", "mods/a", "b"])
    assert [line.partition(":")[0] for line in str(caught.value).splitlines()] == ["mods/a/mod.yaml", "mods/b/mod.yaml"]


def test_all_unknown_mods_are_told_at_once(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    with pytest.raises(UsageError) as caught:
        mod_reading.load_all(project, ["templat", "template", "zzz"])
    assert [line.partition(" in ")[0] for line in caught.value.message.splitlines()] == [
        "no mod `templat`",
        "no mod `zzz`",
    ]
    assert caught.value.hint == "did you mean template?\nthere are: template"


def test_each_mod_is_loaded_once(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    assert [mod.name for mod in mod_reading.load_all(project, ["template", "mods/template", "mods/template/"])] == [
        "template"
    ]
