from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.base.errors import FileProblemsError
from builder.definitions import mod
from tests import projects
from tests.definitions.mods.mod_texts import load, problems

if TYPE_CHECKING:
    from pathlib import Path


def test_a_described_mod_runs_nothing_that_it_does_not_name(tmp_path: Path) -> None:
    assert load(tmp_path / "a", "description: x\nfiles: [{from: y, to: .}]\n", "y").run is None
    assert problems(tmp_path / "b", "description: x\nfiles: [{from: y, to: .}]\n", "y", "run.sh") == [
        "mods/m/mod.yaml:1:1: there is a run.sh, which nothing runs; say `run: run.sh`, or remove it"
    ]


def test_a_mod_that_changes_nothing_is_none(tmp_path: Path) -> None:
    message = "it changes nothing: `files`, `patches`, `packages`, `run` or `env` says what it does"
    assert problems(tmp_path, "description: x\n", "y") == [f"mods/m/mod.yaml:1:1: {message}"]


def test_packages_without_a_network_are_a_contradiction(tmp_path: Path) -> None:
    assert problems(tmp_path, "description: x\npackages: [a==1]\nnetwork: false\n") == [
        "mods/m/mod.yaml:3:1: `packages` are downloaded, so `network: false` cannot be"
    ]


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


def test_ranges_of_versions_are_read_by_the_standard_parser(tmp_path: Path) -> None:
    message = "is no range of versions; meant is one as in pip's requirements: >=0.19,<0.23"
    assert problems(tmp_path, "description: x\nenv: {A: b}\nrequires:\n  vllm: newest\n  six: '>=1'\n") == [
        f"mods/m/mod.yaml:4:3: vllm: 'newest' {message}"
    ]


def test_a_patch_for_some_versions_has_a_range_of_a_package_that_is_required(tmp_path: Path) -> None:
    yaml = "description: x\npatches:\n  - {file: y, package: flash_qla, version: newest}\n"
    assert problems(tmp_path / "a", yaml, "y") == [
        "mods/m/mod.yaml:3:35: `requires` has to name flash-qla, so that an image pins it",
        "mods/m/mod.yaml:3:35: flash_qla: 'newest' is no range of versions; "
        "meant is one as in pip's requirements: >=0.19,<0.23",
    ]
    yaml = yaml.replace("newest", "'<0.1.3'") + "requires: {Flash.QLA: '>=0.1'}\n"
    (patch,) = load(tmp_path / "b", yaml, "y").patches
    assert [patch.fits(version) for version in ("0.1.2", "0.1.3.dev1", "0.1.3")] == [True, False, False]


def test_a_file_from_an_address_has_a_name_and_a_digest(tmp_path: Path) -> None:
    digest = "0" * 64
    yaml = f"""\
description: x
files:
  - {{from: https://example.org/a.jinja, to: .}}
  - {{from: https://example.org/, to: ., sha256: {digest}a}}
"""
    assert problems(tmp_path / "a", yaml)[0].startswith("mods/m/mod.yaml:4:")
    yaml = f"""\
description: x
files:
  - {{from: https://example.org/a.jinja, to: .}}
  - {{from: "https://example.org/a%2F..%20b?x=y", to: ., sha256: "{digest}"}}
  - {{from: own, to: ., sha256: "{digest}"}}
  - {{from: https://example.org/a.jinja, to: ., sha256: "{digest}"}}
"""
    no_digest = "has no sha256; `builder mods pin m` fills in that of what is there today"
    assert problems(tmp_path / "b", yaml, "own") == [
        f"mods/m/mod.yaml:3:6: https://example.org/a.jinja {no_digest}",
        "mods/m/mod.yaml:4:6: https://example.org/a%2F..%20b?x=y: an address ends with the name of a file, of letters, "
        "digits and . _ + -",
        "mods/m/mod.yaml:5:24: a sha256 belongs to a file from an address; the mod's own files need none",
    ]


@pytest.mark.parametrize("yaml", ["description: x\nfiles: [{from: ours.jinja, to: .}]\n", None])
def test_a_chat_template_that_cannot_be_compiled_is_told_by_its_line(tmp_path: Path, yaml: str | None) -> None:
    """vLLM reads it only when the model is in memory: four minutes into serving."""
    project = projects.make(tmp_path)
    script = "" if yaml else "cp ours.jinja $WORKSPACE_DIR\n"
    projects.add_mod(project.root, "m", script, {"ours.jinja": "ok\n{% if x %}\n"}, yaml or "")
    with pytest.raises(FileProblemsError) as caught:
        mod.require_templates([mod.load_mod(project, "m")])
    assert "mods/m/ours.jinja:2:1: no chat template that can be compiled: Unexpected end of" in caught.value.message
