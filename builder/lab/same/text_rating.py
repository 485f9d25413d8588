"""Has an image rate the forced texts twice, in different batches, and answer questions.

vLLM's completions return the scores, with ``prompt_logprobs``
(https://docs.vllm.ai/en/stable/api/vllm/sampling_params/). The served model rates given tokens, without sampling and
without a drafter. Such a request reads no cached prefix (vllm/sampling_params.py, `skip_reading_prefix_cache`).
"""

from __future__ import annotations

import functools
import math
import random
import re
import time
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

from builder.base import processes, words
from builder.base.errors import MeasuringError
from builder.base.http_client import NoAnswerError
from builder.base.values import dataclass, field, replace
from builder.lab.measure import served_model
from builder.lab.measure.outcome import MeasuringProgress
from builder.lab.same import forced_texts
from builder.lab.same.forced_texts import ForcedPrompts  # noqa: TC001 (a type of a record)

if TYPE_CHECKING:
    from builder.base.events import Report
    from builder.lab.measure.served_model import ServedModel
    from builder.lab.same.forced_texts import ForcedPrompt, TextPlan

_SECONDS = 1800.0
_LARGEST = 256 << 20  # bytes of an answer: about a hundred per token
_AT_ONCE = 4


@dataclass(frozen=True)
class RatedPrompt:
    """For each token of a prompt except the first: the natural logarithm of its probability, and the likeliest token at
    its place."""

    log_probabilities: tuple[float, ...]
    likeliest: tuple[int, ...]


@dataclass(frozen=True)
class RatedImage:
    """The ratings of all prompts by one server: one at a time, and then several at once in the reverse order.

    ``digests`` are of the server's own tokens; ``spelled`` has tokens as text. ``right`` is true for each correct
    answer to a question; empty without questions. ``started`` is RFC 3339 in UTC."""

    alone: tuple[RatedPrompt, ...]
    together: tuple[RatedPrompt, ...]
    digests: Mapping[str, str]
    started: str
    seconds: float
    spelled: Mapping[str, str] = field(default_factory=dict)
    right: tuple[bool, ...] = ()


@dataclass(frozen=True)
class RatedReference:
    """The ratings of an image with the prompts, as stored in a file."""

    prompts: ForcedPrompts
    rated: RatedImage


def rate_image(
    served: ServedModel, plan: TextPlan, what: str, report: Report, prompts: ForcedPrompts | None = None
) -> tuple[ForcedPrompts, RatedImage]:
    """Returns the prompts of a plan in the tokens of a server, and its ratings of these or the given ``prompts``.
    ``what`` names the image in messages. Raises MeasuringError if the server does not rate texts."""
    began, started = time.monotonic(), words.now()
    spelled: dict[str, str] = {}
    try:
        own = forced_texts.compose_prompts(served, plan)
        given = (prompts or own).prompts
        total = 2 * sum(len(prompt.tokens) for prompt in given)
        done = 0

        def rate(prompt: ForcedPrompt) -> RatedPrompt:
            nonlocal done
            rated = rate_prompt(served, prompt.tokens, spelled)
            done += len(prompt.tokens)
            left = (time.monotonic() - began) * (total / done - 1) if done > total / 10 else None
            report(MeasuringProgress(f"{what} rates {len(given)} prompts twice", done / total, left))
            return rated

        alone = tuple(map(rate, given))
        together = tuple(processes.in_parallel(rate, given[::-1], _AT_ONCE))[::-1]
    except NoAnswerError as error:
        raise MeasuringError(
            f"{what} cannot rate texts: {error}",
            hint="the server must answer /tokenize, and /v1/completions with `prompt_logprobs`, as vLLM does; to limit "
            "the length of the texts: `--depth N`",
        ) from None
    return own, RatedImage(alone, together, own.digests, started, time.monotonic() - began, spelled)


def with_answers(served: ServedModel, rated: RatedImage, what: str, report: Report) -> RatedImage:
    """Adds the answers to the questions to the ratings of an image. Raises MeasuringError if the server has ended."""
    began = time.monotonic()
    right = tuple(processes.in_parallel(lambda each: is_right(served, each), questions(), _AT_ONCE))
    served_model.ask_served_model(served.address, served.key)  # an ended server gave no wrong answers
    report(MeasuringProgress(f"{what} answered {len(right)} questions", 1.0, None))
    return replace(rated, right=right, seconds=rated.seconds + time.monotonic() - began)


def rate_prompt(served: ServedModel, tokens: Sequence[int], spelled: dict[str, str]) -> RatedPrompt:
    """Returns the scores of a prompt's tokens, and adds the likeliest tokens as text to ``spelled``. Raises
    NoAnswerError."""
    body = {"prompt": list(tokens), "max_tokens": 1, "temperature": 0, "prompt_logprobs": 1}
    answer = served_model.post(served, f"{served.address}/completions", body, _SECONDS, _LARGEST)
    try:
        rated = answer["choices"][0]["prompt_logprobs"]
        if len(rated) != len(tokens):
            raise NoAnswerError(f"{len(rated)} of {len(tokens)} tokens were rated")
        scores = [_score(token, each, spelled) for token, each in zip(tokens[1:], rated[1:], strict=True)]
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise NoAnswerError(f"the answer contains no prompt ratings: {type(error).__name__}: {error}") from None
    return RatedPrompt(tuple(value for value, _ in scores), tuple(token for _, token in scores))


def _score(token: int, candidates: Mapping[str, Mapping[str, Any]], spelled: dict[str, str]) -> tuple[float, int]:
    own = candidates[str(token)]
    value = float(own["logprob"])
    if not math.isfinite(value):
        raise ValueError(f"{value} is not the logarithm of a probability")
    likeliest = min(candidates, key=lambda each: int(candidates[each]["rank"]))
    spelled.setdefault(likeliest, str(candidates[likeliest].get("decoded_token") or "")[:40])
    return value, int(likeliest)


# A hundred questions with a checkable answer: sums, dates, copying, sorting and spelling. They are the same each time.

COUNT = 100
_ANSWER_SECONDS, _ANSWER_TOKENS = 300.0, 64
_WORDS = ("anchor", "barrel", "candle", "drum", "envelope", "fiddle", "gate", "hammer", "inkwell", "kettle", "mirror")
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


@dataclass(frozen=True)
class CheckedQuestion:
    """A question, and its only correct answer."""

    text: str
    answer: str


@functools.cache
def questions() -> tuple[CheckedQuestion, ...]:
    numbers = random.Random(COUNT)  # noqa: S311 (the same questions every time)
    makers = (_sum, _day, _copy, _sort, _spell)
    made: dict[str, CheckedQuestion] = {}
    while len(made) < COUNT:
        question = makers[len(made) % len(makers)](numbers)
        made.setdefault(question.text, question)
    return tuple(made.values())


def is_right(served: ServedModel, question: CheckedQuestion) -> bool:
    """True if the server answers correctly, without sampling; False if the answer is wrong or missing."""
    message = {"role": "user", "content": f"{question.text} Reply with the answer alone."}
    body = {"messages": [message], "max_tokens": _ANSWER_TOKENS, "temperature": 0, "seed": 0}
    body["chat_template_kwargs"] = {"enable_thinking": False}  # templates without this option ignore it
    try:
        answer = served_model.complete(served, body, _ANSWER_SECONDS)
        content = answer["choices"][0]["message"]["content"]
    except (NoAnswerError, LookupError, TypeError):
        return False
    return is_answer(str(content or ""), question.answer)


def is_answer(text: str, answer: str) -> bool:
    """True if the last line of ``text`` is the answer or ends with it. Punctuation and markup around it are ignored."""
    lines = [line for line in text.replace("*", "").replace("`", "").splitlines() if line.strip()]
    if not lines:
        return False
    last = re.sub(r"(?<=\d),(?=\d{3})", "", lines[-1]).strip(" .!\"'").casefold()
    return re.search(rf"(?:^|[\s:=\"']){re.escape(answer.casefold())}$", last) is not None


def _sum(numbers: random.Random) -> CheckedQuestion:
    first, second = numbers.randint(12, 999), numbers.randint(3, 99)
    return numbers.choice(
        (
            CheckedQuestion(f"What is {first} + {second * 7}?", str(first + second * 7)),
            CheckedQuestion(f"What is {first} - {second}?", str(first - second)),
            CheckedQuestion(f"What is {first} * {second}?", str(first * second)),
            CheckedQuestion(f"What is the remainder when {first} is divided by {second}?", str(first % second)),
        )
    )


def _day(numbers: random.Random) -> CheckedQuestion:
    day, later = date(2024, 1, 1) + timedelta(numbers.randint(0, 700)), numbers.randint(2, 40)
    if numbers.random() < 0.5:
        weekday = _DAYS[(day + timedelta(later)).weekday()]
        return CheckedQuestion(f"If today is {_DAYS[day.weekday()]}, which weekday is it in {later} days?", weekday)
    until = (day + timedelta(later)).isoformat()
    return CheckedQuestion(f"Which date is {later} days after {day.isoformat()}? Write it as YYYY-MM-DD.", until)


def _copy(numbers: random.Random) -> CheckedQuestion:
    code = "-".join(f"{numbers.randrange(16**4):04x}" for _ in range(numbers.randint(2, 6)))
    return CheckedQuestion(f"Repeat this code exactly: {code}", code)


def _sort(numbers: random.Random) -> CheckedQuestion:
    taken = numbers.sample(range(10, 99), numbers.randint(4, 7))
    if numbers.random() < 0.5:
        taken = sorted(taken, key=lambda _: numbers.random())
        text = f"Sort these numbers from small to large, separated by commas: {', '.join(map(str, taken))}."
        return CheckedQuestion(text, ", ".join(map(str, sorted(taken))))
    chosen = numbers.sample(_WORDS, 5)
    text = f"Sort these words by the alphabet, separated by commas: {', '.join(chosen)}."
    return CheckedQuestion(text, ", ".join(sorted(chosen)))


def _spell(numbers: random.Random) -> CheckedQuestion:
    word, other = numbers.sample(_WORDS, 2)
    letter = numbers.choice(word)
    return numbers.choice(
        (
            CheckedQuestion(f"Write the word `{word}` backwards.", word[::-1]),
            CheckedQuestion(f"How many letters has the word `{word}`? Write a number.", str(len(word))),
            CheckedQuestion(
                f"How often is the letter `{letter}` in `{word}`? Write a number.", str(word.count(letter))
            ),
            CheckedQuestion(f"Write the last letter of `{word}` and the first of `{other}`.", word[-1] + other[0]),
            CheckedQuestion(f"Write `{word} {other}` in capital letters.", f"{word} {other}".upper()),
        )
    )
