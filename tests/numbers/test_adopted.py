"""What was read out of an adopted image, kept in its build directory, and the way back to one that is missing."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from builder.base.errors import BuildFailedError, ImageStateError, UsageError
from builder.base.project import Project
from builder.commands import keeping
from builder.engine import installed
from builder.engine.images import ImageDetails, fingerprint
from builder.engine.installed import InstalledPackage, InstalledSoftware
from builder.lock.model import Adoption, ImageName, Lock, NumberedImage, Repository, Version
from builder.numbers import adopted, pointers, recovery
from builder.numbers.adopted import AdoptedContents
from builder.numbers.pointers import PointerMove
from tests import projects
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


ID = "sha256:" + "5" * 64


@pytest.mark.parametrize(
    ("error", "unknown"),
    [
        (ImageStateError(f"{ID} has no\x07 Python 3\nmore lines"), "x:1 has no Python 3"),
        (BuildFailedError("the whole script"), "x:1 did not report what it contains within 300 seconds"),
    ],
)
def test_an_image_that_cannot_be_read_is_adopted_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, unknown: str
) -> None:
    def read(*_: object) -> InstalledSoftware:
        raise error

    monkeypatch.setattr(installed, "read_installed", read)  # what the engine's container says
    details = ImageDetails(ID, "linux/arm64", 1, "", {"a": "b"}, ("a",), {"Entrypoint": ["/entry.sh"]}, ("x:1",))
    contents, sources = adopted.look_into(workspace(Project(tmp_path), NO_ENGINE), "x:1", details, {})
    own = AdoptedContents(fingerprint(details), {"a": "b"}, unknown=unknown, entrypoint=("/entry.sh",))
    assert (contents, sources) == (own, {})


def test_only_an_image_without_vllm_is_said_to_have_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    software = InstalledSoftware("3.12", "/python", {"torch": "2.13"}, {}, {}, {"gpu_arch": "12.1a"})
    monkeypatch.setattr(installed, "read_installed", lambda *_: software)  # what the engine's container says
    details = ImageDetails(ID, "linux/arm64", 1, "", {}, ("a",), {}, ("x:1",))
    without, _ = adopted.look_into(workspace(Project(tmp_path), NO_ENGINE), "x:1", details, {})
    assert (without.unknown, without.metadata) == ("x:1 has no vLLM", {"gpu_arch": "12.1a"})
    software = replace(software, sources={"vllm": InstalledPackage("0.33.0")})
    assert adopted.look_into(workspace(Project(tmp_path), NO_ENGINE), "x:1", details, {})[0].unknown == ""


# The repository that gives the number, and the name under which the image is recorded.

DIGEST = "org/x@sha256:" + "7" * 64


def built_elsewhere(*tags: str) -> ImageDetails:
    return ImageDetails(ID, "linux/arm64", 1, "", {}, ("a",), {}, tags, (DIGEST,) if "org/x:1" in tags else ())


@pytest.mark.parametrize(
    ("typed", "tags", "wanted", "chosen"),
    [
        ("x:1", ("x:1", "y:1"), None, ("x", "x:1")),
        ("x", ("x:latest",), None, ("x", "x:latest")),
        ("docker.io/library/x:1", ("x:1",), None, ("x", "x:1")),
        (DIGEST, ("org/x:1", "y:1"), None, ("org/x", DIGEST)),
        ("5" * 12, ("x:1", "x:2"), None, ("x", ID)),
        ("5" * 12, ("x:1", "y:1"), "z", ("z", ID)),
        ("5" * 12, (), "z", ("z", ID)),
        ("x:1", ("x:1",), "small", ("small", "x:1")),
        ("x:1", ("x:1",), "a" * 200, ("a" * 200, "x:1")),
        ("x:1", ("x:1",), "a.b/c_d/e__f-g--h", ("a.b/c_d/e__f-g--h", "x:1")),
    ],
)
def test_an_image_gets_a_number_of_its_own_repository_or_of_the_one_that_is_asked_for(
    tmp_path: Path, typed: str, tags: tuple[str, ...], wanted: str | None, chosen: tuple[str, str]
) -> None:
    assert adopted.choose(projects.make(tmp_path), typed, wanted, built_elsewhere(*tags)) == chosen


@pytest.mark.parametrize(
    ("typed", "tags", "wanted", "message"),
    [
        ("5" * 12, ("y:1", "x:1", "x:2"), None, "does not belong to a single repository: it has tags in x, y$"),
        ("5" * 12, (), None, "does not belong to a single repository: it has no tag$"),
        ("x:1", ("x:1",), "small", "`small` is an image definition: its images belong to vllm-small"),
        ("x:1", ("x:1",), "X", "`--as X` is not a valid repository name"),
        ("x:1", ("x:1",), "a" * 201, "is not a valid repository name"),
        ("127.0.0.1:9/x:1", ("127.0.0.1:9/x:1",), None, "^`127.0.0.1:9/x` is not a valid repository name"),
        ("builder-work:x", ("builder-work:x",), None, "^`builder-work` is reserved for images that are being made"),
        ("x:1", ("x:1",), "builder-bisect-1", "^`--as builder-bisect-1` is reserved for images that are being made"),
    ],
)
def test_a_repository_that_cannot_be_meant_is_refused(
    tmp_path: Path, typed: str, tags: tuple[str, ...], wanted: str | None, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        adopted.choose(projects.make(tmp_path, "vllm-small"), typed, wanted, built_elsewhere(*tags))


def test_the_names_in_registries_begin_with_the_one_of_its_own_repository() -> None:
    names = ("org/x@sha256:3", "debian@sha256:1", "b/x@sha256:2", "a/x@sha256:2", "b/x@sha256:1")
    details = replace(built_elsewhere(), digests=names)
    assert adopted.in_registries(details, "b/x:1") == (
        "b/x@sha256:1",
        "b/x@sha256:2",
        "a/x@sha256:2",
        "org/x@sha256:3",
    )


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
    reasons = keeping.retention_reasons(
        lock, keeping.EngineImages({NAME: details}, {}, {}), 0, timedelta(), datetime.now(UTC)
    )
    assert bool(reasons[NAME]) == stays
