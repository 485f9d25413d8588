"""A hundred questions with a checkable answer: sums, dates, copying, sorting and spelling, the same ones every time."""

from __future__ import annotations

import functools
import random
import re
from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING

from builder.base.http_client import NoAnswerError
from builder.lab.measure import served_model

if TYPE_CHECKING:
    from builder.lab.measure.served_model import ServedModel

COUNT = 100
_SECONDS = 300.0
_TOKENS = 64
_WORDS = ("anchor", "barrel", "candle", "drum", "envelope", "fiddle", "gate", "hammer", "inkwell", "kettle", "mirror")
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


@dataclass(frozen=True)
class CheckedQuestion:
    """A question, and its only right answer."""

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
    """True if the server answers rightly, without sampling; False if it answers wrongly or not at all."""
    message = {"role": "user", "content": f"{question.text} Reply with the answer alone."}
    body = {"messages": [message], "max_tokens": _TOKENS, "temperature": 0, "seed": 0}
    try:
        # Templates that know no such setting ignore it.
        answer = served_model.complete(served, {**body, "chat_template_kwargs": {"enable_thinking": False}}, _SECONDS)
        content = answer["choices"][0]["message"]["content"]
    except (NoAnswerError, LookupError, TypeError):
        return False
    return is_answer(str(content or ""), question.answer)


def is_answer(text: str, answer: str) -> bool:
    """True if the last line of ``text`` is the answer or ends with it. Marks around it do not count."""
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
