from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.base.errors import FileProblemsError
from builder.definitions import mod
from builder.plan.making import steps_file
from builder.plan.plan_model import Step
from builder.plan.rules import ImageMods, arrange_steps, common_steps, explain_changes, read_steps
from tests import projects

if TYPE_CHECKING:
    from pathlib import Path


BEFORE = (
    Step("base", {"image": "debian:bookworm-slim", "content": "sha256:" + "a" * 64}),
    Step("vllm", {"wanted": "vllm==0.19.1", "version": "0.19.1"}),
    Step("python packages", {"torch": "2.13.0 111111111111", "uv": "0.13.8 222222222222"}),
    Step("Dockerfile", {"text": "1"}),
    Step("mod template", {"content": "sha256:" + "c" * 64}),
)


def changed(name: str, **takes: str) -> tuple[Step, ...]:
    return tuple(Step(name, {**step.takes, **takes}) if step.name == name else step for step in BEFORE)


def without(name: str, key: str) -> tuple[Step, ...]:
    return tuple(
        Step(step.name, {each: took for each, took in step.takes.items() if (step.name, each) != (name, key)})
        for step in BEFORE
    )


def test_steps_survive_the_build_directory() -> None:
    assert read_steps(steps_file(BEFORE).content.decode()) == BEFORE


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (BEFORE, ()),
        (changed("base", content="sha256:" + "b" * 64), ("base content: aaaaaaaaaaaa → bbbbbbbbbbbb",)),
        (
            changed("vllm", wanted="vllm==0.20.0", version="0.20.0"),
            ("vllm wanted: vllm==0.19.1 → vllm==0.20.0", "vllm version: 0.19.1 → 0.20.0"),
        ),
        (changed("python packages", torch="2.14.0 333333333333"), ("torch: 2.13.0 → 2.14.0",)),
        (changed("python packages", torch="2.13.0 333333333333"), ("torch: 2.13.0, but with different files",)),
        (changed("python packages", ray="2.50 4"), ("ray: not there → 2.50",)),
        (without("python packages", "uv"), ("uv: 0.13.8 → removed",)),
        (without("base", "content"), ("base content: aaaaaaaaaaaa → nothing",)),
        (changed("mod template", content="sha256:" + "d" * 64), ("mod template: changed",)),
        ((*BEFORE, Step("mod b", {"content": "x"})), ("mod b: new",)),
        (BEFORE[:-1], ("mod template: removed",)),
        ((*BEFORE[1:], BEFORE[0]), ("order of the steps: vllm, python packages, Dockerfile, mod template, base",)),
        (changed("Dockerfile", text="2"), ("Dockerfile: changed",)),
    ],
)
def test_what_differs_is_said_in_the_order_of_the_steps(after: tuple[Step, ...], message: tuple[str, ...]) -> None:
    assert explain_changes(BEFORE, after) == message


def test_a_dockerfile_that_follows_from_another_input_is_not_named() -> None:
    after = tuple(Step("Dockerfile", {"text": "2"}) if step.name == "Dockerfile" else step for step in BEFORE[:-1])
    assert explain_changes(BEFORE, after) == ("mod template: removed",)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"steps": [{"name": "x"}]}'])
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        read_steps(text)


def test_steps_are_kept_up_to_the_first_that_differs() -> None:
    assert common_steps(BEFORE, BEFORE) == len(BEFORE)
    assert common_steps(BEFORE, changed("vllm", version="0.20.0")) == 1
    assert common_steps(BEFORE, BEFORE[:2]) == 2
    assert common_steps((), BEFORE) == 0


PINNED = {
    "python": "3.12",
    "vllm": "0.23.0.dev12+gabcdef0",
    "transformers": "5.1.0",
    "torch": "2.13.0+cu130",
    "flashinfer-python": "0.6.7",
}


class Mods:
    """Mods in a folder, each with the lines that are given to it in its mod.yaml."""

    def __init__(self, root: Path, **lines: str) -> None:
        self.project = projects.make(root)
        for name, more in lines.items():
            projects.add_mod(root, name, "", {}, f"description: x\nenv: {{A: b}}\n{more}\n")

    def level(self, *names: str, definition: str = "small") -> ImageMods:
        return ImageMods(definition, tuple(mod.load_mod(self.project, name) for name in names), PINNED)

    def order(self, *levels: ImageMods) -> list[list[str]]:
        arranged = arrange_steps(levels, mod.mod_names(self.project))
        return [[mod.name for mod in level] for level in arranged]

    def problems(self, *levels: ImageMods) -> list[str]:
        with pytest.raises(FileProblemsError) as caught:
            self.order(*levels)
        return str(caught.value).splitlines()


def test_mods_are_baked_as_listed_but_after_those_that_they_name(tmp_path: Path) -> None:
    mods = Mods(tmp_path, a="after: [mods/d]", b="", c="after: [b]", d="after: [b]", e="")
    assert mods.order(mods.level("e", "b", "c")) == [["e", "b", "c"]]
    assert mods.order(mods.level("a", "c", "e", "d", "b")) == [["e", "b", "c", "d", "a"]]


def test_a_mod_that_is_not_baked_is_not_waited_for(tmp_path: Path) -> None:
    mods = Mods(tmp_path, a="after: [b]", b="")
    assert mods.order(mods.level("a")) == [["a"]]


def test_a_mod_of_the_image_below_comes_before_anyway(tmp_path: Path) -> None:
    mods = Mods(tmp_path, a="after: [b]", b="", c="")
    assert mods.order(mods.level("b"), mods.level("a", "c")) == [["b"], ["a", "c"]]


def test_a_circle_is_told_as_one(tmp_path: Path) -> None:
    mods = Mods(tmp_path, a="after: [b]", b="after: [template, c]", c="after: [b]")
    assert mods.problems(mods.level("a", "b", "c", "template")) == [
        "mods/b/mod.yaml:3:19: these mods form a cycle: b after c after b"
    ]


def test_an_unknown_name_is_told_with_the_nearest(tmp_path: Path) -> None:
    mods = Mods(tmp_path, a="after: [templat]", b="after: [zzz]")
    assert mods.problems(mods.level("a", "b")) == [
        "mods/a/mod.yaml:3:9: no mod `templat` in mods/; did you mean `template`?",
        "mods/b/mod.yaml:3:9: no mod `zzz` in mods/; `builder mods add ADDRESS` copies it from its repository",
    ]


def test_nothing_waits_for_what_is_baked_on_top_of_it(tmp_path: Path) -> None:
    mods = Mods(tmp_path, a="after: [b]", b="")
    assert mods.problems(mods.level("a", definition="low"), mods.level("b", definition="high")) == [
        "mods/a/mod.yaml:3:9: a is baked into low, but b only into high, which is built on low: remove b from `after`"
    ]


def test_a_conflict_is_told_once_whoever_names_it_and_in_whichever_image(tmp_path: Path) -> None:
    mods = Mods(tmp_path, a="conflicts: [b, somebody-elses]", b="conflicts: [mods/a]", c="")
    message = ["mods/a/mod.yaml:3:13: a and b cannot be in one image; remove one of them"]
    assert mods.problems(mods.level("a", "b")) == message
    assert mods.problems(mods.level("a"), mods.level("c", "b")) == message
    assert mods.order(mods.level("a", "c")) == [["a", "c"]]


@pytest.mark.parametrize(
    "requires",
    [
        "vllm: '>=0.22,<0.24'",
        "vllm: '>0.22'",
        "transformers: '>=5'",
        "Torch: '==2.13.0'",
        "flashinfer_python: '!=0.6.6'",
        "python: '>=3.12'",
        "python: ''",
    ],
)
def test_versions_that_will_do(tmp_path: Path, requires: str) -> None:
    mods = Mods(tmp_path, a=f"requires: {{{requires}}}")
    assert mods.order(mods.level("a")) == [["a"]]


@pytest.mark.parametrize(
    ("requires", "message"),
    [
        # A development version of 0.23.0 is not yet 0.23, and no longer before it either (PEP 440, exclusive ordering).
        ("vllm: '>=0.23'", "a requires vllm >=0.23, but 0.23.0.dev12+gabcdef0 is pinned"),
        ("vllm: '<0.23'", "a requires vllm <0.23, but 0.23.0.dev12+gabcdef0 is pinned"),
        ("transformers: '<5'", "a requires transformers <5, but 5.1.0 is pinned"),
        (
            "transformer: '<5'",
            "a requires transformer <5, but small pins no transformer; did you mean transformers?",
        ),
        ("six: '>=1'", "a requires six >=1, but small pins no six"),
    ],
)
def test_versions_that_will_not_do(tmp_path: Path, requires: str, message: str) -> None:
    mods = Mods(tmp_path, a=f"requires: {{{requires}}}")
    assert mods.problems(mods.level("a")) == [f"mods/a/mod.yaml:3:12: {message}"]


def test_what_another_mod_installs_is_pinned_by_it(tmp_path: Path) -> None:
    mods = Mods(tmp_path, a="requires: {tile-lang: '>=0.1'}", b="packages: ['Tile_Lang[x]==0.1.8']")
    assert mods.order(mods.level("b"), mods.level("a")) == [["b"], ["a"]]
    assert mods.order(mods.level("a", "b")) == [["a", "b"]]
    assert len(mods.problems(mods.level("a"), mods.level("b"))) == 1


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    mods = Mods(tmp_path, a="after: [b]\nrequires: {vllm: '<0'}", b="after: [a, nobody]\nconflicts: [a]")
    assert [line.split(": ")[0] for line in mods.problems(mods.level("a", "b"))] == [
        "mods/a/mod.yaml:3:9",
        "mods/a/mod.yaml:4:12",
        "mods/b/mod.yaml:3:12",
        "mods/b/mod.yaml:4:13",
    ]
