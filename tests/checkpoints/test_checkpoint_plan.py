"""Planning from real files, in folders and on a hub that is asked for ranges alone."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from builder.commands import checkpoints_plan
from builder.commands.checkpoints_plan import CheckpointOutlook
from builder.errors import BuilderError, FileProblemsError, SourceError
from tests import hub_server, projects, safetensors_files
from tests.workspaces import NO_ENGINE, workspace

if TYPE_CHECKING:
    from pathlib import Path

    from builder.project import Project

HYBRID = """\
description: INT4 experts with FP8 shared experts
model: Org/Model-int4
sources:
  int4: {int4}
  fp8: {fp8}
requires: {{mods: [enable-hybrid-int4fp8]}}
steps:
  - take: int4
  - replace: fp8
    dtype: F8_E4M3
    except: ["*.experts.*"]
    companions: [weight_scale_inv]
    expect: {expect}
    unmatched: 408
"""
FILE = "checkpoints/hybrid/checkpoint.yaml"
INT4, FP8 = "Org/Model-int4", "Org/Model-FP8"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return projects.make(tmp_path / "project")


def define(project: Project, int4: str, fp8: str, expect: int = 144) -> None:
    text = HYBRID.format(int4=int4, fp8=fp8, expect=expect)
    projects.write(project.root / FILE, text)


def plan(project: Project, tmp_path: Path, hub: str = "http://127.0.0.1:9") -> CheckpointOutlook:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environ = {**kept, "HOME": str(tmp_path), "HF_ENDPOINT": hub}
    return checkpoints_plan.run(workspace(project, NO_ENGINE, environ), "hybrid")


@pytest.fixture
def folders(project: Project, tmp_path: Path) -> Path:
    """Both sources as folders; those of the definition."""
    listed = {name for name in safetensors_files.int4() if name.startswith("model-")}
    safetensors_files.write(tmp_path / "int4", safetensors_files.files(safetensors_files.int4(), listed=listed))
    safetensors_files.write(tmp_path / "fp8", safetensors_files.files(safetensors_files.fp8()))
    define(project, f"{{folder: {tmp_path}/int4}}", f"{{folder: {tmp_path}/fp8}}")
    return tmp_path


def refusal(project: Project, folder: Path) -> str:
    before = sorted(folder.rglob("*"))
    with pytest.raises(BuilderError) as refused:
        plan(project, folder)
    assert sorted(folder.rglob("*")) == before
    return refused.value.message


def test_a_plan_reads_headers_of_the_hub_alone(project: Project, tmp_path: Path) -> None:
    with hub_server.serve() as hub:
        big = safetensors_files.fp8(rows=1 << 15, layers=4)
        commits = [
            hub.add(INT4, safetensors_files.files(safetensors_files.int4(rows=1 << 15, layers=4))),
            hub.add(FP8, safetensors_files.files(big)),
        ]
        text = HYBRID.format(int4=f"{{hf: {INT4}}}", fp8=f"{{hf: {FP8}@main}}", expect=12).replace("408", "34")
        projects.write(project.root / FILE, text)
        outlook = plan(project, tmp_path, hub.url)
        sizes = sum(len(content) for commit in hub.repos[FP8].commits.values() for content in commit.values())
        ranges = [each for name in big for each in hub.got(name)]
    assert ranges == ["bytes=0-524287"] * 3
    assert sizes > 10 * 3 * 524288
    snapshots = [source.snapshot for source in outlook.plan.sources.values()]
    assert [snapshot and snapshot.commit for snapshot in snapshots] == commits
    assert outlook.plan.content.effects[1].tensors == 24
    assert outlook.plan.fetched > sizes // 2
    assert not (tmp_path / ".cache").exists()


def test_a_plan_of_folders_says_what_each_step_does(project: Project, folders: Path) -> None:
    outlook = plan(project, folders)
    assert [effect.text for effect in outlook.plan.content.effects] == [
        "takes 912 tensors and 2 other files of int4".replace("912", str(len(outlook.plan.content.tensors) - 144)),
        "replaces 144 tensors by those of fp8 (BF16 → F8_E4M3), with 144 companions; 408 have no counterpart",
    ]
    assert outlook.plan.fetched == 0
    assert outlook.plan.size == outlook.needed


def test_a_wrong_count_is_a_problem_at_its_step(project: Project, folders: Path) -> None:
    define(project, f"{{folder: {folders}/int4}}", f"{{folder: {folders}/fp8}}", expect=145)
    with pytest.raises(FileProblemsError) as refused:
        plan(project, folders)
    assert refused.value.message.startswith(
        "checkpoints/hybrid/checkpoint.yaml:9:5: 144 tensors have a counterpart, and"
    )


def test_a_file_that_was_cut_off_is_named(project: Project, folders: Path) -> None:
    path = folders / "int4/model-00002-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert "model-00002-of-00002.safetensors: its tensors end at byte" in refusal(project, folders)


def test_a_name_in_two_files_is_refused(project: Project, folders: Path) -> None:
    (folders / "int4/model.safetensors.index.json").unlink()
    (folders / "int4/model-00003-of-00003.safetensors").write_bytes(
        (folders / "int4/model-00001-of-00002.safetensors").read_bytes()
    )
    message = refusal(project, folders)
    assert "model-00003-of-00003.safetensors: `model.language_model.layers.0." in message
    assert "is in model-00001-of-00002.safetensors as well" in message


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": "model-00009.safetensors"}, "it names files that are not there: model-00009.safetensors"),
        ({"x": "model-00001-of-00002.safetensors"}, "it names 1 tensors that are not there: x in model-00001-of-00002"),
        ({"x": "../model-00001-of-00002.safetensors"}, "its weight_map leads to no file of weights"),
        ({"x": 5}, "its weight_map leads to no file of weights"),
    ],
)
def test_an_index_that_names_what_is_not_there(
    project: Project, folders: Path, changed: dict[str, object], message: str
) -> None:
    path = folders / "int4/model.safetensors.index.json"
    data = json.loads(path.read_bytes())
    path.write_text(json.dumps({**data, "weight_map": {**data["weight_map"], **changed}}))
    assert message in refusal(project, folders)


def test_an_index_that_is_none(project: Project, folders: Path) -> None:
    path = folders / "int4/model.safetensors.index.json"
    for text, message in ((b"{", "it is not JSON"), (b"[]", "it has no weight_map"), (b'{"a":1,"a":2}', "twice")):
        path.write_bytes(text)
        assert message in refusal(project, folders)


def test_a_folder_that_is_not_there(project: Project, folders: Path) -> None:
    define(project, "{folder: /nowhere/at/all}", f"{{folder: {folders}/fp8}}")
    assert refusal(project, folders) == "/nowhere/at/all: No such file or directory"


def test_a_pipe_is_no_file_of_weights(project: Project, folders: Path) -> None:
    (folders / "int4/model.safetensors.index.json").unlink()
    os.mkfifo(folders / "int4/model-00003-of-00003.safetensors")
    assert len(plan(project, folders).plan.shards) == 3  # as any other entry that is no file


def test_a_hub_that_does_not_answer(project: Project, tmp_path: Path) -> None:
    define(project, f"{{hf: {INT4}}}", f"{{hf: {FP8}}}")
    with pytest.raises(SourceError, match=r"http://127\.0\.0\.1:9 does not answer"):
        plan(project, tmp_path)
