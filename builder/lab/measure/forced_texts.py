"""The texts that images rate: prompts of many kinds and depths, composed from a seed, and the owner's sessions. Then
how an image rates them.

A mixed prompt changes its kind every `LENGTH` tokens, so one long prompt contains every kind at every depth.
"""

from __future__ import annotations

import functools
import json
import math
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from builder.base import files, processes, words, yaml_file
from builder.base.errors import MeasuringError, UsageError
from builder.base.http_client import NoAnswerError
from builder.base.values import dataclass, field, replace
from builder.lab.measure import measurement
from builder.lab.measure.measurement import MeasuringProgress

if TYPE_CHECKING:
    from builder.base.events import Report
    from builder.lab.measure.measurement import ServedModel


LENGTH = 128
"""The tokens of one text. A text is a part of a prompt, of one kind, and one measurement."""
DEPTHS = (1024, 8192, 32768)
COPYING, ARITHMETIC, TOOLS, SESSIONS = "copying", "arithmetic", "tools", "sessions"
VERSION = "1"
_TEXTS = Path(__file__).with_name("texts.yaml")
_SLOT = re.compile(r"«(\D+?)(\d*)»")
_FEWEST = 8  # texts of each kind at each depth: a band needs at least this many
_NEEDLES = 6
_ANSWER = 1  # tokens: a completion needs at least one, in the same context as the prompt
_SECONDS = 120.0
_LARGEST_SESSION = 16 << 20
Messages: TypeAlias = "dict[str, Any]"


@dataclass(frozen=True)
class ForcedText:
    """The tokens of a prompt from ``start`` to ``end``, of one ``kind``, between the previous depth and ``depth``."""

    kind: str
    depth: int
    start: int
    end: int


@dataclass(frozen=True)
class ForcedPrompt:
    """A prompt as token ids, and the texts in it."""

    tokens: tuple[int, ...]
    texts: tuple[ForcedText, ...]


@dataclass(frozen=True)
class ForcedPrompts:
    """All prompts of a comparison. ``digests`` are of a server's tokens, by kind: servers with different digests read
    different tokens. ``left_out`` lists the prompts that could not be made."""

    prompts: tuple[ForcedPrompt, ...]
    digests: Mapping[str, str]
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class TextPlan:
    """The prompts to make: from ``seed``, up to ``deepest`` tokens (0: the whole context), and ``times`` as many as
    usual. The owner's ``sessions`` are saved requests; only servers on this machine get them."""

    seed: int = 0
    deepest: int = 0
    times: int = 1
    sessions: tuple[Messages, ...] = ()

    def depths(self, context: int) -> tuple[int, ...]:
        """The depths that fit into a context, and the end of the context if it is well beyond the last depth."""
        most = min(context, self.deepest or context)
        fitting = [depth for depth in DEPTHS if depth <= most]
        return tuple(fitting) if fitting and most < 1.5 * fitting[-1] else (*fitting, most)


@functools.cache
def _data() -> Mapping[str, Any]:
    loaded: dict[str, Any] = yaml_file.load(_TEXTS.read_text(encoding="utf-8"), _TEXTS.name)
    return loaded


def texts_digest() -> str:
    """The digest of the texts. Compare figures only if their texts have the same digest."""
    return measurement.outcome_digest([VERSION, LENGTH, _data()])


def kinds() -> tuple[str, ...]:
    """The kinds of a mixed prompt: all except `TOOLS`."""
    return (*(kind for kind in _data()["kinds"] if kind != TOOLS), ARITHMETIC, COPYING)


def compose_prompts(served: ServedModel, plan: TextPlan) -> ForcedPrompts:
    """The prompts of a plan in the tokens of a server. Raises NoAnswerError if the server does not return tokens."""
    numbers = random.Random(plan.seed)  # noqa: S311 (the same texts wherever they are composed)
    depths = plan.depths(served.context)
    most = min(depths[-1], served.context - _ANSWER)
    digests: dict[str, str] = {}
    left_out = []
    spans = zip(depths, (0, *depths), strict=False)
    lengths = [depth for depth, before in spans for _ in range(_count(depth - before) * plan.times)]
    mixed = _mixed(served, numbers, lengths, digests)
    prompts = [_prompt(tokens, kinds_of, depths) for tokens, kinds_of in mixed]
    try:
        whole, tokens = _tool_session(served, numbers, most)
        digests[TOOLS] = measurement.outcome_digest([whole, tokens])
        prompts.append(_prompt(tokens, [TOOLS] * (len(tokens) // LENGTH), depths))
    except NoAnswerError as error:
        left_out.append(f"{TOOLS} left out: the server cannot render tool calls: {str(error)[:200]}")
    for number, request in enumerate(plan.sessions, 1):
        try:
            tokens = _rendered(served, request)
        except NoAnswerError as error:
            left_out.append(f"session {number} left out: {str(error)[:200]}")
            continue
        digests[f"{SESSIONS} {number}"] = measurement.outcome_digest(tokens)
        cut = tokens[:most]
        if len(cut) >= LENGTH:
            prompts.append(_prompt(cut, [SESSIONS] * (len(cut) // LENGTH), depths))
        else:
            left_out.append(f"session {number} left out: it has fewer than {LENGTH} tokens")
    return ForcedPrompts(tuple(prompts), digests, tuple(left_out))


def _count(tokens: int) -> int:
    """The number of prompts for enough texts of each kind, if a prompt has this many tokens at a depth."""
    return -(-_FEWEST * len(kinds()) // max(tokens // LENGTH, 1))


def _prompt(tokens: Sequence[int], kinds_of: Sequence[str], depths: Sequence[int]) -> ForcedPrompt:
    texts = []
    for number, kind in enumerate(kinds_of):
        start = number * LENGTH
        depth = next(depth for depth in depths if start + LENGTH <= max(depth, LENGTH))
        texts.append(ForcedText(kind, depth, max(start, 1), start + LENGTH))  # the first token is not rated
    return ForcedPrompt(tuple(tokens), tuple(texts))


def _mixed(
    served: ServedModel, numbers: random.Random, lengths: Sequence[int], digests: dict[str, str]
) -> Iterator[tuple[list[int], list[str]]]:
    """Yields the tokens of each mixed prompt with the kind of each text. The first text is of the kind `COPYING`; later
    ones of this kind repeat parts of it."""
    order = [kind for kind in kinds() if kind != COPYING]
    needed = sum(length // LENGTH for length in lengths) // len(kinds()) + 2
    streams: dict[str, Iterator[list[int]]] = {}
    for kind in order:
        stream = _stream(served, functools.partial(_piece, kind, numbers), needed * LENGTH)
        digests[kind] = measurement.outcome_digest(stream)
        streams[kind] = iter([stream[place : place + LENGTH] for place in range(0, len(stream), LENGTH)])
    every = [_beginning(served)]
    turn: list[str] = []
    for length in lengths:
        needles = [_filled("The code of the «thing» from «city» is «N»«n». ", numbers) for _ in range(_NEEDLES)]
        count = min(length, served.context - _ANSWER) // LENGTH
        recalled = _stream(served, functools.partial(numbers.choice, needles), (count + 1) * LENGTH)
        told = [*every[0], *_tokens(served, "".join(needles))][:LENGTH]
        every += [told, recalled]
        told += recalled[: LENGTH - len(told)]
        tokens, kinds_of = told, [COPYING]
        while len(kinds_of) < count:
            if not turn:
                turn = [*order, COPYING]
                numbers.shuffle(turn)
            kind, place = turn.pop(), len(kinds_of) * LENGTH
            tokens += recalled[place : place + LENGTH] if kind == COPYING else next(streams[kind])
            kinds_of.append(kind)
        yield tokens, kinds_of
    digests[COPYING] = measurement.outcome_digest(every)


def _beginning(served: ServedModel) -> list[int]:
    """The tokens that the tokenizer puts before a text. Without these tokens, some models rate badly."""
    whole, plain = _ids(served, {"prompt": "a"}), _tokens(served, "a")
    return whole[: len(whole) - len(plain)] if whole[len(whole) - len(plain) :] == plain else []


def _stream(served: ServedModel, piece: Callable[[], str], needed: int) -> list[int]:
    """At least ``needed`` tokens from consecutive pieces."""
    tokens: list[int] = []
    while len(tokens) < needed:
        text = ""
        while len(text) < 3 * (needed - len(tokens)) + 200:
            text += piece()
        tokens += _tokens(served, text)
    return tokens


def _piece(kind: str, numbers: random.Random) -> str:
    return _sum(numbers) if kind == ARITHMETIC else _filled(numbers.choice(_data()["kinds"][kind]), numbers)


def _filled(text: str, numbers: random.Random) -> str:
    drawn: dict[str, str] = {}

    def value(slot: re.Match[str]) -> str:
        if slot[0] not in drawn:
            drawn[slot[0]] = _drawn(slot[1], numbers)
        return drawn[slot[0]]

    return _SLOT.sub(value, text)


_RANGES = {"d": (1, 9), "n": (2, 99), "N": (100, 9999)}


def _drawn(name: str, numbers: random.Random) -> str:
    if name in _RANGES:
        return str(numbers.randint(*_RANGES[name]))
    if name == "x":
        return f"{numbers.uniform(0, 100):.1f}"
    if name == "hex":
        return f"{numbers.randrange(16**6):06x}"
    return str(numbers.choice(_data()["words"][name]))


def _sum(numbers: random.Random) -> str:
    first, second, third = (numbers.randint(2, 999) for _ in range(3))
    return numbers.choice(
        (
            f"{first} + {second} = {first + second}\n",
            f"{first + second} - {second} = {first}\n",
            f"{first} * {second} = {first * second}\n",
            f"({first} + {second}) * {third} = {(first + second) * third}\n",
            f"{first * second} / {first} = {second}\n",
            f"{first} mod {third} = {first % third}\n",
        )
    )


def _tool_session(served: ServedModel, numbers: random.Random, most: int) -> tuple[list[int], list[int]]:
    """Two sessions with tool calls, in the template of the model: a short one that ends with the beginning of an
    answer, and one of at most ``most`` tokens."""
    pieces = _data()["kinds"][TOOLS]
    tools = [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": f"Does what {name} says.",
                "parameters": {"type": "object", "properties": {key: {} for key in json.loads(_filled(call, numbers))}},
            },
        }
        for name, call, *_ in pieces
    ]
    messages = [each for piece in pieces for each in _exchange(piece, numbers, 0)]
    whole = _rendered(served, {"messages": messages[:-1], "tools": tools}, begins_answer=True)
    messages = []
    tokens: list[int] = []
    rounds = 2
    while True:
        while len(messages) < 4 * rounds:
            messages += _exchange(numbers.choice(pieces), numbers, len(messages))
        longer = _rendered(served, {"messages": messages, "tools": tools})
        if len(longer) >= most or len(longer) <= len(tokens):
            return whole, longer[:most]
        tokens = longer
        rounds = max(rounds + 1, min(rounds * 4, rounds * most // len(tokens) + 1))


def _exchange(piece: Sequence[str], numbers: random.Random, place: int) -> list[Messages]:
    """A question, a tool call, its result and the answer."""
    name, call, result, question, answer = _filled("\0".join(piece), numbers).split("\0")
    number = f"call_{place:05d}"  # some templates require at least nine characters
    called = {"id": number, "type": "function", "function": {"name": name, "arguments": call}}
    return [
        {"role": "user", "content": question},
        {"role": "assistant", "content": "", "tool_calls": [called]},
        {"role": "tool", "tool_call_id": number, "content": result},
        {"role": "assistant", "content": answer},
    ]


def _rendered(served: ServedModel, request: Messages, *, begins_answer: bool = False) -> list[int]:
    taken = {key: request[key] for key in ("messages", "tools", "chat_template_kwargs") if request.get(key)}
    return _ids(served, {**taken, "add_generation_prompt": begins_answer})


def _tokens(served: ServedModel, text: str) -> list[int]:
    return _ids(served, {"prompt": text, "add_special_tokens": False})


def _ids(served: ServedModel, body: dict[str, Any]) -> list[int]:
    answer = measurement.post(served, f"{served.root}/tokenize", body, _SECONDS)
    tokens = answer.get("tokens")
    if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
        raise NoAnswerError("the server does not return the tokens of a text")
    return tokens


# The owner's sessions: unchanged requests to /v1/chat/completions, one per JSON file or one per line.


def read_sessions(folder: Path) -> tuple[Messages, ...]:
    """The requests in the files of a folder. Raises UsageError if a file contains no request or the folder is empty."""
    requests: list[Messages] = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.suffix not in {".json", ".jsonl"}:
            continue
        try:
            text = files.read_plain_file(path, _LARGEST_SESSION).decode()
            # Only a line feed ends a line: a text in JSON may contain other line ends, such as U+2028.
            parts = text.split("\n") if path.suffix == ".jsonl" else [text]
            requests += [_session(json.loads(part)) for part in parts if part.strip()]
        except (OSError, ValueError, TypeError) as error:
            hint = "each .json file, and each line of a .jsonl file, is a request to /v1/chat/completions"
            raise UsageError(f"{path} contains no saved request: {error}", hint=hint) from None
    if not requests:
        message = f"{folder} contains no saved requests"
        raise UsageError(message, hint="save requests to /v1/chat/completions there, as .json or .jsonl")
    return tuple(requests)


def _session(data: Any) -> Messages:
    request = data.get("body", data) if isinstance(data, dict) else None  # in OpenAI's batches, `body` is the request
    if not isinstance(request, dict) or not isinstance(request.get("messages"), list) or not request["messages"]:
        raise ValueError("it has no `messages`")
    return request


# An image rates the texts twice, in different batches, and answers questions.
#
# vLLM's completions return the scores, with ``prompt_logprobs``
# (https://docs.vllm.ai/en/stable/api/vllm/sampling_params/). The served model rates given tokens, without sampling and
# without a drafter. Such a request reads no cached prefix (vllm/sampling_params.py, `skip_reading_prefix_cache`).

_RATING_SECONDS = 1800.0
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
        own = compose_prompts(served, plan)
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
    measurement.ask_served_model(served.address, served.key)  # an ended server gave no wrong answers
    report(MeasuringProgress(f"{what} answered {len(right)} questions", 1.0, None))
    return replace(rated, right=right, seconds=rated.seconds + time.monotonic() - began)


def rate_prompt(served: ServedModel, tokens: Sequence[int], spelled: dict[str, str]) -> RatedPrompt:
    """Returns the scores of a prompt's tokens, and adds the likeliest tokens as text to ``spelled``. Raises
    NoAnswerError."""
    body = {"prompt": list(tokens), "max_tokens": 1, "temperature": 0, "prompt_logprobs": 1}
    answer = measurement.post(served, f"{served.address}/completions", body, _RATING_SECONDS, _LARGEST)
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
    makers = (_sum_question, _day_question, _copy_question, _sort_question, _spell_question)
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
        answer = measurement.complete(served, body, _ANSWER_SECONDS)
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


def _sum_question(numbers: random.Random) -> CheckedQuestion:
    first, second = numbers.randint(12, 999), numbers.randint(3, 99)
    return numbers.choice(
        (
            CheckedQuestion(f"What is {first} + {second * 7}?", str(first + second * 7)),
            CheckedQuestion(f"What is {first} - {second}?", str(first - second)),
            CheckedQuestion(f"What is {first} * {second}?", str(first * second)),
            CheckedQuestion(f"What is the remainder when {first} is divided by {second}?", str(first % second)),
        )
    )


def _day_question(numbers: random.Random) -> CheckedQuestion:
    day, later = date(2024, 1, 1) + timedelta(numbers.randint(0, 700)), numbers.randint(2, 40)
    if numbers.random() < 0.5:
        weekday = _DAYS[(day + timedelta(later)).weekday()]
        return CheckedQuestion(f"If today is {_DAYS[day.weekday()]}, which weekday is it in {later} days?", weekday)
    until = (day + timedelta(later)).isoformat()
    return CheckedQuestion(f"Which date is {later} days after {day.isoformat()}? Write it as YYYY-MM-DD.", until)


def _copy_question(numbers: random.Random) -> CheckedQuestion:
    code = "-".join(f"{numbers.randrange(16**4):04x}" for _ in range(numbers.randint(2, 6)))
    return CheckedQuestion(f"Repeat this code exactly: {code}", code)


def _sort_question(numbers: random.Random) -> CheckedQuestion:
    taken = numbers.sample(range(10, 99), numbers.randint(4, 7))
    if numbers.random() < 0.5:
        taken = sorted(taken, key=lambda _: numbers.random())
        text = f"Sort these numbers from small to large, separated by commas: {', '.join(map(str, taken))}."
        return CheckedQuestion(text, ", ".join(map(str, sorted(taken))))
    chosen = numbers.sample(_WORDS, 5)
    text = f"Sort these words by the alphabet, separated by commas: {', '.join(chosen)}."
    return CheckedQuestion(text, ", ".join(sorted(chosen)))


def _spell_question(numbers: random.Random) -> CheckedQuestion:
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
