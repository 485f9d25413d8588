"""Planning the shipped definition from files with the names of both releases, in folders and on a hub that is asked for
ranges alone.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import BuilderError, FileProblemsError, SourceError
from builder.commands import checkpoints
from builder.commands.checkpoints import CheckpointOutlook
from builder.lab.checkpoints import planning
from builder.lab.checkpoints.planning import SourceContents
from tests import hub_server, projects, safetensors_files
from tests.lab.checkpoints import made
from tests.lab.checkpoints.made import FP8, INT4
from tests.safetensors_files import Dimensions
from tests.workspaces import NO_ENGINE, workspace

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from builder.base.project import Project
    from tests.safetensors_files import Specification


NAME = "qwen3.5-122b-hybrid"
FILE = f"checkpoints/{NAME}/checkpoint.yaml"
SHIPPED = made.SHIPPED.read_text(encoding="utf-8")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return projects.make(tmp_path / "project")


def define(project: Project, int4: str, fp8: str) -> None:
    """Writes the shipped definition with other sources."""
    projects.write(project.root / FILE, made.shipped(int4, fp8))


def plan(project: Project, tmp_path: Path, hub: str = "http://127.0.0.1:9") -> CheckpointOutlook:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environ = {**kept, "HOME": str(tmp_path), "HF_ENDPOINT": hub}
    return checkpoints.plan_checkpoint(workspace(project, NO_ENGINE, environ), NAME)


@pytest.fixture
def folders(project: Project, tmp_path: Path) -> Path:
    """Both sources as folders; those of the definition."""
    shards = safetensors_files.int4()
    safetensors_files.write(tmp_path / "int4", safetensors_files.files(shards, listed=safetensors_files.INT4_FILES))
    safetensors_files.write(tmp_path / "fp8", safetensors_files.files(safetensors_files.fp8()))
    define(project, f"{{folder: {tmp_path}/int4}}", f"{{folder: {tmp_path}/fp8}}")
    return tmp_path


def index_lists(folders: Path, shards: dict[str, Specification], listed: Collection[str]) -> None:
    """Writes the INT4 release again: the files ``shards``, of which the index lists those of ``listed``."""
    shutil.rmtree(folders / "int4")
    safetensors_files.write(folders / "int4", safetensors_files.files(shards, listed=listed))


def refusal(project: Project, folder: Path) -> str:
    before = sorted(folder.rglob("*"))
    with pytest.raises(BuilderError) as refused:
        plan(project, folder)
    assert sorted(folder.rglob("*")) == before
    return refused.value.message


@pytest.mark.long
@pytest.mark.slow
def test_a_plan_reads_headers_of_the_hub_alone(project: Project, tmp_path: Path) -> None:
    with hub_server.serve() as hub:
        big = safetensors_files.fp8(Dimensions(width=2048))
        commits = [
            hub.add(INT4, safetensors_files.files(safetensors_files.int4(Dimensions(width=2048)))),
            hub.add(FP8, safetensors_files.files(big)),
        ]
        projects.write(project.root / FILE, SHIPPED)
        outlook = plan(project, tmp_path, hub.url)
        sizes = sum(len(content) for commit in hub.repos[FP8].commits.values() for content in commit.values())
        ranges = [each for name in big for each in hub.got(name)]
    assert ranges == ["bytes=0-524287"] * 3
    assert sizes > 10 * 3 * 524288
    snapshots = [source.snapshot for source in outlook.plan.sources.values()]
    assert [snapshot and snapshot.commit for snapshot in snapshots] == commits
    assert outlook.plan.content.effects[1].tensors == 288
    assert outlook.plan.fetched > sizes // 2
    assert not (tmp_path / ".cache").exists()


@pytest.mark.slow
def test_a_plan_of_folders_says_what_each_step_does(project: Project, folders: Path) -> None:
    outlook = plan(project, folders)
    decoder = sum(len(safetensors_files.int4()[name]) for name in safetensors_files.INT4_FILES)
    assert [effect.text for effect in outlook.plan.content.effects] == [
        f"takes {decoder} tensors and 2 other files of int4",
        "replaces 144 tensors with tensors from fp8 (BF16 → F8_E4M3), with 144 companions",
        "adds model_extra_tensors.safetensors of int4 with 785 tensors",
        "verifies the result, whose tensors are as required",
    ]
    assert outlook.plan.fetched == 0
    assert outlook.plan.size == outlook.needed


@pytest.mark.slow
def test_it_comes_out_the_same_whatever_the_index_lists(project: Project, folders: Path) -> None:
    """The weights under ``mtp.`` are in a file that the index leaves out, in one that it lists, or among the others."""
    unlisted = plan(project, folders).plan.content
    shards = safetensors_files.int4()
    index_lists(folders, shards, shards)
    listed = plan(project, folders).plan.content
    first, second = safetensors_files.INT4_FILES
    index_lists(folders, {first: shards[first], second: shards[second] | shards[safetensors_files.EXTRA]}, shards)
    among = plan(project, folders).plan.content
    for content in (listed, among):
        assert content.effects[2].text == "adds nothing from int4: 785 such tensors already exist"
        assert {name: (each.dtype, each.shape, each.file.source) for name, each in content.tensors.items()} == {
            name: (each.dtype, each.shape, each.file.source) for name, each in unlisted.tensors.items()
        }
    replaced = {name for name, each in unlisted.tensors.items() if each.file.source == "fp8"}
    assert replaced == {
        f"model.language_model.layers.{layer}.mlp.shared_expert.{part}_proj.{kind}"
        for layer in range(48)
        for part in ("gate", "up", "down")
        for kind in ("weight", "weight_scale_inv")
    }


@pytest.mark.slow
def test_weights_that_an_index_lists_in_part_are_not_whole(project: Project, folders: Path) -> None:
    shards = safetensors_files.int4()
    extra = shards[safetensors_files.EXTRA]
    first = safetensors_files.INT4_FILES[0]
    shards[first]["mtp.fc.weight"] = extra.pop("mtp.fc.weight")
    index_lists(folders, shards, safetensors_files.INT4_FILES)
    message = refusal(project, folders)
    assert message.startswith(f"{FILE}:{line_of('- verify:')}:5: ")
    assert "expected 768 tensors with a name like mtp.layers.0.mlp.experts.*_proj.weight, found 0" in message


@pytest.mark.slow
def test_a_wrong_count_is_a_problem_at_its_step(project: Project, folders: Path) -> None:
    shards = safetensors_files.fp8()
    for tensors in shards.values():
        for name in [name for name in tensors if "layers.47.mlp.shared_expert.up" in name]:
            del tensors[name]
    shutil.rmtree(folders / "fp8")
    safetensors_files.write(folders / "fp8", safetensors_files.files(shards))
    with pytest.raises(FileProblemsError) as refused:
        plan(project, folders)
    place = f"{FILE}:{line_of('- replace: fp8')}:5"
    assert refused.value.message.startswith(f"{place}: expected 144 tensors with a counterpart, found 143")


def line_of(text: str) -> int:
    """The line of the shipped definition that has ``text``."""
    return SHIPPED[: SHIPPED.index(text)].count("\n") + 1


def test_the_stand_ins_have_the_counts_that_others_published() -> None:
    """Albond's script for this checkpoint compares names: those of the FP8 release outside of the experts, without the
    scales of replaced weights, with those of the INT4 release's numbered files. It reported 144 and 408."""
    int4 = safetensors_files.int4()
    numbered = {name: entry for file in safetensors_files.INT4_FILES for name, entry in int4[file].items()}
    dense = {
        name: entry
        for file in safetensors_files.fp8().values()
        for name, entry in file.items()
        if ".experts." not in name
    }
    replaced = {
        name for name, (dtype, shape) in dense.items() if dtype == "F8_E4M3" and numbered.get(name) == ("BF16", shape)
    }
    without = dense.keys() - numbered.keys() - {f"{name}_scale_inv" for name in replaced}
    assert (len(replaced), len(without)) == (144, 408)


@pytest.mark.slow
def test_a_file_that_was_cut_off_is_named(project: Project, folders: Path) -> None:
    path = folders / "int4/model-00002-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert "model-00002-of-00002.safetensors: its tensors end at byte" in refusal(project, folders)


@pytest.mark.slow
def test_a_name_in_two_files_is_refused(project: Project, folders: Path) -> None:
    (folders / "int4/model.safetensors.index.json").unlink()
    (folders / "int4/model-00003-of-00003.safetensors").write_bytes(
        (folders / "int4/model-00001-of-00002.safetensors").read_bytes()
    )
    message = refusal(project, folders)
    assert "model-00003-of-00003.safetensors: `model.language_model.layers.0." in message
    assert "is also in model-00001-of-00002.safetensors" in message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": "model-00009.safetensors"}, "it names files that do not exist: model-00009.safetensors"),
        ({"x": "model-00001-of-00002.safetensors"}, "it names tensors that do not exist: x in model-00001-of-00002"),
        ({"x": "../model-00001-of-00002.safetensors"}, "its weight_map has an entry that is not a weights file"),
        ({"x": 5}, "its weight_map has an entry that is not a weights file"),
    ],
)
def test_an_index_that_names_what_is_not_there(
    project: Project, folders: Path, changed: dict[str, object], message: str
) -> None:
    path = folders / "int4/model.safetensors.index.json"
    data = json.loads(path.read_bytes())
    path.write_text(json.dumps({**data, "weight_map": {**data["weight_map"], **changed}}))
    assert message in refusal(project, folders)


@pytest.mark.slow
def test_an_index_that_is_none(project: Project, folders: Path) -> None:
    path = folders / "int4/model.safetensors.index.json"
    for text, message in ((b"{", "it is not JSON"), (b"[]", "it has no weight_map"), (b'{"a":1,"a":2}', "twice")):
        path.write_bytes(text)
        assert message in refusal(project, folders)


@pytest.mark.slow
def test_a_folder_that_is_not_there(project: Project, folders: Path) -> None:
    define(project, "{folder: /nowhere/at/all}", f"{{folder: {folders}/fp8}}")
    assert refusal(project, folders) == "/nowhere/at/all cannot be read: No such file or directory"


@pytest.mark.slow
def test_a_pipe_is_no_file_of_weights(project: Project, folders: Path) -> None:
    (folders / "int4/model.safetensors.index.json").unlink()
    os.mkfifo(folders / "int4/model-00003-of-00003.safetensors")
    assert len(plan(project, folders).plan.shards) == 3  # as any other entry that is no file


def test_a_hub_that_does_not_answer(project: Project, tmp_path: Path) -> None:
    define(project, f"{{hf: {INT4}}}", f"{{hf: {FP8}}}")
    with pytest.raises(SourceError, match=r"http://127\.0\.0\.1:9 does not answer"):
        plan(project, tmp_path)


# The headers of a source's files, read side by side: how many there may be, and that ^C ends it.

EMPTY = {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}
READ = """\
import sys
from pathlib import Path
from builder.lab.checkpoints import planning
from tests.lab.checkpoints.test_planning import source
print("begun", flush=True)
while True:
    planning.read_source_listing(source(Path(sys.argv[1])), ())
"""


def files(folder: Path, count: int, tensors: int) -> None:
    for number in range(count):
        text = json.dumps({f"t{number}-{tensor}": EMPTY for tensor in range(tensors)}).encode()
        (folder / f"{number}.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)


def source(folder: Path) -> SourceContents:
    return SourceContents("x", {path.name: path.stat().st_size for path in folder.iterdir()}, folder, None, {})


def test_a_source_has_no_more_tensors_than_any_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files(tmp_path, 3, 4)
    monkeypatch.setattr(planning, "_MOST_TENSORS", 12)
    assert len(planning.read_source_listing(source(tmp_path), ()).headers) == 3
    monkeypatch.setattr(planning, "_MOST_TENSORS", 11)
    with pytest.raises(SourceError, match=r"2\.safetensors: .* there are 12 tensors, but at most 11"):
        planning.read_source_listing(source(tmp_path), ())


@pytest.mark.long
@pytest.mark.slow
def test_an_interrupt_ends_it_whatever_the_headers_hold(tmp_path: Path) -> None:
    files(tmp_path, 8, 99_000)
    argv = [sys.executable, "-c", READ, str(tmp_path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout
        process.stdout.readline()
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=300) != 0


def test_a_link_that_leads_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    """Who made the folder would choose a file of this machine by it; in the cache links lead to blobs of the model."""
    snapshot, own = tmp_path / "hub/models--o--m/snapshots/abc", tmp_path / "own"
    for folder in (snapshot, own, snapshot.parent.parent / "blobs"):
        folder.mkdir(parents=True)
    (tmp_path / "secret").write_text("of the user")
    (snapshot.parent.parent / "blobs/1").write_text("{}")
    (snapshot / "config.json").symlink_to("../../blobs/1")
    (own / "a.json").write_text("{}")
    (own / "b.json").symlink_to("a.json")
    assert planning._sizes(snapshot) == {"config.json": 2}
    assert planning._sizes(own) == {"a.json": 2, "b.json": 2}
    for folder in (snapshot, own):
        (folder / "c.json").symlink_to(tmp_path / "secret")
        with pytest.raises(SourceError, match=r"c\.json is a link that points outside its folder"):
            planning._sizes(folder)
