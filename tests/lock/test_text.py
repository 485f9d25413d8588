"""The layout of images.lock: golden, stable, kind to git merge."""

from __future__ import annotations

import difflib
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.base.errors import LockError
from builder.base.yaml_file import load
from builder.lock import layout
from builder.lock.model import (
    Adoption,
    BasePin,
    GitPin,
    ImageName,
    Lock,
    LockedPackage,
    NumberedImage,
    Pairing,
    Pins,
    PythonPin,
    Repository,
    SourcePin,
    Version,
)
from builder.lock.text import comments_of, dump_lock
from tests import locks as locks_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from hypothesis.strategies import DataObject, SearchStrategy


if TYPE_CHECKING:
    MakeImage = Callable[..., NumberedImage]


GIT = GitPin("https://github.com/vllm-project/vllm.git", "main", "0" * 40, "0.30.0", "2026-11-20T22:00:00Z")


def test_golden(full: Lock, golden: str) -> None:
    assert dump_lock(full) == golden


def test_an_empty_lock_says_only_its_version() -> None:
    lines = [line for line in dump_lock(Lock()).splitlines() if not line.startswith("#")]
    assert lines == ["version: 3", "", "..."]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_round_trip(locks: SearchStrategy[Lock], data: DataObject) -> None:
    lock = data.draw(locks)
    text = dump_lock(lock)
    assert locks_of.reread(text, lock) == lock
    assert dump_lock(locks_of.reread(text, lock)) == text


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_any_yaml_reader_reads_it(locks: SearchStrategy[Lock], data: DataObject) -> None:
    lock = data.draw(locks)
    loaded = load(dump_lock(lock), "x")
    assert set(loaded.get("models", {})) == set(lock.models)
    for name, repository in lock.images.items():
        numbers = {key: value for key, value in loaded["images"][name].items() if key.isdecimal()}
        assert {int(n): i.get("note", "") for n, i in numbers.items()} == {
            number: image.note for number, image in repository.numbers.items()
        }


def test_order_does_not_depend_on_who_was_first(full: Lock, golden: str) -> None:
    def reversed_(block: dict[Any, Any]) -> dict[Any, Any]:
        return dict(reversed(block.items()))

    images = {name: replace(r, numbers=reversed_(r.numbers)) for name, r in reversed(full.images.items())}
    turned = Lock({d: reversed_(p) for d, p in reversed(full.pins.items())}, images, reversed_(full.models))
    assert dump_lock(turned) == golden


def test_the_packages_of_each_part_are_read_back(full: Lock) -> None:
    packages = (LockedPackage("torch", "2.13.0", ("1" * 64,)),)
    base = BasePin("others/vllm:latest", f"sha256:{'a' * 64}", packages=packages)
    python, build_ = (PythonPin((name,), "", packages) for name in ("torch", "ninja"))
    for pins in (Pins(base), Pins(python=python), Pins(build=build_), Pins(base, python=python, build=build_)):
        lock = full.with_pins("node", "linux/arm64", pins)
        assert locks_of.reread(dump_lock(lock), lock) == lock


@pytest.mark.parametrize("note", ['"fast" and more', '"fast"er', '"fast" # on 8 cores"'])
def test_a_text_that_goes_on_behind_its_quotes_is_no_other_text(note: str) -> None:
    lock = Lock(images={"small": Repository(2, numbers={1: replace(locks_of.numbered(), note="good")})})
    text = dump_lock(lock)
    assert locks_of.reread(text) == lock
    with pytest.raises(LockError):
        locks_of.reread(text.replace("note: good", f"note: {note}"))


@pytest.mark.parametrize(("numbers", "following"), [((), 1), ((), 8), ((1, 3), 4), ((1, 3), 8)])
def test_the_next_number_is_read_as_it_was(numbers: tuple[int, ...], following: int) -> None:
    """Also that of a repository whose numbers somebody has taken out."""
    repository = Repository(following, numbers={number: locks_of.numbered() for number in numbers})
    lock = Lock(images={"small": repository})
    assert locks_of.reread(dump_lock(lock)) == lock


def test_packages_are_a_file_that_pip_reads_sorted_by_name() -> None:
    packages = (LockedPackage("torch", "2.13", ()), LockedPackage("numpy", "2.4.1", ("a" * 64,)))
    pin = PythonPin(("torch from https://wheels.host/cpu",), "", packages)
    lock = Lock().with_pins("cpu", "linux/amd64", Pins(python=pin))
    (file,) = layout.packages_files(lock)
    assert file.path == "dockerfiles/cpu/packages.linux-amd64.txt"
    lines = [line for line in file.content.decode().splitlines() if not line.startswith("#")]
    wheels = "--extra-index-url https://wheels.host/cpu"
    assert lines == [wheels, f"numpy==2.4.1 --hash=sha256:{'a' * 64}", "torch==2.13"]
    assert f"    packages: {file.digest}\n" in dump_lock(lock)


def test_a_line_is_at_most_120_columns_wide(golden: str) -> None:
    assert max(map(len, golden.splitlines())) <= 120


def changed_lines(before: Lock, after: Lock) -> list[str]:
    compared = difflib.ndiff(dump_lock(before).splitlines(), dump_lock(after).splitlines())
    return [line for line in compared if line[0] in "+-"]


@pytest.fixture
def paired(make_image: MakeImage) -> Lock:
    """Three numbers of a CUDA image, each built for the same model."""
    lock = Lock().with_pins("tf5", "linux/arm64", Pins(sources={"vllm": GIT}))
    for number in (1, 2, 3):
        lock = built(lock, number, make_image)
    return lock


def built(lock: Lock, number: int, make_image: MakeImage) -> Lock:
    name, recipe = ImageName("vllm-node-tf5", number), "recipes/qwen3.5-122b-tf5.yaml"
    versions = {
        "vllm": Version("0.30.1rc1.dev12+g012345678", "012345678"),
        "flashinfer": Version("0.6.18.post1", "ab" * 6),
    }
    base = "nvidia/cuda:13.0.2-devel-ubuntu24.04@5dc1bca23d05"
    image = make_image(number, definition="tf5", platform="linux/arm64", recipe=recipe, versions=versions, base=base)
    lock = lock.with_image(name, replace(image, transformers="5.5.0", gpu="NVIDIA GB10"))
    pairing = Pairing(name, recipe, since=f"2026-11-20T22:00:0{number}Z")
    return lock.with_current(name).with_pairing("Org/Model", pairing)


def test_a_build_moves_two_pointers_and_adds_three_lines(paired: Lock, make_image: MakeImage) -> None:
    changed = changed_lines(paired, built(paired, 4, make_image))
    assert [line[:2] for line in changed] == ["- ", "+ ", "- ", "+ ", "+ ", "+ ", "+ "]


def test_an_update_of_vllm_changes_a_line_of_each_pin(paired: Lock) -> None:
    """Also where FlashInfer follows vLLM, and the packages are asked for by its commit."""

    def pinned(digit: str) -> Lock:
        vllm = replace(GIT, commit=digit * 40, version=f"0.30.1rc1.dev{digit * 4}+g{digit * 9}")
        flashinfer = GitPin("https://host/f.git", f"from-vllm/{digit * 12}", digit * 40, f"0.6.{digit}", GIT.date)
        closure = PythonPin((f"requirements/cuda.txt of vllm {digit * 12}",), GIT.date, ())
        sources: dict[str, SourcePin] = {"vllm": vllm, "flashinfer": flashinfer}
        return paired.with_pins("tf5", "linux/arm64", Pins(None, sources, closure, closure))

    assert locks_of.reread(dump_lock(pinned("2")), pinned("2")) == pinned("2")
    changed = changed_lines(pinned("1"), pinned("2"))
    assert [line[:10] for line in changed if line[0] == "+"] == [
        *("+       ve", "+       ve"),
        *("+     pack", "+     buil"),
    ]
    assert len(changed) == 8


def test_a_mark_changes_one_line_and_adds_one_for_a_long_note(paired: Lock) -> None:
    name = ImageName("vllm-node-tf5", 2)
    image = paired.images[name.repository].numbers[2]
    marked = paired.with_image(name, replace(image, status="bad"))
    assert [line[:6] for line in changed_lines(paired, marked)] == ["-     ", "+     "]
    noted = paired.with_image(name, replace(image, status="bad", note="loops at 40k tokens"))
    assert [line[0] for line in changed_lines(paired, noted)] == ["-", "+", "+"]


def test_a_gpu_that_all_but_one_name_changes_no_other_number(paired: Lock, make_image: MakeImage) -> None:
    image = make_image(4, definition="tf5", platform="linux/arm64", base="debian:bookworm-slim@0123456789ab")
    other = paired.with_image(ImageName("vllm-node-tf5", 4), image)
    changed = changed_lines(paired, other)
    assert not [line for line in changed if line.startswith("-") and "gpu" in line]
    assert "gpu: none" in "".join(changed)
    assert locks_of.reread(dump_lock(other), other) == other


def test_what_a_number_does_not_share_stands_in_its_entry(paired: Lock, make_image: MakeImage) -> None:
    name = ImageName("vllm-node-tf5", 4)
    other = paired.with_image(name, make_image(4, definition="other", platform="linux/arm64", base="debian@0123"))
    changed = changed_lines(paired, other)
    assert "definition: other" in "".join(changed)
    assert "platform" not in "".join(changed)
    assert not [line for line in changed if line.startswith("-")]
    adopted = make_image(4, definition="", input_hash="", platform="linux/arm64", adopted=Adoption("x"))
    for lock in (other, paired.with_image(name, adopted)):
        assert locks_of.reread(dump_lock(lock), lock) == lock


def test_the_recipe_of_a_pairing_is_the_image_s_unless_it_says_another(paired: Lock) -> None:
    assert dump_lock(paired).count("recipe: ") == 3
    pairing = paired.models["Org/Model"].pairing
    for recipe in (None, "recipes/other.yaml", pairing.recipe):
        lock = paired.with_pairing("Org/Model", replace(pairing, recipe=recipe))
        assert locks_of.reread(dump_lock(lock), lock) == lock


COMMENTED = [
    ("  Qwen/Qwen3-0.6B:\n", "  # ask Ann before it moves\n  Qwen/Qwen3-0.6B:\n"),
    ("    latest: {now: 1}\n", "    latest: {now: 1} # since the fair\n"),
    ("\nimages:\n", "\n# our images\nimages:\n"),
    ("    1: {status: good", "    # the one of the demo\n    1: {status: good"),
    ("version: 3\n", "# two of us work here\nversion: 3\n"),
    ("\n...\n", "\n# below all of them\n...\n"),
    ("      size: 4990000000, content: AAAA", "      # inside\n      size: 4990000000, content: AAAA"),
]


@pytest.mark.parametrize(("old", "new"), COMMENTED)
def test_a_comment_stays_with_its_key(golden: str, full: Lock, old: str, new: str) -> None:
    text = golden.replace(old, new, 1)
    assert text != golden
    lock = locks_of.reread(text, full)
    assert lock == full
    written = dump_lock(lock, comments_of(text))
    comment = next(part for part in new.split("\n") if "#" in part).partition("#")[2]
    assert written.count(f"#{comment}") == 1
    if "inside" not in new:
        assert written == text
    assert dump_lock(locks_of.reread(written, full), comments_of(written)) == written


def test_a_comment_goes_with_its_key(golden: str, full: Lock) -> None:
    text = golden.replace("    10: {", "    # crashes\n    10: {", 1)
    assert "crashes" in dump_lock(full, comments_of(text))
    assert "crashes" not in dump_lock(Lock(models={}), comments_of(text))


def test_a_comment_stays_after_a_text_with_an_apostrophe() -> None:
    lock = Lock().with_image(ImageName("small", 1), replace(locks_of.numbered(), note="it's slow"))
    text = re.sub("(?m)(it's slow.*)$", r"\1 # don't prune", dump_lock(lock))
    assert text.count("# don't prune") == 1
    assert dump_lock(lock, comments_of(text)).count("# don't prune") == 1


def test_spaces_that_an_editor_adds_make_no_comment(golden: str) -> None:
    assert comments_of(golden.replace("\n", "  \n")) == {}


def test_a_sharp_in_a_text_is_no_comment(golden: str) -> None:
    assert "# on 8 cores" in golden
    assert comments_of(golden) == {}


def test_an_image_whose_name_is_a_number_is_no_number() -> None:
    name = ImageName("1", 1)
    lock = Lock().with_image(name, locks_of.numbered()).with_pairing("Org/M", Pairing(name))
    text = dump_lock(lock)
    assert '    image: {now: "1:1"}\n' in text
    assert load(text, "images.lock")["models"]["Org/M"]["image"] == {"now": "1:1"}
