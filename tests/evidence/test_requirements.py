"""What is missing of what a pairing requires, by runs that are recorded."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.base.errors import ConflictError, FileProblemsError
from builder.base.machine_record import Machine
from builder.base.project import Project
from builder.definitions.configuration import RequiredEvidence, RequiredFigure
from builder.evidence import requirements, run_record, standing, statistics
from builder.evidence.requirements import RecordedRuns
from builder.evidence.run_record import Evidence, Figure, Subject
from builder.evidence.statistics import SeriesComparison, compare_runs
from builder.lock.model import ImageName, Lock, Model, NumberedImage, Pairing, Repository
from tests import projects
from tests.evidence import runs
from tests.workspaces import NO_ENGINE, workspace

if TYPE_CHECKING:
    from pathlib import Path


OLD, NEW = ImageName("small", 1), ImageName("small", 2)
TG = RequiredFigure("tg", 32768, None, True, 95, True)
PROVE, PROBE, BENCH = RequiredEvidence(prove=True), RequiredEvidence(probes=("long",)), RequiredEvidence(figures=(TG,))
RECIPE = "name: chat\nmodel: {model}\ncontainer: small\ncommand: vllm serve {model}\nrequires: {requires}\n"


def subject(image: ImageName, **parts: Any) -> Subject:
    return Subject(**{"image": str(image), "fingerprint": f"sha256:{image.number:064x}", "model": runs.MODEL, **parts})


def recorded(image: ImageName, *of_image: Evidence) -> RecordedRuns:
    return RecordedRuns(image, of_image, lambda _: subject(image))


def proof(image: ImageName = NEW, verdict: str = "pass", **more: Any) -> Evidence:
    return runs.proof(verdict, **{"subject": subject(image), **more})


def probe(image: ImageName = NEW, verdict: str = "pass", **more: Any) -> Evidence:
    return runs.proof(verdict, kind="probe", name="long", **{"subject": subject(image), **more})


def bench(image: ImageName, *values: float, depth: int = 32768, concurrency: int = 1, **more: Any) -> Evidence:
    figure = Figure("tg", {"depth": depth, "concurrency": concurrency, "tg": 128}, "tokens/s", "higher", values)
    fields: dict[str, Any] = {
        "subject": subject(image, machine=runs.MACHINE), "figures": (figure,), "findings": (),
        "accepted": "",
    }  # fmt: skip
    return replace(runs.bench(), **{**fields, **more})


def lacking(wanted: RequiredEvidence, new: tuple[Evidence, ...], old: tuple[Evidence, ...] | None = None) -> list[str]:
    of_current = None if old is None else recorded(OLD, *old)
    return [str(each) for each in requirements.unmet(wanted, recorded(NEW, *new), of_current)]


@pytest.mark.parametrize(
    ("wanted", "of_image", "why"),
    [
        (PROVE, (), "prove: has not been run"),
        (PROVE, (proof(OLD),), "prove: is stale: the image has different content"),
        (PROVE, (proof(), proof(verdict="fail")), "prove: failed"),
        (PROVE, (proof(), proof(verdict="changed")), "prove: differs from the previous number"),
        (PROVE, (proof(verdict="unclear"),), "prove: reached no verdict"),
        (PROVE, (proof(subject=subject(NEW, model="Org/Other")),), "prove: has not been run"),
        (PROBE, (proof(), replace(probe(), name="other")), "probe long: has not been run"),
        (PROBE, (probe(verdict="fail", findings=runs.bench().findings),), "probe long: failed (calls at step 9 of 12)"),
        (BENCH, (), "bench tg at 32768: has not been run"),
        (
            BENCH,
            (replace(bench(NEW, verdict="fail"), figures=()),),
            "bench tg at 32768: not measured: bench quick failed",
        ),
        (BENCH, (bench(NEW, 50, 51, depth=0),), "bench tg at 32768: has not been run"),
        (BENCH, (bench(NEW, 50, 51, concurrency=4),), "bench tg at 32768: has not been run"),
        (BENCH, (bench(NEW, 50),), "bench tg at 32768: measured only once, so the spread is unknown"),
        (BENCH, (bench(NEW, 50, 51, verdict="fail"),), "bench tg at 32768: its run failed"),
    ],
)  # fmt: skip
def test_only_a_fresh_run_of_ones_own_that_passed_counts(
    wanted: RequiredEvidence, of_image: tuple[Evidence, ...], why: str
) -> None:
    assert lacking(wanted, of_image) == [why]


def test_a_probe_that_was_changed_has_to_be_taken_again() -> None:
    of_image = replace(recorded(NEW, probe()), probes={"long": f"sha256:{9:064x}"})
    assert [str(each) for each in requirements.unmet(PROBE, of_image, None)] == [
        "probe long: is stale: the probe changed"
    ]
    assert not list(requirements.unmet(PROBE, replace(of_image, probes={"long": probe().set}), None))


def test_what_is_there_and_passed_is_not_missing() -> None:
    everything = RequiredEvidence(True, ("long",), (TG,))
    assert lacking(everything, (proof(verdict="fail"), proof(), probe(), bench(NEW, 50, 51))) == []


@pytest.mark.parametrize(
    ("old", "why"),
    [
        ((), "the benchmark of the current image, small:1, has not been run"),
        ((bench(OLD, 52),), "the current image, small:1, has too few values of this figure to compare"),
        ((bench(OLD, 54, 54),), "50.5 tokens/s; required: >= 95 % of current; current image: 54"),
        ((bench(OLD, 53, 53),), ""),
        ((bench(OLD, 50, 50, set=f"sha256:{9:064x}"),), "the current image, small:1, cannot be compared: another"),
        (
            (bench(OLD, 50, 50, version="llama-benchy 0.3"),),
            "the current image, small:1, cannot be compared: different tools: llama",
        ),
        (
            (bench(OLD, 50, 50, subject=subject(OLD, machine=Machine("NVIDIA H100", 1))),),
            "the current image, small:1, cannot be compared: another machine",
        ),
        (
            (bench(OLD, 50, 50, subject=subject(OLD, machine=replace(runs.MACHINE, cpu="another"))),),
            "the current image, small:1, cannot be compared: another machine",
        ),
        ((bench(OLD, 50, 50, subject=subject(OLD, machine=replace(runs.MACHINE, cpu=""))),), ""),
    ],
)  # fmt: skip
def test_a_figure_is_compared_with_that_of_the_current_image(old: tuple[Evidence, ...], why: str) -> None:
    found = lacking(BENCH, (bench(NEW, 50, 51),), old)
    assert [each.startswith(f"bench tg at 32768: {why}") for each in found] == ([True] if why else [])


@given(st.lists(st.floats(1, 1e6), min_size=2, max_size=5), st.lists(st.floats(1, 1e6), min_size=2, max_size=5))
def test_the_means_decide_and_a_better_figure_always_passes(new: list[float], old: list[float]) -> None:
    of_new, of_old = bench(NEW, *new).figures[0].mean, bench(OLD, *old).figures[0].mean
    assert bool(lacking(BENCH, (bench(NEW, *new),), (bench(OLD, *old),))) == (of_new < of_old * 95 / 100)


def rounds(image: ImageName, *means: float) -> tuple[Evidence, ...]:
    return tuple(bench(image, mean - 0.1, mean, mean + 0.1) for mean in means)


@pytest.mark.parametrize(
    ("new", "old", "limit", "why"),
    [
        # By the means alone, one of two that do not differ is always below the other.
        ((49.6, 49.8, 49.7), (49.7, 49.8, 49.9), 100, ""),
        ((49.0, 50.0), (50.0, 49.1), 100, "49.5 tokens/s; required: >= 100 % of current; current image: 49.55"),
        ((45.0, 45.1, 44.9), (50.0, 50.1, 49.9), 95, "45 tokens/s; required: >= 95 % of current; current image: 50 ("),
        ((48.0, 48.1, 47.9), (50.0, 50.1, 49.9), 95, ""),
        ((40.0, 56.0, 45.0), (50.0, 41.0, 54.0), 100, "47 tokens/s; required: >= 100 % of current"),
        # What was measured before the rounds does not count.
        ((50.0, 50.1, 49.9), (80.0, 80.0, 50.0, 50.1, 49.9), 95, ""),
    ],
)  # fmt: skip
def test_rounds_in_turn_are_told_apart_as_two_numbers_are(
    new: tuple[float, ...], old: tuple[float, ...], limit: int, why: str
) -> None:
    wanted = RequiredEvidence(figures=(replace(TG, limit=limit),))
    found = lacking(wanted, rounds(NEW, *new), rounds(OLD, *old))
    assert [each.startswith(f"bench tg at 32768: {why}") for each in found] == ([True] if why else [])


def test_what_noise_hides_has_not_failed() -> None:
    sides = recorded(NEW, *rounds(NEW, 40, 56, 45)), recorded(OLD, *rounds(OLD, 50, 41, 54))
    wanted = replace(TG, limit=100)
    (found,) = requirements.unmet(RequiredEvidence(figures=(wanted,)), *sides)
    assert (found.failed, str(found).endswith("over 3 rounds): too much noise to tell")) == (False, True)
    assert requirements.needs_rounds(wanted, *sides)


@pytest.mark.parametrize(
    ("new", "old", "more"),
    [
        ((), (50.0,), True),
        ((50.0, 50.0), (50.0, 50.0), True),
        ((50.0, 50.1, 49.9), (50.0, 50.1, 49.9), False),
        ((45.0, 45.1, 44.9), (50.0, 50.1, 49.9), False),
        ((40.0, 56.0, 45.0), (50.0, 41.0, 54.0), True),
        ((40.0, 56.0, 45.0) * 3, (50.0, 41.0, 54.0) * 3, False),
    ],
)
def test_rounds_go_on_until_they_tell(new: tuple[float, ...], old: tuple[float, ...], more: bool) -> None:
    sides = recorded(NEW, *rounds(NEW, *new)), recorded(OLD, *rounds(OLD, *old))
    assert requirements.needs_rounds(TG, *sides) == more


@given(st.integers(0, 2**32))
def test_no_round_of_the_same_is_outside_and_no_tenth_less_is_within(seed: int) -> None:
    """The noise is a hundredth from round to round, and from run to run."""
    numbers = random.Random(seed)  # noqa: S311

    def side(image: ImageName, mean: float) -> RecordedRuns:
        means = [numbers.gauss(mean, mean * 0.01) for _ in range(4)]
        return recorded(image, *(bench(image, *(numbers.gauss(each, each * 0.01) for _ in range(3))) for each in means))

    same, tenth = side(NEW, 50), side(NEW, 45)
    of_current, wanted = side(OLD, 50), RequiredEvidence(figures=(TG,))
    assert not [each for each in requirements.unmet(wanted, same, of_current) if each.failed]
    assert list(requirements.unmet(wanted, tenth, of_current))


VERDICTS = st.sampled_from(["pass", "changed", "fail", "unclear"])


@given(st.lists(st.tuples(VERDICTS, st.sampled_from([OLD, NEW]))))
def test_the_latest_run_decides_whatever_lies_before_it(history: list[tuple[str, ImageName]]) -> None:
    of_image = tuple(proof(image, verdict) for verdict, image in history)
    assert (lacking(PROVE, of_image) == []) == bool(history and history[-1] == ("pass", NEW))


def make(root: Path, requires: str = "{prove: pass}") -> tuple[Project, Lock]:
    project = Project(root)
    (root / "dockerfiles").mkdir(parents=True)
    projects.write(root / "recipes/chat.yaml", RECIPE.format(model=runs.MODEL, requires=requires))
    numbers = {
        number: NumberedImage(
            "2026-11-20T22:00:00Z", "small", "linux/arm64", f"sha256:{number:064x}", f"sha256:{number:064x}", 5,
            recipe="recipes/chat.yaml",
        )
        for number in (1, 2)
    }  # fmt: skip
    pairing = Model(Pairing(OLD, "recipes/chat.yaml"))
    return project, Lock(images={"small": Repository(3, 1, numbers=numbers)}, models={runs.MODEL: pairing})


def now(project: Project, lock: Lock, image: ImageName = NEW) -> Subject:
    return standing.present_subject(project, lock, image, runs.MODEL, "prove", recipe=requirements.recipe_of(
        project, lock, image, runs.MODEL
    ))  # fmt: skip


def test_from_the_files_of_a_project(tmp_path: Path) -> None:
    project, lock = make(tmp_path)
    (missing,) = requirements.missing(project, lock, NEW, runs.MODEL)
    assert str(missing) == "prove: has not been run"
    command = requirements.missing_command(project, lock, missing, NEW, runs.MODEL)
    assert command == f"builder prove small:2 {runs.MODEL}"
    run_record.add_run(project, NEW, proof(subject=now(project, lock)))
    assert requirements.missing(project, lock, NEW, runs.MODEL) == ()
    path = project.recipes / "chat.yaml"
    path.write_text(path.read_text().replace("serve", "serve --chat-template /x --tool-call-parser hermes"))
    (missing,) = requirements.missing(project, lock, NEW, runs.MODEL)
    assert str(missing) == "prove: is stale: the recipe's options changed"


def test_without_requirements_no_file_of_evidence_is_read(tmp_path: Path) -> None:
    project, lock = make(tmp_path, "{}")
    projects.write(project.evidence / "small/2/damaged.json", "{")
    assert requirements.missing(project, lock, NEW, runs.MODEL) == ()
    projects.write(project.root / "builder.yaml", "requires: {prove: pass}\n")
    with pytest.raises(FileProblemsError, match=r"evidence/small/2/damaged.json"):
        requirements.missing(project, lock, NEW, runs.MODEL)


def test_what_is_known_of_an_image_has_the_marks_of_its_models(tmp_path: Path) -> None:
    project, lock = make(tmp_path, "{}")
    lock = lock.with_model(runs.MODEL, Model(Pairing(OLD), (Pairing(NEW, status="bad", note="slow"),)))
    known = requirements.described(workspace(project, NO_ENGINE), lock, NEW, OLD, runs.MODEL)
    assert known == f"unmarked, bad for {runs.MODEL}: slow, its proof for {runs.MODEL} has not been run"


@pytest.mark.parametrize("requires", ["{}", "{probe: [long]}"])
def test_a_proof_that_failed_is_missing_whatever_is_required(tmp_path: Path, requires: str) -> None:
    project, lock = make(tmp_path, requires)
    run_record.add_run(project, NEW, proof(verdict="fail"))
    assert ("prove", True) in {
        (each.kind, each.failed) for each in requirements.missing(project, lock, NEW, runs.MODEL)
    }
    with pytest.raises(ConflictError):
        requirements.passed(workspace(project, NO_ENGINE), lock, NEW, {runs.MODEL: None})
    assert requirements.unfit(project, {}, lock, NEW, OLD, None) == f"did not pass its proof for {runs.MODEL}"
    for verdict in ("changed", "unclear", "pass"):
        run_record.add_run(project, NEW, proof(verdict=verdict))
        lacking = requirements.missing(project, lock, NEW, runs.MODEL)
        assert "prove" not in {each.kind for each in lacking}
        assert requirements.unfit(project, {}, lock, NEW, OLD, None) == ""


def test_a_recipe_that_cannot_be_read_may_require_anything(tmp_path: Path) -> None:
    project, lock = make(tmp_path, "{proof: pass}")
    with pytest.raises(FileProblemsError, match="did you mean `prove`"):
        requirements.missing(project, lock, NEW, runs.MODEL)


def test_the_gate_tells_all_that_is_missing_or_keeps_the_note(tmp_path: Path) -> None:
    project, lock = make(tmp_path, "{prove: pass, probe: [long]}")
    of_project = workspace(project, NO_ENGINE)
    by_recipe = {runs.MODEL: None}
    with pytest.raises(ConflictError) as raised:
        requirements.passed(of_project, lock, NEW, by_recipe)
    assert raised.value.message.splitlines() == [
        f"small:2 lacks what {runs.MODEL} requires: no pointer was moved",
        f"  prove: has not been run; `builder prove small:2 {runs.MODEL}`",
        f"  probe long: has not been run; `builder probe {runs.MODEL} long --image small:2`",
    ]
    assert requirements.passed(of_project, lock, NEW, by_recipe, "seen by eye") == "without its evidence: seen by eye"
    assert requirements.passed(of_project, lock, NEW, {}, "seen by eye") == "seen by eye"


MODEL = runs.MODEL


@pytest.mark.parametrize(
    ("requires", "paired", "command"),
    [
        ('bench: {tg: ">= 40"}', OLD, f"builder bench {MODEL} --image small:2 --profile quick"),
        # The profile `quick` measures no depth.
        ('bench: {tg at 32768: ">= 40"}', OLD, f"builder bench {MODEL} --image small:2 --profile community"),
        ('bench: {"tg at 131072, concurrency 4": ">=4"}', OLD, f"builder bench {MODEL} --image small:2 --profile deep"),
        ('bench: {tg at 7: ">= 40"}', OLD, f"builder bench {MODEL} --image small:2 --profile PROFILE"),
        # The current image has no figures either.
        ('bench: {tg: ">= 95 % of current"}', OLD, f"builder bench {MODEL} --compare small:1 small:2 --profile quick"),
        # No command knows a model that was never paired.
        ('bench: {tg: ">= 40"}', None, "builder bench recipes/chat.yaml --image small:2 --profile quick"),
        ("probe: [long]", None, "builder probe recipes/chat.yaml long --image small:2"),
        ("prove: pass", None, "builder prove small:2 recipes/chat.yaml"),
    ],
)  # fmt: skip
def test_the_command_provides_what_is_missing(
    tmp_path: Path, requires: str, paired: ImageName | None, command: str
) -> None:
    project, lock = make(tmp_path, f"{{{requires}}}")
    lock = lock if paired else replace(lock, models={})
    (missing,) = requirements.missing(project, lock, NEW, MODEL)
    assert requirements.missing_command(project, lock, missing, NEW, MODEL) == command


@pytest.mark.parametrize("option", ["--force", "--force --note TEXT"])
def test_each_command_names_the_options_that_it_has(tmp_path: Path, option: str) -> None:
    project, lock = make(tmp_path)
    with pytest.raises(ConflictError) as raised:
        requirements.passed(workspace(project, NO_ENGINE), lock, NEW, {MODEL: None}, anyway=option)
    assert raised.value.hint == f"run these commands; to move the pointer anyway, add `{option}`"


# Comparisons of series that are known, and properties of all of them.

RUNS = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=5)
ROUNDS = st.lists(RUNS, min_size=1, max_size=6)


def statistics_rounds(
    numbers: random.Random, mean: float, *, count: int, between: float, within: float
) -> list[list[float]]:
    result = []
    for _ in range(count):
        shift = numbers.gauss(0, between)
        result.append([mean * math.exp(shift + numbers.gauss(0, within)) for _ in range(3)])
    return result


def in_turn(numbers: random.Random, slower: float, between: float, within: float) -> SeriesComparison:
    """The comparison of two that are measured round by round until it is settled, as `alternation` does."""
    first: list[list[float]] = []
    second: list[list[float]] = []
    while True:
        first += statistics_rounds(numbers, 50, count=1, between=between, within=within)
        second += statistics_rounds(numbers, 50 * slower, count=1, between=between, within=within)
        compared = compare_runs(first, second, "higher")
        enough = len(first) >= statistics.FEWEST_ROUNDS and compared.is_settled
        if enough or len(first) == statistics.MOST_ROUNDS:
            return compared


# The spread of decoding is below 5 %, that of reading below 2 %; starts differ, too.
@pytest.mark.parametrize(("between", "within"), [(0, 0.005), (0, 0.02), (0, 0.04), (0.01, 0.01), (0.015, 0.005)])
def test_the_same_is_never_worse_and_a_tenth_slower_always_is(between: float, within: float) -> None:
    numbers = random.Random(7)  # noqa: S311
    same = [in_turn(numbers, 1.0, between, within).verdict for _ in range(100)]
    slower = [in_turn(numbers, 0.9, between, within).verdict for _ in range(100)]
    assert same.count("worse") <= 1, "of a hundred"
    assert slower.count("better") == 0
    assert slower.count("worse") >= 99


def test_noise_that_is_larger_than_the_difference_tells_nothing() -> None:
    numbers = random.Random(3)  # noqa: S311
    verdicts = [in_turn(numbers, 0.9, 0.2, 0.2).verdict for _ in range(50)]
    assert verdicts.count("no difference") > 40


def test_one_sample_gives_no_verdict() -> None:
    assert compare_runs([[50.0]], [[5.0]], "higher").verdict == "no difference"
    assert compare_runs([[50.0, 50.1, 49.9]], [[5.0, 5.1, 4.9]], "higher").verdict == "no difference"
    two = compare_runs([[50.0, 50.1], [50.2, 49.9]], [[5.0, 5.1], [5.0, 4.9]], "higher")
    assert two.verdict == "no difference"


def test_rounds_that_differ_more_than_their_runs_are_what_was_measured() -> None:
    # 45 runs that hardly differ within a round would make any difference sure.
    first = [[50 + shift + run / 1000 for run in range(9)] for shift in (-3, 0, 3)]
    second = [[49 + shift + run / 1000 for run in range(9)] for shift in (-3, 0, 3)]
    compared = compare_runs(first, second, "higher")
    assert compared.verdict == "no difference"
    assert compared.low < -0.2 < 0.2 < compared.high


def test_a_difference_that_is_sure_and_tiny_is_none() -> None:
    first, second = [[100.0, 100.01]] * 4, [[101.0, 101.01]] * 4
    compared = compare_runs(first, second, "higher")
    assert compared.low > 0
    assert compared.verdict == "no difference"


def test_the_direction_decides_which_is_better() -> None:
    slow, fast = [[100.0, 101.0, 99.0]] * 3, [[50.0, 51.0, 49.0]] * 3
    assert compare_runs(slow, fast, "higher").verdict == "worse"
    assert compare_runs(slow, fast, "lower").verdict == "better"


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_positive_number_tells_nothing(value: float) -> None:
    compared = compare_runs([[50.0, 50.1]] * 3, [[value, 5.0], [5.0, 5.1], [5.0, 4.9]], "higher")
    assert compared.verdict == "no difference"
    assert not compared.is_settled


# Tables of Student's distribution.
@pytest.mark.parametrize(
    ("share", "freedom", "value"),
    [(0.975, 1, 12.706), (0.975, 2, 4.303), (0.975, 10, 2.228), (0.9995, 4, 8.610), (0.9995, 30, 3.646)],
)
def test_quantiles_of_students_distribution(share: float, freedom: int, value: float) -> None:
    assert statistics._quantile(share, freedom) == pytest.approx(value, abs=0.001)


@pytest.mark.slow
@given(ROUNDS, ROUNDS)
def test_exchanging_the_two_exchanges_the_verdict(first: list[list[float]], second: list[list[float]]) -> None:
    there, back = compare_runs(first, second, "higher"), compare_runs(second, first, "higher")
    exchanged = {"better": "worse", "worse": "better", "no difference": "no difference"}
    # The smallest difference that is told is a share of the first, which is not the same one.
    if abs(there.change) > 0.03 and abs(back.change) > 0.03:
        assert back.verdict == exchanged[there.verdict]


@pytest.mark.slow
@given(ROUNDS, ROUNDS, st.floats(1e-3, 1e3))
def test_units_change_nothing(first: list[list[float]], second: list[list[float]], factor: float) -> None:
    plain = compare_runs(first, second, "higher")
    more, others = ([[value * factor for value in runs] for runs in side] for side in (first, second))
    scaled = compare_runs(more, others, "higher")
    assert scaled.change == pytest.approx(plain.change, rel=1e-6, abs=1e-9)


@given(ROUNDS, ROUNDS)
def test_the_change_lies_in_its_band(first: list[list[float]], second: list[list[float]]) -> None:
    compared = compare_runs(first, second, "higher")
    assert compared.low <= compared.change <= compared.high
    if compared.verdict != "no difference":
        assert min(len(first), len(second)) >= statistics.FEWEST_ROUNDS
        assert not compared.low <= 0 <= compared.high


@pytest.mark.slow
@given(ROUNDS)
def test_a_series_does_not_differ_from_itself(series: list[list[float]]) -> None:
    assert compare_runs(series, series, "higher").verdict == "no difference"


@pytest.mark.slow
@given(ROUNDS, ROUNDS)
def test_the_more_is_judged_at_once_the_wider_the_band(first: list[list[float]], second: list[list[float]]) -> None:
    one, many = compare_runs(first, second, "higher"), compare_runs(first, second, "higher", together=9)
    assert many.low <= one.low
    assert many.high >= one.high


def test_the_spread_of_a_series() -> None:
    assert statistics.spread([9, 10, 11]) == pytest.approx(0.1)
    assert statistics.spread([5]) == 0
    assert statistics.spread([]) == 0
