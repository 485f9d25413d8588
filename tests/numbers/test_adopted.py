"""What was read out of an adopted image, kept in its build directory, and the way back to one that is missing."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from builder.base.errors import UsageError
from builder.base.project import Project
from builder.engine import installed
from builder.engine.images import ImageDetails
from builder.engine.installed import InstalledPackage, InstalledSoftware
from builder.lock.model import Adoption, ImageName, Lock, NumberedImage, Repository, Version
from builder.numbers import adopted, pointers, recovery, retention
from builder.numbers.adopted import AdoptedContents
from builder.numbers.pointers import PointerMove
from tests.locks import numbered
from tests.workspaces import NO_ENGINE, workspace

NAME = ImageName("vllm-node", 3)
CONTENTS = AdoptedContents(
    "sha256:f", {"a": "b"}, "3.12.3", {"torch": "2.13.0"}, {"gpu_arch": "12.1a"}, "no vLLM", ("/entry.sh",)
)
PULLED = "eugr/spark-vllm@sha256:12"


def image(*digests: str) -> NumberedImage:
    return replace(numbered(), definition="", input_hash="", adopted=Adoption("vllm-node:latest", digests))


def test_contents_are_read_as_they_were_written(tmp_path: Path) -> None:
    (tmp_path / adopted.FILE).write_bytes(adopted.dump(CONTENTS))
    assert adopted.read_adopted(tmp_path) == CONTENTS


WHOLE = {"version": 1, "fingerprint": "f"}
DAMAGED = [{"version": 2, "fingerprint": "f"}, {"version": 1}, {**WHOLE, "fingerprint": 1}, {**WHOLE, "x": "1"}]
DAMAGED += [{**WHOLE, "labels": value} for value in (1, {"a": 1})]
DAMAGED += [{**WHOLE, "entrypoint": value} for value in (1, [1])]


@pytest.mark.parametrize("text", ["", "[]", "{}", "[" * 9**5, *map(json.dumps, DAMAGED)])
def test_a_damaged_file_counts_as_gone(tmp_path: Path, text: str) -> None:
    assert adopted.read_adopted(tmp_path) is None
    (tmp_path / adopted.FILE).write_text(text)
    assert adopted.read_adopted(tmp_path) is None


def test_what_an_image_says_of_itself_is_safe_for_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    software = InstalledSoftware(
        "3.12\x1b[2J", "/bin/python", {"to\x07rch": "2.1\r3"}, {}, {"vllm": InstalledPackage("0.3\n2" + "0" * 300)}
    )
    monkeypatch.setattr(installed, "read_installed", lambda *_: software)  # what the engine's container says
    details = ImageDetails("id", "linux/arm64", 1, "", {}, ("a",), {}, ("x:1",))
    contents, sources = adopted.look_into(workspace(Project(tmp_path), NO_ENGINE), "x:1", details, {})
    assert (contents.python, contents.packages) == ("3.12[2J", {"torch": "2.13"})
    assert sources["vllm"].version == "0.32" + "0" * 196


@pytest.mark.parametrize(("typed", "wanted"), [("builder-work:x", None), ("x", "builder-bisect-1")])
def test_no_image_gets_a_name_of_those_that_are_being_made(tmp_path: Path, typed: str, wanted: str | None) -> None:
    details = ImageDetails("id", "linux/arm64", 1, "", {}, ("a",), {}, ("builder-work:x",))
    with pytest.raises(UsageError, match="is reserved for images that are being made"):
        adopted.choose(Project(tmp_path), typed, wanted, details)


def test_the_way_back_is_the_registry_then_where_it_came_from() -> None:
    pushed = replace(image(PULLED), digest="sha256:" + "1" * 64)
    assert "`builder pull vllm-node:3`" in adopted.way_back(NAME, pushed)
    assert adopted.way_back(NAME, image(PULLED)) == (
        f"`docker pull {PULLED}`, then `builder adopt {PULLED} --as vllm-node` restores its number"
    )
    assert "`builder adopt IMAGE --as vllm-node`" in adopted.way_back(NAME, image())
    assert adopted.way_back(NAME, numbered()) == "`builder rebuild vllm-node:3` builds it again"


def test_a_build_directory_is_of_the_image_whose_content_was_read(tmp_path: Path) -> None:
    """Not of any image without inputs."""
    of_image = replace(image(), fingerprint="sha256:f")
    assert not recovery.is_of(tmp_path, of_image)
    (tmp_path / adopted.FILE).write_bytes(adopted.dump(CONTENTS))
    assert recovery.is_of(tmp_path, of_image)
    assert not recovery.is_of(tmp_path, replace(of_image, fingerprint="sha256:e"))
    assert not recovery.is_of(tmp_path, numbered())


def test_versions_tell_what_changes_between_an_adopted_image_and_another() -> None:
    first = replace(image(), versions={"vllm": Version("0.33.0", "4ba787ec9" + "0" * 31)})
    lock = Lock(images={"vllm-node": Repository(4, 3, (1,), {1: first, 3: numbered()})})
    move = PointerMove("vllm-node", False, ImageName("vllm-node", 1), NAME)
    assert pointers.differences(Project(Path("/nowhere")), lock, [move]) == ("vllm: 0.33.0 (4ba787ec9) → not known",)


@pytest.mark.parametrize(
    ("changes", "stays"), [({}, True), ({"status": "bad"}, False), ({"digest": "sha256:" + "1" * 64}, False)]
)
def test_prune_keeps_what_nothing_can_build_again(changes: dict[str, Any], stays: bool) -> None:
    lock = Lock(images={"vllm-node": Repository(4, None, (), {3: replace(image(), **changes)})})
    details = ImageDetails("id", "linux/arm64", 1, "", {}, ("a",), {}, ())
    reasons = retention.retention_reasons(
        lock, retention.EngineImages({NAME: details}, {}, {}), 0, timedelta(), datetime.now(UTC)
    )
    assert bool(reasons[NAME]) == stays
