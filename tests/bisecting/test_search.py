"""The search over made-up histories, with noise and holes: what it finds, and in how many steps."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from builder.lab.bisect import search
from builder.lab.bisect.search import Answers, Axis, Conclusion, ListPoints, TryCandidate
from tests.bisecting.histories import History, conclude

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


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([unit for axis in AXES for unit in axis.units]), st.integers(2, 9), st.data())
def test_one_unit_is_found_wherever_it_is(unit: str, broken: int, data: st.DataObject) -> None:
    numbers = data.draw(st.integers(broken, 12))
    found, _ = conclude(History(AXES, {unit: ""}, numbers=numbers, broken=broken))
    assert (found.ending, list(names(found)), found.joint) == ("found", [unit], False)
    assert (found.good.number, found.bad.taken) == (broken - 1, (unit,))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(COMMITS)))
def test_a_commit_among_1024_takes_ten_steps_after_its_axis(place: int) -> None:
    """Between the two ends are 1,022; the last place is the end itself."""
    fault = (*COMMITS, NEVER)[place]
    history = History(AXES, {"vllm": fault}, {"vllm": COMMITS})
    found, answers = conclude(history)
    good = COMMITS[place - 1] if place else ""
    assert names(found) == {"vllm": (good, "" if fault == NEVER else fault)}
    commits = {trial.candidate for trial in answers.trials if trial.candidate.points}
    assert len(commits) <= 10


@settings(max_examples=40, deadline=None)
@given(st.sets(st.sampled_from([unit for axis in AXES for unit in axis.units]), min_size=2, max_size=3))
def test_what_fails_only_together_is_found_together(units: set[str]) -> None:
    found, _ = conclude(History(AXES, dict.fromkeys(units, "")))
    assert set(names(found)) == units


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


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 1021), st.integers(0, 1021), st.integers(1, 30))
def test_holes_are_gone_around_and_a_culprit_in_them_is_a_range(place: int, start: int, length: int) -> None:
    holes = frozenset(COMMITS[start : start + length])
    found, answers = conclude(History(AXES, {"vllm": COMMITS[place]}, {"vllm": COMMITS}, holes))
    (culprit,) = found.culprits
    first = COMMITS.index(culprit.good) if culprit.good else -1
    last = COMMITS.index(culprit.bad) if culprit.bad else len(COMMITS)
    assert first < place <= last
    assert culprit.between == COMMITS[first + 1 : last]
    assert set(culprit.between) <= holes
    tried = {trial.candidate for trial in answers.trials if trial.candidate.points and not trial.skipped}
    assert len(tried) <= 14


def test_what_cannot_be_taken_apart_is_named_together() -> None:
    together = frozenset({"vllm", "base"})
    found, answers = conclude(History(AXES, {"vllm": ""}, together=together))
    assert names(found).keys() == together
    assert found.joint
    assert all(together & set(trial.candidate.taken) in (set(), together) for trial in answers.trials)


def test_the_ends_are_looked_at_first() -> None:
    both_good = History(AXES, {"vllm": ""}, broken=3, numbers=2)
    assert conclude(both_good)[0].ending == "bad end passes"
    both_bad = History(AXES, {"vllm": ""}, broken=1, numbers=2)
    assert conclude(both_bad)[0].ending == "good end fails"


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1021))
def test_what_mended_it_is_found_in_the_other_direction(place: int) -> None:
    found, _ = conclude(History(AXES, {"vllm": COMMITS[place]}, {"vllm": COMMITS}, find_fix=True))
    assert names(found)["vllm"][1] == COMMITS[place]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1021), st.sampled_from(AXES), st.integers(0, 1000))
def test_one_of_the_two_that_are_prepared_is_what_comes_next(place: int, axis: Axis, seed: int) -> None:
    fault = {"vllm": COMMITS[place]} if axis.name == "vllm" else {axis.units[0]: ""}
    history = History(AXES, fault, {"vllm": COMMITS}, seed=seed, numbers=6, broken=4)
    answers = Answers()
    for _ in range(60):
        step = search.next_step(history.subject(), answers)
        if isinstance(step, Conclusion):
            break
        if isinstance(step, ListPoints):
            answers = Answers(answers.trials, (*answers.rows, history.row(step)))
            continue
        ahead = search.likely_next(history.subject(), answers, step)
        assert len(ahead) <= 2
        answers = Answers((*answers.trials, *history.answer(step)), answers.rows)
        following = search.next_step(history.subject(), answers)
        if isinstance(following, TryCandidate) and following.candidate != step.candidate:
            assert following.candidate in ahead
