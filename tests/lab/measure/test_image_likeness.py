"""Two images by the texts that they rate: servers that rate alike, with noise, worse, by another template, or not."""

from __future__ import annotations

import json
import math
import random
from typing import TYPE_CHECKING, Any

import pytest

from builder.base import events, records
from builder.base.errors import MeasuringError, UsageError
from builder.lab.measure import forced_texts, image_likeness, measurement
from builder.lab.measure.forced_texts import LENGTH, RatedReference, TextPlan
from tests.lab.measure.openai_server import Behaviour, serving

if TYPE_CHECKING:
    from pathlib import Path

    from builder.lab.measure.image_likeness import ImageLikeness
    from tests.lab.measure.openai_server import Rater

SMALL = TextPlan(deepest=1024)
OTHER = 300  # no byte is this token


def rater(loss: float = 0.0, noise: float = 0.0, fault: float = 0.0, seed: int = 0) -> Rater:
    """A model that gives each byte about the probability of 1 in 20, less by ``loss``; noise is another one for each
    request, a fault the same one."""
    noises = random.Random(seed)  # noqa: S311

    def rate(tokens: list[int]) -> list[dict[str, dict[str, Any]] | None]:
        rated: list[dict[str, dict[str, Any]] | None] = [None]
        faults = random.Random(f"{tokens}") if fault else noises  # noqa: S311
        for token in tokens[1:]:
            off = (noises.gauss(0, noise) if noise else 0) + (faults.gauss(0, fault) if fault else 0) + loss
            own = {str(token): {"logprob": math.log(1 / 20) - off, "rank": 2 if off > 0.5 else 1, "decoded_token": "?"}}
            rated.append(own | ({str(OTHER): {"logprob": -0.5, "rank": 1, "decoded_token": "!"}} if off > 0.5 else {}))
        return rated

    return rate


First = tuple[forced_texts.ForcedPrompts, forced_texts.RatedImage]


def rate(first: Behaviour, plan: TextPlan = SMALL) -> First:
    """The prompts of a comparison, and the first image's ratings of them and its answers."""
    with serving(first) as served:
        given, ratings = forced_texts.rate_image(served, plan, "A", events.ignore)
        return given, forced_texts.with_answers(served, ratings, "A", events.ignore)


def compare(first: First, second: Behaviour, plan: TextPlan = SMALL) -> ImageLikeness:
    given, by_first = first
    with serving(second) as served:
        _, by_second = forced_texts.rate_image(served, plan, "B", events.ignore, given)
        by_second = forced_texts.with_answers(served, by_second, "B", events.ignore)
    return image_likeness.compare_images(given, by_first, by_second)


@pytest.fixture(scope="module")
def plain() -> First:
    """A model without noise or fault, which several tests compare with others."""
    return rate(Behaviour(rater=rater()))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("second", "verdict"),
    [
        (rater(), "identical"),
        (rater(fault=1e-6), "equivalent"),
        (rater(fault=0.02), "different"),
        (rater(loss=0.02), "different"),
    ],
)
def test_a_model_without_noise(plain: First, second: Rater, verdict: str) -> None:
    likeness = compare(plain, Behaviour(rater=second))
    assert likeness.verdict == verdict
    assert {each.kind for each in likeness.cells} == {*forced_texts.kinds(), forced_texts.TOOLS}
    assert likeness.right == (0, 0)
    assert likeness.answers_text == "neither image answers any of the 100 questions correctly, so they decide nothing"


@pytest.mark.long
@pytest.mark.slow
def test_a_model_with_noise_is_as_itself_until_more_than_that_differs() -> None:
    noisy = rate(Behaviour(rater=rater(noise=0.01, seed=1)))
    assert compare(noisy, Behaviour(rater=rater(noise=0.01, seed=2))).verdict == "equivalent"
    worse = compare(noisy, Behaviour(rater=rater(noise=0.01, loss=0.7, seed=2)))
    assert worse.verdict == "different"
    assert worse.change.change == pytest.approx(math.expm1(0.7), abs=0.02)
    assert worse.change.within(0.5) == "fail"
    (total,) = worse.totals
    assert total.agreement == 0
    assert total.parting == 'prompt 1, token 2: "!" instead of "?"'


@pytest.mark.slow
def test_another_template_is_told_and_all_is_rated_by_the_first_ones_tokens(plain: First) -> None:
    cut = Behaviour(rater=rater(), template=lambda body: json.dumps(body["messages"])[:-2])
    likeness = compare(plain, cut)
    assert (likeness.verdict, likeness.prompts_differ) == ("different", ("tools",))
    assert {each.compared.verdict for each in likeness.cells} == {"identical"}
    outcome = image_likeness.likeness_outcome(likeness, SMALL, (plain[1],) * 2, {"reference": "small:1"}, 0.005)
    assert (outcome.verdict, outcome.counts["prompts_differ"]) == ("changed", 1)
    assert json.loads(outcome.raw)["prompts_differ"] == ["tools"]


@pytest.mark.slow
def test_ratings_survive_a_file_and_a_template_may_be_missing() -> None:
    with serving(Behaviour(rater=rater(), template=lambda _: None)) as served:
        given, rated = forced_texts.rate_image(served, SMALL, "A", events.ignore)
    assert [line.split(":")[0] for line in given.left_out] == ["tools left out"]
    reference = RatedReference(given, rated)
    assert records.parse(records.text_of(reference, {}), RatedReference) == reference


@pytest.mark.parametrize(
    "answer",
    [
        lambda _: None,
        lambda _: [None],
        lambda tokens: [None] * len(tokens),
        lambda tokens: [{"7": {}} for _ in tokens],
        lambda tokens: [{str(token): {"logprob": "nan", "rank": 1}} for token in tokens],
        lambda tokens: [{str(token): {"logprob": -1.0}} for token in tokens],
    ],
)
def test_a_server_that_rates_nothing_is_told(answer: Any) -> None:
    with serving(Behaviour(rater=answer)) as served, pytest.raises(MeasuringError, match="A cannot rate texts: .*rat"):
        forced_texts.rate_image(served, SMALL, "A", events.ignore)


@pytest.mark.slow
def test_prompts_are_the_same_for_a_seed_and_hold_every_kind_at_every_depth() -> None:
    with serving(Behaviour(rater=rater(), context=12000)) as served:
        given = forced_texts.compose_prompts(served, TextPlan())
        assert forced_texts.compose_prompts(served, TextPlan()) == given
        assert forced_texts.compose_prompts(served, TextPlan(seed=1)).digests != given.digests
    texts = [text for prompt in given.prompts for text in prompt.texts]
    assert {text.depth for text in texts} == {1024, 8192}
    for depth in (1024, 8192):
        for kind in (*forced_texts.kinds(), forced_texts.TOOLS):
            assert sum((text.kind, text.depth) == (kind, depth) for text in texts) >= 6, (kind, depth)
    assert all(text.end - text.start in {LENGTH, LENGTH - 1} for text in texts)
    assert all(prompt.texts[-1].end <= len(prompt.tokens) <= 12000 - 1 for prompt in given.prompts)
    assert {prompt.tokens[0] for prompt in given.prompts[:-1]} == {1}  # what the tokenizer begins a text with


def test_depths_follow_the_context() -> None:
    assert TextPlan().depths(4096) == (1024, 4096)
    assert TextPlan().depths(40960) == (1024, 8192, 32768)
    assert TextPlan().depths(131072) == (1024, 8192, 32768, 131072)
    assert TextPlan(deepest=8192).depths(131072) == (1024, 8192)
    assert TextPlan().depths(512) == (512,)


@pytest.mark.slow
def test_sessions_of_the_owner_are_rated_and_nothing_of_them_is_kept(tmp_path: Path) -> None:
    request = {"messages": [{"role": "user", "content": "my secret plan " * 40}], "temperature": 1}
    (tmp_path / "one.json").write_text(json.dumps(request), encoding="utf-8")
    (tmp_path / "more.jsonl").write_text(
        f"{json.dumps({'body': request})}\n\n{json.dumps(request)}\n", encoding="utf-8"
    )
    (tmp_path / "notes.txt").write_text("no request", encoding="utf-8")
    sessions = forced_texts.read_sessions(tmp_path)
    assert len(sessions) == 3
    plan = TextPlan(deepest=1024, sessions=sessions)
    first = rate(Behaviour(rater=rater()), plan)
    likeness = compare(first, Behaviour(rater=rater(loss=0.6)), plan)
    cell = next(each for each in likeness.cells if each.kind == forced_texts.SESSIONS)
    assert (cell.compared.verdict, cell.parting) == ("different", "")
    outcome = image_likeness.likeness_outcome(likeness, plan, (first[1],) * 2, {"reference": "small:1"}, None)
    assert outcome.sampling["sessions"] == 3
    assert str(outcome.sampling["sessions_digest"]).startswith("sha256:")
    assert "secret" not in f"{outcome}"


def test_a_line_of_requests_ends_only_at_a_line_feed(tmp_path: Path) -> None:
    request = {"messages": [{"role": "user", "content": "one\u2028two\x85three"}]}
    (tmp_path / "two.jsonl").write_text(f"{json.dumps(request, ensure_ascii=False)}\r\n" * 2, encoding="utf-8")
    assert forced_texts.read_sessions(tmp_path) == (request, request)


@pytest.mark.parametrize("content", ["[", "[]", '{"messages": []}', '{"prompt": "x"}'])
def test_a_file_that_is_no_request_is_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(UsageError, match="contains no saved requests"):
        forced_texts.read_sessions(tmp_path)
    (tmp_path / "one.json").write_text(content, encoding="utf-8")
    with pytest.raises(UsageError, match=r"one\.json contains no saved request: "):
        forced_texts.read_sessions(tmp_path)


def test_questions_are_a_hundred_and_their_answers_are_recognised() -> None:
    asked = forced_texts.questions()
    assert len({each.text for each in asked}) == 100
    for said in ("{}", "The answer is {}.", "Let me see.\n\n**{}**", "Answer: `{}`"):
        assert all(forced_texts.is_answer(said.format(each.answer), each.answer) for each in asked)
    assert not forced_texts.is_answer("142", "42")
    assert not forced_texts.is_answer("42 or 43", "42")
    assert not forced_texts.is_answer("", "42")
    assert forced_texts.is_answer("That is 1,042", "1042")


@pytest.mark.slow
def test_answers_that_get_worse_are_found_and_counted() -> None:
    def model(wrong: int) -> Behaviour:
        answers = {each.text: (each.answer, number) for number, each in enumerate(forced_texts.questions())}

        def answer(body: dict[str, Any]) -> dict[str, Any]:
            right, number = answers[body["messages"][0]["content"].removesuffix(" Reply with the answer alone.")]
            return {"role": "assistant", "content": "no" if number < wrong else right}

        return Behaviour(model=answer, rater=rater())

    before = rate(model(16))
    likeness = compare(before, model(17))
    assert (likeness.verdict, likeness.answers_differ) == ("equivalent", False)
    assert likeness.answers_text == "84 of 100 right before, 83 after (1 lost, 0 gained)"
    worse = compare(before, model(50))
    assert (worse.verdict, worse.answers_differ) == ("different", True)


def test_a_server_without_logprobs_says_so() -> None:
    with serving(Behaviour()) as served:
        assert measurement.model_answers(served)
        with pytest.raises(MeasuringError, match="A cannot rate texts"):
            forced_texts.rate_image(served, SMALL, "A", events.ignore)
