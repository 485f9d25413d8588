"""Checkpoints as they are made: read back by the real library, the same bytes each time, whatever ends a build."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import traceback
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from builder.base.errors import BuilderError, ConflictError, SourceError, UsageError
from builder.base.events import TransferProgress
from builder.commands import checkpoints
from builder.lab.checkpoints import conversion
from tests import projects, safetensors_files
from tests.lab.checkpoints import made
from tests.lab.checkpoints.made import Kitchen

pytestmark = pytest.mark.slow

IN_FP8 = ".mlp.shared_expert."


@pytest.fixture
def making_kitchen(tmp_path: Path) -> Kitchen:
    return made.kitchen(tmp_path)


def tensors(folder: Path) -> dict[str, tuple[str, list[int], bytes]]:
    """All tensors of a checkpoint by the real library, which checks each file: dtype, shape and bytes."""
    read: dict[str, tuple[str, list[int], bytes]] = {}
    files = sorted(folder.glob("*.safetensors"))
    for path in files:
        with safe_open(path, framework="np") as opened:
            assert opened.metadata() == {"format": "pt"}
            names = set(opened.keys())
        content = path.read_bytes()
        size = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + size])
        header.pop("__metadata__")
        assert header.keys() == names
        for name, entry in header.items():
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            assert name not in read
            read[name] = (entry["dtype"], entry["shape"], content[begin:end])
    return read


def problems(kitchen: Kitchen, *, full: bool = False) -> list[str]:
    (result,) = checkpoints.verify_checkpoints(kitchen.workspace(), "hybrid", full=full)
    return list(result.problems) if result.is_here else ["not here"]


def test_what_was_not_made_is_built_and_what_is_unknown_is_listed(making_kitchen: Kitchen) -> None:
    remedies = {"hybrid": "`builder checkpoints build hybrid` makes it", "x": "`builder checkpoints list` shows all"}
    for name, remedy in remedies.items():
        with pytest.raises(UsageError, match=f"checkpoints.lock has no `{name}`") as caught:
            checkpoints.verify_checkpoints(making_kitchen.workspace(), name, full=False)
        assert remedy in caught.value.hint


def test_the_result_has_the_bytes_of_its_sources(making_kitchen: Kitchen) -> None:
    result = making_kitchen.build()
    read = tensors(result.folder)
    assert len(read) == result.tensors
    expected: dict[str, tuple[str, list[int]]] = {}
    for file in safetensors_files.int4(made.SIZE).values():
        expected |= file
    for file in safetensors_files.fp8(made.SIZE).values():
        expected |= {name: entry for name, entry in file.items() if name.startswith("model.") and IN_FP8 in name}
    assert {name: (dtype, shape) for name, (dtype, shape, _) in read.items()} == expected
    assert sum(dtype == "F8_E4M3" for dtype, _, _ in read.values()) == 12
    for name, (dtype, shape, content) in read.items():
        assert content == safetensors_files.content(name, dtype, shape), name


def test_the_index_leads_to_every_tensor(making_kitchen: Kitchen) -> None:
    folder = making_kitchen.build().folder
    index = json.loads((folder / "model.safetensors.index.json").read_bytes())
    read = tensors(folder)
    assert index["weight_map"].keys() == read.keys()
    assert index["metadata"]["total_size"] == sum(len(content) for _, _, content in read.values())
    for name in ("mtp.fc.weight", "lm_head.weight"):
        with safe_open(folder / index["weight_map"][name], framework="np") as opened:
            assert name in opened.keys()  # noqa: SIM118


def test_the_result_lies_in_the_layout_of_the_cache(making_kitchen: Kitchen) -> None:
    result = making_kitchen.build()
    assert result.folder == making_kitchen.cache / "snapshots" / result.name.revision
    assert (making_kitchen.cache / "refs/main").read_text() == result.name.revision
    for path in result.folder.iterdir():
        assert path.is_symlink()
        assert path.resolve().parent == making_kitchen.cache / "blobs"
    assert {path.name for path in making_kitchen.cache.iterdir()} == {"blobs", "refs", "snapshots", ".building"}
    assert problems(making_kitchen) == problems(making_kitchen, full=True) == []


def test_the_model_card_tells_where_it_is_from(making_kitchen: Kitchen) -> None:
    card = (making_kitchen.build().folder / "README.md").read_text()
    assert f"- `int4`: folder: {making_kitchen.folder}/int4" in card
    assert "2. replaces 12 tensors with tensors from fp8 (BF16 → F8_E4M3), with 12 companions" in card
    assert "An image needs this mod: `enable-hybrid-int4fp8`." in card


def test_the_same_pins_give_the_same_bytes(making_kitchen: Kitchen, tmp_path: Path) -> None:
    first = making_kitchen.build()
    before = made.contents(first.folder)
    lock = making_kitchen.project.checkpoints_lock.read_bytes()
    assert making_kitchen.build().seconds is None  # there is nothing to do
    subprocess.run(["rm", "-rf", str(making_kitchen.cache)], check=True)
    again = making_kitchen.build()
    assert again.seconds is not None
    assert again.name == first.name
    assert made.contents(again.folder) == before
    assert making_kitchen.project.checkpoints_lock.read_bytes() == lock


@pytest.mark.long
@pytest.mark.parametrize("listed", [safetensors_files.INT4_FILES, (*safetensors_files.INT4_FILES, "extra")])
def test_the_shipped_definition_is_killed_in_the_middle_and_gives_the_same_bytes(
    tmp_path: Path, listed: tuple[str, ...]
) -> None:
    """Whether the index of the INT4 release lists the weights under ``mtp.`` or not."""
    names = [name.replace("extra", safetensors_files.EXTRA) for name in listed]
    one, other = (made.kitchen(tmp_path / name, safetensors_files.SMALL, names) for name in ("one", "other"))
    for cook in (one, other):
        sources = (f"{{folder: {cook.folder}/{source}}}" for source in ("int4", "fp8"))
        projects.write(cook.project.root / made.FILE, made.shipped(*sources) + "output: {shard_size: 1 MB}\n")
    expected = one.build()
    contents = made.contents(expected.folder)
    assert sum(name.endswith(".safetensors") for name in contents) > 2, "a kill at the second file is in the middle"
    merged: dict[str, tuple[str, list[int]]] = {}
    for file in safetensors_files.int4().values():
        merged |= file
    for file in safetensors_files.fp8().values():
        merged |= {name: entry for name, entry in file.items() if name.startswith("model.") and IN_FP8 in name}
    read = tensors(expected.folder)
    assert {name: (dtype, shape) for name, (dtype, shape, _) in read.items()} == merged
    assert all(
        content == safetensors_files.content(name, dtype, shape) for name, (dtype, shape, content) in read.items()
    )

    for _ in range(2):
        assert killed(other, conversion.BuildJournal, "add", 2)
        assert not other.project.checkpoints_lock.exists()
    again = other.build()
    # The folders of the sources are part of what names a result, and of its card.
    assert {name: content for name, content in made.contents(again.folder).items() if name != "README.md"} == {
        name: content for name, content in contents.items() if name != "README.md"
    }


def test_a_folder_gets_each_revision_as_a_folder(making_kitchen: Kitchen) -> None:
    making_kitchen.define(output=f"{{folder: {making_kitchen.folder}/out, shard_size: 1 MB}}")
    result = making_kitchen.build()
    assert result.folder == making_kitchen.folder / "out/hybrid" / result.name.revision
    assert not any(path.is_symlink() for path in result.folder.iterdir())
    assert {path.name for path in result.folder.parent.iterdir()} == {result.name.revision, ".building"}
    assert problems(making_kitchen, full=True) == []


@pytest.mark.parametrize("output", ["{{shard_size: 1 MB}}", "{{folder: {}/out, shard_size: 1 MB}}"])
def test_a_build_goes_on_after_a_failure_at_every_file(
    making_kitchen: Kitchen, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    making_kitchen.define(output=output.format(making_kitchen.folder))
    expected = made.contents(making_kitchen.build().folder)
    for path in (making_kitchen.cache, making_kitchen.folder / "out"):
        subprocess.run(["rm", "-rf", str(path)], check=True)
    making_kitchen.project.checkpoints_lock.unlink()
    real = conversion.write_shard
    written: list[str] = []

    def fails(*arguments: Any) -> Any:
        if len(written) % 2:
            written.append("failed")
            raise OSError(28, "No space left on device", str(arguments[1]))
        result = real(*arguments)
        written.append(arguments[0].name)
        return result

    monkeypatch.setattr(conversion, "write_shard", fails)
    monkeypatch.setattr(conversion, "_WORKERS", 1)
    for _ in range(40):
        try:
            result = making_kitchen.build()
            break
        except OSError as error:
            assert error.errno == 28
            assert not making_kitchen.project.checkpoints_lock.exists()
            assert len(written) < 80
    names = [name for name in written if name != "failed"]
    assert len(names) == len(set(names)) > 3
    assert made.contents(result.folder) == expected


def killed(kitchen: Kitchen, owner: Any, function: str, number: int) -> bool:
    """Builds in a process that ends by a kill where it calls the function for that time; false if it calls it less."""
    child = os.fork()
    if not child:
        try:
            real, calls = getattr(owner, function), itertools.count(1)

            def die(*arguments: Any, **options: Any) -> Any:
                if next(calls) == number:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*arguments, **options)

            setattr(owner, function, die)
            kitchen.build()
            os._exit(0)
        except BaseException:  # noqa: BLE001  # a child that returned would run the rest of the tests
            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL)
    return status == signal.SIGKILL


@pytest.mark.long
def test_a_kill_at_every_place_leaves_the_same_bytes(making_kitchen: Kitchen) -> None:
    expected = making_kitchen.build()
    contents = made.contents(expected.folder)
    lock = making_kitchen.project.checkpoints_lock.read_bytes()
    snapshots = making_kitchen.cache / "snapshots"
    places = [(conversion.BuildJournal, "add"), (conversion, "_read_into"), (Path, "replace"), (Path, "rename")]
    for owner, function in places:
        shutil.rmtree(making_kitchen.cache)
        making_kitchen.project.checkpoints_lock.unlink()
        kills = 0
        while killed(making_kitchen, owner, function, kills + 1):
            kills += 1
            for snapshot in snapshots.iterdir() if snapshots.is_dir() else ():
                assert made.contents(snapshot) == contents  # a name is there with all of it, or not at all
        assert 0 < kills < 200, function
        assert making_kitchen.build().name == expected.name
        assert made.contents(expected.folder) == contents
        assert making_kitchen.project.checkpoints_lock.read_bytes() == lock


def test_what_a_build_left_that_was_killed_after_its_record_goes(
    making_kitchen: Kitchen, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as killed:
        killed.setattr(conversion, "forget_unfinished", lambda _place, _inputs: None)
        making_kitchen.build()
    assert list(making_kitchen.cache.glob(".unfinished-*"))
    assert making_kitchen.build().seconds is None
    assert not list(making_kitchen.cache.glob(".unfinished-*"))


def test_a_source_that_changes_while_it_is_read_is_noticed(making_kitchen: Kitchen) -> None:
    path = making_kitchen.folder / "fp8/model-00001-of-00003.safetensors"

    def change(event: object) -> None:
        if isinstance(event, TransferProgress) and event.current > 0:
            os.utime(path, ns=(1, 1))

    with pytest.raises(SourceError, match="was changed while it was read|was changed since"):
        making_kitchen.build(change)
    assert not making_kitchen.project.checkpoints_lock.exists()
    assert not list(making_kitchen.cache.glob("snapshots/*"))


def test_a_source_that_is_cut_while_it_is_read_is_noticed(making_kitchen: Kitchen) -> None:
    path = making_kitchen.folder / "int4/model-00002-of-00002.safetensors"

    def cut(event: object) -> None:
        if isinstance(event, TransferProgress):
            os.truncate(path, 5000)

    with pytest.raises(SourceError):
        making_kitchen.build(cut)
    assert not list(making_kitchen.cache.glob("snapshots/*"))


def test_a_digest_that_must_hold_and_does_not(making_kitchen: Kitchen) -> None:
    making_kitchen.define(more=f'  - verify: {{files: {{config.json: "{"0" * 64}"}}}}\n')
    with pytest.raises(ConflictError, match=r"the files differ from what `verify` requires: SHA-256 of config\.json"):
        making_kitchen.build()
    assert not making_kitchen.project.checkpoints_lock.exists()


def test_other_bytes_from_the_same_inputs_are_no_result(making_kitchen: Kitchen) -> None:
    path = making_kitchen.folder / "int4/model-00001-of-00002.safetensors"
    state = path.stat()
    making_kitchen.build()
    subprocess.run(["rm", "-rf", str(making_kitchen.cache)], check=True)
    with path.open("r+b") as file:
        file.seek(-3, os.SEEK_END)
        file.write(b"x")
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    with pytest.raises(ConflictError, match=r"records different content for the same inputs: model-.* differ"):
        making_kitchen.build()
    assert not list(making_kitchen.cache.glob("snapshots/*"))


def test_a_disk_without_room_is_said_before_anything_is_written(
    making_kitchen: Kitchen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "_SPARE", 1 << 60)
    with pytest.raises(SourceError, match="hybrid needs .* MB, but .* has only .* free"):
        making_kitchen.build()
    assert not making_kitchen.cache.exists()


def test_a_configuration_is_changed_by_a_merge_patch(making_kitchen: Kitchen) -> None:
    making_kitchen.define(more="  - config: {model_type: null, quantization_config: {bits: 8, extra: {a: [1]}}}\n")
    config = json.loads((making_kitchen.build().folder / "config.json").read_bytes())
    assert config == {"quantization_config": {"quant_method": "auto-round", "bits": 8, "extra": {"a": [1]}}}


def test_damage_is_found(making_kitchen: Kitchen) -> None:
    folder = making_kitchen.build().folder
    shard = (folder / "model_extra_tensors.safetensors").resolve()
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    assert problems(making_kitchen) == []
    assert problems(making_kitchen, full=True) == [
        "model_extra_tensors.safetensors: its content differs from the record"
    ]
    content[40] ^= 1
    shard.write_bytes(content)
    assert problems(making_kitchen) == [
        "model_extra_tensors.safetensors: its header differs from the record",
        *problems(making_kitchen)[1:],
    ]
    shard.write_bytes(content[:-1])
    assert "recorded" in problems(making_kitchen)[0]
    (folder / "config.json").resolve().write_bytes(b"[]")
    assert "config.json: it has 2 bytes" in problems(making_kitchen)[0]
    subprocess.run(["rm", "-rf", str(making_kitchen.cache)], check=True)
    assert problems(making_kitchen) == ["not here"]


@pytest.mark.parametrize("layout", ["the cache", "a folder"])
def test_a_damaged_result_is_made_again(layout: str, making_kitchen: Kitchen) -> None:
    if layout == "a folder":
        making_kitchen.define(output=f"{{folder: {making_kitchen.folder / 'results'}}}")
    folder = making_kitchen.build().folder
    before = made.contents(folder)
    (folder / "model_extra_tensors.safetensors").resolve().write_bytes(b"cut off")
    (folder / "config.json").unlink()
    assert checkpoints.plan_checkpoint(making_kitchen.workspace(), "hybrid").made is None
    assert making_kitchen.build().seconds is not None
    assert made.contents(folder) == before
    assert problems(making_kitchen, full=True) == []


def test_a_plan_after_a_build_has_nothing_to_do(making_kitchen: Kitchen) -> None:
    assert checkpoints.plan_checkpoint(making_kitchen.workspace(), "hybrid").made is None
    result = making_kitchen.build()
    outlook = checkpoints.plan_checkpoint(making_kitchen.workspace(), "hybrid")
    assert (outlook.made, outlook.needed) == (result.name.revision, 0)


def test_list_and_show(making_kitchen: Kitchen) -> None:
    (listed,) = checkpoints.list_checkpoints(making_kitchen.workspace())
    assert (listed.revisions, listed.size_here) == ((), 0)
    result = making_kitchen.build()
    shown = checkpoints.show_checkpoint(making_kitchen.workspace(), "hybrid")
    assert [each.revision for each in shown.revisions] == [result.name.revision]
    assert shown.size_here == result.size
    with pytest.raises(BuilderError, match="no checkpoint is called `hybird`"):
        checkpoints.show_checkpoint(making_kitchen.workspace(), "hybird")
