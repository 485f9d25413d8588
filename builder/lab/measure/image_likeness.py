"""Judges two images that rated the same texts: for each kind and depth, and in total.

The reference is the distance of the first image from itself in other batches. `evidence/statistics.py` has the tests.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from statistics import fmean
from typing import TYPE_CHECKING

from builder.base import records, words
from builder.base.errors import MeasuringError
from builder.base.values import dataclass, replace
from builder.evidence import statistics
from builder.evidence.run_record import SAME, Figure, Finding, Verdict
from builder.lab.measure import forced_texts, measurement
from builder.lab.measure.measurement import Outcome

if TYPE_CHECKING:
    from builder.evidence.statistics import Likeness, LikenessComparison, PerplexityChange
    from builder.lab.measure.forced_texts import ForcedPrompts, ForcedText, RatedImage, TextPlan

ALL = "all"
VERSION = f"answers {forced_texts.VERSION}"
_MOST_FINDINGS = 60
_ENDLESS = 1e6


@dataclass(frozen=True)
class ComparedTexts:
    """The comparison of all ``texts`` of a kind, or of `ALL` kinds, at a depth. ``agreement`` is the share of places
    with the same most likely token. ``parting`` describes the first place with different ones."""

    kind: str
    depth: int
    texts: int
    compared: LikenessComparison
    agreement: float
    parting: str = ""

    @property
    def difference(self) -> str:
        """The comparison in words."""
        compared = self.compared
        text = (
            f"probabilities {compared.apart:.2%} apart (the first image from itself: {compared.noise:.2%}), "
            f"perplexity {_band(compared)}, the same most likely token at {self.agreement:.1%} of the positions"
        )
        if compared.verdict == "cannot tell":
            return f"{text}; {words.counted(self.texts, 'text')} cannot decide, about {compared.needed} would be enough"
        return f"{text}; they first differ at {self.parting}" if self.parting else text


@dataclass(frozen=True)
class ImageLikeness:
    """The comparison of two images. ``prompts_differ`` names the kinds with different tokens. ``right`` counts the
    correct answers of each image to the ``questions``, and ``parted`` the lost and the gained ones. ``answers_differ``
    is true if these are statistically significant."""

    verdict: Likeness
    cells: tuple[ComparedTexts, ...]
    totals: tuple[ComparedTexts, ...]
    prompts_differ: tuple[str, ...]
    right: tuple[int, int]
    questions: int
    parted: tuple[int, int]
    answers_differ: bool
    change: PerplexityChange
    left_out: tuple[str, ...] = ()

    @property
    def differing(self) -> tuple[ComparedTexts, ...]:
        """The kinds and depths with the verdict `different` or `cannot tell`: `ALL` kinds first, then by distance."""
        every = [each for each in (*self.totals, *self.cells) if each.compared.verdict in {"different", "cannot tell"}]

        def order(each: ComparedTexts) -> tuple[bool, bool, float]:
            return each.compared.verdict != "different", each.kind != ALL, -each.compared.apart

        return tuple(sorted(every, key=order))

    @property
    def change_text(self) -> str:
        """The change of perplexity over all texts with its band, and the largest distances at any depth."""
        apart, noise = (max(getattr(each.compared, name) for each in self.totals) for name in ("apart", "noise"))
        distance = f"probabilities up to {apart:.2%} apart (the first image from itself: {noise:.2%})"
        return f"perplexity {_band(self.change)}, {distance}"

    @property
    def answers_text(self) -> str:
        """The correct answers of both images in words."""
        before, after = self.right
        if not before and not after:
            return f"neither image answers any of the {self.questions} questions correctly, so they decide nothing"
        lost, gained = self.parted
        return f"{before} of {self.questions} right before, {after} after ({lost} lost, {gained} gained)"

    @property
    def times(self) -> int:
        """The factor by which more texts would decide; 1 if the present texts decide."""
        return max((-(-each.compared.needed // each.texts) for each in self.differing), default=1) or 1


def _band(change: LikenessComparison | PerplexityChange) -> str:
    high = "?" if change.high > _ENDLESS else f"{change.high:+.2%}"
    return f"{change.change:+.2%} ({change.low:+.2%} … {high})"


@dataclass(frozen=True)
class _Measured:
    """One text. ``noise`` is the distance of the first image from itself, and ``apart`` of the second from the first.
    ``growth`` is the difference of the logarithm of the perplexity. ``same`` counts the places with the same likeliest
    token. ``parting`` is the first different token: prompt, start of the text, and description (empty: none
    differs)."""

    text: ForcedText
    noise: float
    apart: float
    growth: float
    same: int
    is_identical: bool
    parting: tuple[int, int, str]


def compare_images(given: ForcedPrompts, first: RatedImage, second: RatedImage) -> ImageLikeness:
    """Compares two images that rated the prompts ``given``. Raises MeasuringError if an image rated other prompts."""
    measured = [each for number in range(len(given.prompts)) for each in _measured(given, number, first, second)]
    measured.sort(key=lambda each: (each.text.depth, each.text.kind))
    by_cell = {key: list(each) for key, each in groupby(measured, lambda text: (text.text.kind, text.text.depth))}
    by_depth = {depth: list(each) for depth, each in groupby(measured, lambda text: text.text.depth)}
    together = len(by_cell) + len(by_depth) + 1
    cells = tuple(_compared(*key, each, together) for key, each in by_cell.items())
    totals = tuple(_compared(ALL, depth, each, together) for depth, each in by_depth.items())
    differ = tuple(sorted({_kind(key) for key, own in first.digests.items() if second.digests.get(key) != own}))
    lost = sum(a and not b for a, b in zip(first.right, second.right, strict=True))
    gained = sum(b and not a for a, b in zip(first.right, second.right, strict=True))
    answers_differ = statistics.sign_test(lost, gained) < statistics.FALSE_ALARMS / together
    verdicts = {each.compared.verdict for each in (*cells, *totals)}
    verdict: Likeness = "equivalent"
    if "different" in verdicts or differ or answers_differ:
        verdict = "different"
    elif "cannot tell" in verdicts:
        verdict = "cannot tell"
    elif verdicts == {"identical"} and not lost + gained:
        verdict = "identical"
    return ImageLikeness(
        verdict,
        cells,
        totals,
        differ,
        (sum(first.right), sum(second.right)),
        len(first.right),
        (lost, gained),
        answers_differ,
        statistics.perplexity_change([[text.growth for text in each] for each in by_cell.values()]),
        given.left_out,
    )


def _kind(key: str) -> str:
    return forced_texts.SESSIONS if key.startswith(forced_texts.SESSIONS) else key


def _measured(given: ForcedPrompts, number: int, first: RatedImage, second: RatedImage) -> Iterator[_Measured]:
    """The texts of one prompt."""
    prompt = given.prompts[number]
    sides = (first.alone[number], first.together[number], second.alone[number], second.together[number])
    if any(len(side.likeliest) != len(prompt.tokens) - 1 for side in sides):
        raise MeasuringError("the two images cannot be compared because they rated different prompts")
    for text in prompt.texts:
        places = range(text.start - 1, text.end - 1)
        a1, a2, b1, b2 = ([side.log_probabilities[place] for place in places] for side in sides)
        t1, t2, u1, u2 = ([side.likeliest[place] for place in places] for side in sides)
        parts = [place for place, a, own, b, c in zip(places, t1, t2, u1, u2, strict=True) if a == own != b == c]
        parting = ""
        if parts and text.kind != forced_texts.SESSIONS:
            place = parts[0]
            before, after = (_spelled(image, number, place) for image in (first, second))
            parting = f"prompt {number + 1}, token {place + 2:,}: {after} instead of {before}"
        yield _Measured(
            text,
            noise=_distance(a1, a2),
            apart=(_distance(a1, b1) + _distance(a2, b2)) / 2,
            growth=(fmean(a1) + fmean(a2) - fmean(b1) - fmean(b2)) / 2,
            same=sum(map(int.__eq__, t1, u1)),
            is_identical=(a1, a2, t1, t2) == (b1, b2, u1, u2),
            parting=(number, text.start, parting),
        )


def _spelled(image: RatedImage, number: int, place: int) -> str:
    token = image.alone[number].likeliest[place]
    text = image.spelled.get(str(token), "")
    return json.dumps(text, ensure_ascii=False) if text.strip("\ufffd") else f"token {token}"


def _distance(first: Sequence[float], second: Sequence[float]) -> float:
    return fmean(abs(a - b) for a, b in zip(first, second, strict=True))


def _compared(kind: str, depth: int, measured: Sequence[_Measured], together: int) -> ComparedTexts:
    noise, apart, growth = zip(*((each.noise, each.apart, each.growth) for each in measured), strict=True)
    compared = statistics.compare_likeness(noise, apart, growth, together)
    tokens = sum(each.text.end - each.text.start for each in measured)
    agreement = sum(each.same for each in measured) / tokens
    if compared.verdict == "identical" and not all(each.is_identical for each in measured):
        compared = replace(compared, verdict="equivalent")
    parting = min((each.parting for each in measured if each.parting[2]), default=(0, 0, ""))[2]
    return ComparedTexts(kind, depth, len(measured), compared, agreement, parting)


def likeness_outcome(
    likeness: ImageLikeness,
    plan: TextPlan,
    sides: tuple[RatedImage, RatedImage],
    reference: Mapping[str, str],
    within: float | None,
) -> Outcome:
    """The outcome as evidence about the second image. ``reference`` has the name and fingerprint of the first image.
    ``within`` is the allowed change of perplexity, as a share."""
    verdict: Verdict = {"identical": "pass", "equivalent": "pass", "different": "changed"}.get(  # type: ignore[assignment]
        likeness.verdict, "unclear"
    )
    if within is not None and verdict != "pass":
        verdict = "fail" if likeness.answers_differ else likeness.change.within(within)
        if verdict == "pass" and likeness.prompts_differ:
            verdict = "changed"
    agreement = sum(each.agreement * each.texts for each in likeness.cells) / sum(each.texts for each in likeness.cells)
    figures = [Figure(f"perplexity_{name}", {}, "ratio", "", (value,)) for name, value in vars(likeness.change).items()]
    figures.append(Figure("same_next_token", {}, "ratio", "higher", (agreement,)))
    if likeness.questions:
        figures.append(Figure("right_answers", {}, "ratio", "higher", (likeness.right[1] / likeness.questions,)))
    settings: dict[str, int | float | str] = {**reference, "seed": plan.seed, "times": plan.times}
    settings["deepest"] = plan.deepest
    if plan.sessions:
        digest = words.sha256_of(json.dumps(plan.sessions, sort_keys=True).encode())
        settings |= {"sessions": len(plan.sessions), "sessions_digest": digest}
    first, second = sides
    verdicts = [each.compared.verdict for each in (*likeness.totals, *likeness.cells)]
    counts = {
        "texts": sum(each.texts for each in likeness.cells),
        "different": verdicts.count("different"),
        "unclear": verdicts.count("cannot tell"),
        "prompts_differ": len(likeness.prompts_differ),
        "answers_differ": int(likeness.answers_differ),
    }
    return Outcome(
        kind="same",
        name=SAME,
        version=VERSION,
        set=same_digest(),
        started=first.started,
        seconds=first.seconds + second.seconds,
        verdict=verdict,
        figures=tuple(figures),
        findings=tuple(_findings(likeness)),
        counts={name: count for name, count in counts.items() if count},
        sampling=settings,
        raw=records.text_of(likeness, {}).encode(),
    )


def same_digest() -> str:
    """The digest of the texts and questions."""
    questions = [vars(each) for each in forced_texts.questions()]
    return measurement.outcome_digest([VERSION, forced_texts.texts_digest(), questions])


def _findings(likeness: ImageLikeness) -> Sequence[Finding]:
    """The differences of an image, the largest first. The findings contain no text of a session."""
    findings = [
        Finding("prompt", kind, "changed", "the two images make different tokens: `builder prove` compares the prompts")
        for kind in likeness.prompts_differ
    ]
    if likeness.answers_differ:
        findings.append(Finding("answers", "", "fail", likeness.answers_text))
    for each in likeness.differing:
        verdict: Verdict = "changed" if each.compared.verdict == "different" else "unclear"
        findings.append(Finding("texts", f"{each.kind} at {each.depth}", verdict, each.difference))
    return findings[:_MOST_FINDINGS]


def first_difference(likeness: ImageLikeness) -> str:
    """The most important finding in one line; empty without findings."""
    return next((f"{each.check} {each.at}: {each.text}" for each in _findings(likeness)), "")
