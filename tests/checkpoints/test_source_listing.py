"""The headers of a source's files, read side by side: how many there may be, and that ^C ends it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import SourceError
from builder.lab.checkpoints import planning
from builder.lab.checkpoints.planning import SourceContents

if TYPE_CHECKING:
    from pathlib import Path


EMPTY = {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}
READ = """\
import sys
from pathlib import Path
from builder.lab.checkpoints import planning
from tests.checkpoints.test_source_listing import source
print("begun", flush=True)
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
    with pytest.raises(SourceError, match=r"2\.safetensors: with those before it has 12 tensors, and at most 11"):
        planning.read_source_listing(source(tmp_path), ())


@pytest.mark.slow
def test_an_interrupt_ends_it_whatever_the_headers_hold(tmp_path: Path) -> None:
    files(tmp_path, 8, 99_000)
    argv = [sys.executable, "-c", READ, str(tmp_path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout
        process.stdout.readline()
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) != 0


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
        with pytest.raises(SourceError, match=r"c\.json: a link that points outside its folder"):
            planning._sizes(folder)
